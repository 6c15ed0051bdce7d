"""Arguments of several commands, and what a shell offers for them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from rlforge.errors import ConfigError, RlforgeError
from rlforge.system.files import write_out
from rlforge.system.folders import check_file
from rlforge.system.values import json_ready

RUNS = Path("runs")
"""Where runs are, below the current directory."""

FIRST_RUN = "start one: rlforge train simpletak_mirror"


def offered_runs(incomplete: str) -> list[str]:
    # Commands import what they use when they are called: a shell waits for what it offers.
    from rlforge.record.files import runs_below

    offered = ["latest", *map(str, runs_below(RUNS))]
    return [run for run in offered if run.startswith(incomplete)]


def offered_experiments(ctx: typer.Context, incomplete: str) -> list[str]:
    """The experiments that a shell offers, also behind ``+experiment=``."""
    from rlforge.config.keys import conf_dir

    given = ctx.params.get("overrides") or ()
    if "=" in given[-1:] and "+experiment" not in given[-2:]:
        return []  # bash takes the equals sign of KEY=VALUE for the end of a word
    names = sorted(file.stem for file in (conf_dir() / "experiment").glob("*.yaml"))
    prefix = "+experiment=" if incomplete.startswith("+") else ""
    return [word for name in names if (word := prefix + name).startswith(incomplete)]


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="+experiment=NAME, or NAME alone, and changes to it. Keys: rlforge show KEY.",
        show_default=False,
        autocompletion=offered_experiments,
    ),
]
ConfigDir = Annotated[
    Path | None,
    typer.Option("--config-dir", help="Folder with your own experiment/, env/ … YAML files."),
]


# Standard output is for results, which other programs read.
say = partial(typer.echo, err=True)


def or_newest(path: Path) -> Path:
    """``path``; for ``latest`` the newest run below ``runs/``, ConfigError where there is none."""
    from rlforge.record.files import runs_below

    # A folder of this name is meant itself.
    if path != Path("latest") or path.exists():
        return path
    if found := runs_below(RUNS):
        return found[0]
    raise ConfigError(f"latest: there is no run below {RUNS}/ yet; {FIRST_RUN}")


def must_be_run(path: Path | None) -> Path | None:
    """Refuse a path, if it is given, that is no run; ``latest`` is the newest below ``runs/``."""
    from rlforge.record.files import open_run, runs_below

    if path is not None:
        path = or_newest(path)
        try:
            open_run(path)
        except RlforgeError as error:
            # In a new project the next step is a first run, not another path.
            none_yet = not path.exists() and not runs_below(RUNS)
            raise ConfigError(f"{error}; {FIRST_RUN}" if none_yet else str(error)) from error
    return path


RunDir = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run directory, as train prints it, or latest: the newest below runs/.",
        callback=must_be_run,
        autocompletion=offered_runs,
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Continue the run in this directory.",
        callback=must_be_run,
        autocompletion=offered_runs,
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
    str,
    typer.Option(
        metavar="UID",
        help="The version: result (as learner.result says), latest, best, average, step-40 …",
    ),
]


def say_result(run_dir: Path, version: str, option: str = "--checkpoint") -> None:
    """Say which version a command takes of itself, where it is not the latest."""
    from rlforge.local.policies import RESULT, about_result

    if version == RESULT and (note := about_result(run_dir, option)) is not None:
        say(note)


def _writable(file: Path | None) -> Path | None:
    # Before the work whose result it takes, not after.
    check_file("--json", file)
    return file


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", help="Also write the result to this file.", callback=_writable
    ),
]


def write_result(file: Path | None, result: Any) -> None:
    """Write ``result`` as JSON, if a file is given."""
    if file is not None:
        write_out(file, json.dumps(json_ready(result), indent=2) + "\n")


OPPONENTS = (
    "a scripted player, base (the untrained model), step-N of the run, checkpoint:DIR, "
    "hf:ORG/MODEL or hf:FOLDER, openai:MODEL, openrouter:MODEL or litellm:PROVIDER/MODEL"
)
"""Names of policies to play against."""

Push = Annotated[
    str | None,
    typer.Option(
        metavar="ORG/NAME|./NAME",
        help="Also upload to this repository of the Hugging Face hub, private if it is new, or "
        "copy to this folder.",
    ),
]
Public = Annotated[bool, typer.Option("--public", help="Make a new repository of --push public.")]
Multirun = Annotated[
    bool, typer.Option("-m", "--multirun", help="Sweep over comma-separated values.")
]
