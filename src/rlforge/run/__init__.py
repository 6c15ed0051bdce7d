"""From a configuration to a run: controllers, lifecycle, evaluations, resume, and its actors."""
