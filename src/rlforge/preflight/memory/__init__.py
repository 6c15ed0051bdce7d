"""The memory that a run needs, by arithmetic alone, without loading a framework."""
