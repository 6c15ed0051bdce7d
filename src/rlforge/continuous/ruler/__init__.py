"""RULER: scores of decisions, relative to the other decisions of the same window."""
