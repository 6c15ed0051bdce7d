"""What a shell offers for arguments; Typer completes commands and options by itself."""

from __future__ import annotations

from pathlib import Path

import typer


def runs(incomplete: str) -> list[str]:
    """The runs below ``runs/``, and ``latest``."""
    from rlforge.tracking.files import runs_below

    offered = ["latest", *map(str, runs_below(Path("runs")))]
    return [run for run in offered if run.startswith(incomplete)]


def experiments(ctx: typer.Context, incomplete: str) -> list[str]:
    """Experiments by name, also behind ``+experiment=``."""
    from rlforge.config.keys import conf_dir

    given = ctx.params.get("overrides") or ()
    if "=" in given[-1:] and "+experiment" not in given[-2:]:
        return []  # bash takes the equals sign of KEY=VALUE for the end of a word
    names = sorted(file.stem for file in (conf_dir() / "experiment").glob("*.yaml"))
    prefix = "+experiment=" if incomplete.startswith("+") else ""
    return [word for name in names if (word := prefix + name).startswith(incomplete)]
