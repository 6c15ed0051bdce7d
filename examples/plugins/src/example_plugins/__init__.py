"""One extension of each kind that rlforge takes: a file per kind, to copy from."""
