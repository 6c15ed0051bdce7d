"""Arguments of several commands."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlforge.cli import completion
from rlforge.errors import ConfigError, RlforgeError

if TYPE_CHECKING:
    from rlforge.config.continuous import ContinuousConfig, WindowConfig
    from rlforge.trajectories.reader import StoreReader

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="+experiment=NAME, or NAME alone, and changes to it. Keys: rlforge show KEY.",
        show_default=False,
        autocompletion=completion.experiments,
    ),
]
ConfigDir = Annotated[
    Path | None,
    typer.Option("--config-dir", help="Folder with your own experiment/, env/ … YAML files."),
]


say = partial(typer.echo, err=True)
"""Shows a message on standard error."""

RUNS = Path("runs")
"""Where runs are, below the current directory."""


def must_be_run(path: Path | None) -> Path | None:
    """Refuse a path that is not a run directory, with the nearest runs; None passes.

    ``latest`` is the newest run below ``runs/``.
    """
    from rlforge.tracking.files import open_run, runs_below
    from rlforge.tracking.overview import FIRST_RUN, newest_run

    if path == Path("latest") and not path.exists():
        path = newest_run(RUNS)
    if path is not None:
        try:
            open_run(path)
        except RlforgeError as error:
            none_yet = not path.exists() and not runs_below(RUNS)
            raise ConfigError(f"{error}; {FIRST_RUN}" if none_yet else str(error)) from error
    return path


RunDir = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run directory, as train prints it, or latest: the newest below runs/.",
        callback=must_be_run,
        autocompletion=completion.runs,
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Continue the run in this directory.",
        callback=must_be_run,
        autocompletion=completion.runs,
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


def _writable(file: Path | None) -> Path | None:
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise ConfigError(f"--json {file}: give the name of a file in an existing folder")
    return file


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", help="Also write the result to this file.", callback=_writable
    ),
]


def write_result(file: Path | None, result: Any) -> None:
    """Write ``result`` as JSON to the file of ``--json``, if one is given."""
    if file is not None:
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


Store = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="STORE",
        help="Train on all windows of this store, or of this run, instead of new ones.",
        autocompletion=completion.runs,
    ),
]


def with_store(overrides: list[str], where: Path | None) -> list[str]:
    """``overrides`` with the keys that ``--from`` stands for."""
    if where is None:
        return overrides
    reader, _ = opened_store(where)
    path = str(reader.layout.root.absolute()).replace("'", "\\'")
    reader.close()
    # The number of windows is that of the store, unless the user says otherwise.
    given = ["continuous.windows=null", *overrides]
    return [*given, "continuous.source=store", f"store.path='{path}'"]


Multirun = Annotated[
    bool, typer.Option("-m", "--multirun", help="Sweep over comma-separated values.")
]


def opened_store(where: Path) -> tuple[StoreReader, WindowConfig]:
    """The store at ``where``, and the window settings of its run, or the defaults."""
    from rlforge.config.continuous import WindowConfig
    from rlforge.tracking.files import open_run
    from rlforge.trajectories.layout import ABOUT
    from rlforge.trajectories.reader import StoreReader
    from rlforge.trajectories.store import store_folder

    if (where / ABOUT).is_file():
        run = where.absolute().parent
        if not (run / "config.yaml").is_file():
            return StoreReader(where), WindowConfig()
        return StoreReader(where), settings_of(run).window
    try:
        open_run(where)
    except RlforgeError as error:
        what = f"{where} is neither a trajectory store (it has no {ABOUT}) nor a run"
        raise ConfigError(what if where.is_dir() else str(error)) from error
    config = settings_of(where)
    folder = store_folder(config.store, where)
    if not folder.exists():
        raise ConfigError(f"{where} has written no decisions yet: there is no {folder}")
    return StoreReader(folder), config.window


def settings_of(run: Path) -> ContinuousConfig:
    """The configuration of a run; ConfigError where its store or windows are impossible."""
    from rlforge.config.continuous import ContinuousConfig
    from rlforge.config.roots import read_run
    from rlforge.config.rules import checked

    config = read_run(run, ContinuousConfig)
    checked(config.store, f"{run}: store")
    checked(config.window, f"{run}: window")
    return config
