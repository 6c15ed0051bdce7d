"""Arguments of several commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rlforge.errors import ConfigError, RlforgeError

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="+experiment=NAME and changes to it. Keys: rlforge config --keys.",
        show_default=False,
    ),
]
ConfigDir = Annotated[
    Path | None,
    typer.Option("--config-dir", help="Folder with your own experiment/, env/ … YAML files."),
]


def must_be_run(path: Path | None) -> Path | None:
    """Refuse a path that is not a run directory, with the nearest runs; None passes."""
    from rlforge.tracking.files import open_run

    if path is not None:
        try:
            open_run(path)
        except RlforgeError as error:
            raise ConfigError(str(error)) from error
    return path


RunDir = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A run directory, as train prints it.", callback=must_be_run
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Continue the run in this directory.",
        callback=must_be_run,
    ),
]
More = Annotated[
    int | None,
    typer.Option(
        "--more",
        metavar="N",
        help="With --resume: N more updates, or windows, than the run was to make.",
        min=1,
    ),
]
Checkpoint = Annotated[
    str, typer.Option(metavar="UID", help="The version of the run: latest, step-40, …")
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write the result to this file."),
]


def write_result(file: Path | None, result: Any) -> None:
    """Write ``result`` as JSON to the file of ``--json``, if one is given."""
    if file is not None:
        file.write_text(json.dumps(result, indent=2) + "\n")


Multirun = Annotated[
    bool, typer.Option("-m", "--multirun", help="Sweep over comma-separated values.")
]
