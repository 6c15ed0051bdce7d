"""What a run records and how it is shown: files, metrics, sinks, display and report.

Readers need only the run's directory; nothing here starts or changes a run.
"""
