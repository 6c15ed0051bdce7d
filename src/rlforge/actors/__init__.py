"""Ray shells around the plain classes: each method hands on, none decides."""
