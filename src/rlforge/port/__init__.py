"""Writes the experiment that a script of UnstableBaselines describes (``rlforge port``)."""
