"""RULER: how good decisions were, relative to others of the same window."""
