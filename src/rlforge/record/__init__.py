"""Records of a run: files, metrics, games, digests, sinks. Knows no screen."""
