"""What a run writes down, and how it is shown: files, metrics, sinks, display and report.

A run is read back from its directory alone; nothing here starts or changes one.
"""
