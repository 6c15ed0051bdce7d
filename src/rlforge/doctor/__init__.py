"""``rlforge doctor``: whether a run would work on this machine, before anything starts."""
