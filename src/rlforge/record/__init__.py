"""What a run writes: files, metrics, games, digests, sinks. Knows no screen."""
