"""Configurations of finished runs, changed by hand."""

from pathlib import Path


def edit_config(run_dir: Path, old: str, new: str) -> None:
    """Edit config.yaml of a run as its first line says: without that line."""
    config = run_dir / "config.yaml"
    stamp, text = config.read_text(encoding="utf-8").split("\n", 1)
    assert stamp.startswith("# sha256 ")
    assert old in text
    config.write_text(text.replace(old, new), encoding="utf-8")
