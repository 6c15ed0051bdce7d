"""The run directory: its paths, and how its JSON files are written and read.

Files that change are replaced in one step; files that grow (``*.jsonl``) get a line at a time.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

from rlforge.errors import RlforgeError, check_type, counted, first_line, nearest
from rlforge.record.forms import checked
from rlforge.system.files import atomic_write, reading
from rlforge.system.output import crashes_to_stderr
from rlforge.system.values import from_json, json_ready
from rlforge.types import value

log = logging.getLogger(__name__)

T = TypeVar("T")


class RunFile:
    """A file or folder of a run, which ``RunPaths`` has as its path."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunPaths, owner: type[RunPaths]) -> Path:
        return run.root / self.name


@value
class RunPaths:
    """Paths of the files in the run directory ``root``.

    Example:
        >>> run = RunPaths(root=Path("runs/kuhn"))
        >>> run.metrics.as_posix(), run.is_run()
        ('runs/kuhn/metrics.jsonl', False)
    """

    root: Path

    #: The resolved configuration, YAML.
    config = RunFile("config.yaml")
    #: The command lines that started and resumed the run.
    command = RunFile("command.txt")
    #: What the run started with; of resumes ``plan-N.json``, N from 2.
    plan = RunFile("plan.json")
    #: A line per update.
    metrics = RunFile("metrics.jsonl")
    #: A line per window of a continuous run.
    windows = RunFile("windows.jsonl")
    #: A continuous run's policy and scripted traders, before and after the run.
    comparison = RunFile("comparison.json")
    #: A few decisions of a continuous run's first and newest window.
    decisions = RunFile("decisions.json")
    #: A line per evaluation of one opponent in one environment.
    evals = RunFile("evals.jsonl")
    #: A line per exact measure of a version in one environment.
    exact = RunFile("exact.jsonl")
    #: A line per alarm of the sentinel.
    sentinel = RunFile("sentinel.jsonl")
    #: A line per snapshot of the pool.
    ratings = RunFile("ratings.jsonl")
    #: A line per point that sinks receive.
    scalars = RunFile("scalars.jsonl")
    #: Finished games, parquet.
    games = RunFile("games")
    #: The value of games over their turns, a JSON file each.
    analyses = RunFile("analyses")
    #: What a supervised run learns from and what it holds out, parquet.
    samples = RunFile("samples")
    #: One folder per saved version.
    checkpoints = RunFile("checkpoints")
    #: The versions that a continuous run served, one folder each.
    deployed = RunFile("deployments/versions")
    #: The newest snapshot of the pool.
    pool = RunFile("pool.json")
    #: Usage of API players over the whole run, which ``--resume`` does not take back.
    api = RunFile("api.json")
    #: Results, versions, seeds, wall time, and ``status``.
    summary = RunFile("summary.json")
    #: The live view that ``rlforge monitor`` reads.
    progress = RunFile("progress.json")
    #: The ids of the run at services, such as W&B.
    trackers = RunFile("trackers.json")
    #: One file per actor.
    logs = RunFile("logs")
    report = RunFile("report.html")

    def scores(self, window_id: str) -> Path:
        """Score and explanation of each decision of a window of a continuous run."""
        return self.root / "scores" / f"{window_id.replace(':', '.')}.json"

    def is_run(self) -> bool:
        """Whether a file is there that runs write, and no service keeps its state there."""
        return any(mark.is_file() for mark in self._marks()) and not self.is_service()

    def last_written(self) -> float:
        """When the run was started or last recorded something, in seconds since 1970."""
        # Not the time of the folder: a report, a deployment or a user's own file changes that.
        times = [0.0]
        for mark in self._marks():
            with contextlib.suppress(FileNotFoundError):
                times.append(mark.stat().st_mtime)
        return max(times)

    def _marks(self) -> tuple[Path, ...]:
        return (self.config, self.progress, self.summary, self.metrics)

    def is_service(self) -> bool:
        """Whether a service keeps its state there, with a configuration that begins as no run's."""
        with contextlib.suppress(OSError), self.config.open("rb") as file:
            # Below the digest, which older files do not have.
            return b"kind: serve\n" in (file.readline(), file.readline())
        return False


def create_run(run_dir: Path | str) -> RunPaths:
    """Make the run directory; existing files stay."""
    paths = RunPaths(root=Path(run_dir))
    for folder in (paths.root, paths.games, paths.checkpoints, paths.logs):
        folder.mkdir(parents=True, exist_ok=True)
    return paths


def open_run(run_dir: Path | str) -> RunPaths:
    """The paths of an existing run; RlforgeError with the nearest runs for none."""
    check_type(run_dir, str, os.PathLike, what="a run is named by its directory")
    if not os.fspath(run_dir):
        raise RlforgeError("the name of a run is empty; name its directory")
    paths = RunPaths(root=Path(run_dir))
    if paths.is_run():
        return paths
    if not paths.root.exists():
        raise RlforgeError(f"no run directory {run_dir}{_suggest_runs(paths.root)}")
    if not paths.root.is_dir():
        raise RlforgeError(f"{run_dir} is a file; a run directory is expected")
    if paths.is_service():
        raise RlforgeError(f"{run_dir} is the state folder of a service, not a run; name a run")
    inside = runs_below(paths.root)
    if inside:
        raise RlforgeError(
            f"{run_dir} holds {counted(len(inside), 'run')} but is not one; "
            f"the newest is {inside[0]}"
        )
    raise RlforgeError(
        f"{run_dir} is not a run directory: it has no config.yaml, progress.json, summary.json "
        f"or metrics.jsonl{_suggest_runs(paths.root)}"
    )


def numbered(files: Iterable[Path]) -> list[tuple[int, Path]]:
    """The files whose names are NAME-NUMBER, with the number, lowest first; copies are left out.

    Example:
        >>> names = ("games-000002.parquet", "games-000001 (copy).parquet", "games-000001.parquet")
        >>> [(number, path.name) for number, path in numbered(map(Path, names))]
        [(1, 'games-000001.parquet'), (2, 'games-000002.parquet')]
    """
    named = ((re.fullmatch(r"[\w-]+-([0-9]+)", path.stem), path) for path in files)
    return sorted((int(name[1]), path) for name, path in named if name)


def short(path: Path) -> Path:
    """``path``, relative where it is below the current directory."""
    path, here = path.absolute(), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def runs_below(folder: Path) -> list[Path]:
    """Run directories below ``folder``, the one that was last written first."""
    found: dict[Path, float] = {}
    # Jobs of sweeps are three levels below runs/. Folders that vanish meanwhile are left out.
    for here, folders, _ in os.walk(folder, followlinks=True):
        for name in folders:
            # A folder that is another user's own must not hide the others.
            with contextlib.suppress(OSError):
                if (run := RunPaths(root=Path(here, name))).is_run():
                    found[run.root] = run.last_written()
        if len(Path(here).relative_to(folder).parts) == 2:
            folders.clear()
    return sorted(found, key=found.__getitem__, reverse=True)


def _suggest_runs(wanted: Path) -> str:
    """The end of a message: runs with names like ``wanted``, else the newest."""
    names: dict[str, None] = {}
    for folder in (Path("runs"), wanted.parent, wanted.parent.parent):
        # "." and ".." may be large and hold no runs: only named folders are searched.
        if folder.name not in ("", ".."):
            names.update(dict.fromkeys(map(str, runs_below(folder))))
    if not names:
        return ""
    return nearest(str(wanted), names) or f"; the newest runs are {', '.join([*names][:3])}"


def open_log(name: str, run_dir: Path | str) -> contextlib.ExitStack:
    """Log this process to ``logs/NAME.log``, and hard crashes to ``.crash.log``, until closed."""
    stack = contextlib.ExitStack()
    logs = Path(run_dir) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    handler = _LogFile(logs / f"{name}.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("rlforge")
    # A notebook goes on after a run: its logger is left as it was.
    stack.callback(setattr, root, "propagate", root.propagate)
    stack.callback(root.setLevel, root.level)
    root.addHandler(handler)
    stack.callback(handler.close)
    stack.callback(root.removeHandler, handler)
    root.setLevel(logging.INFO)
    # Handlers of the root logger would print each line once more, on the user's screen.
    root.propagate = False
    # faulthandler keeps the descriptor: it lets go of it before the file is closed.
    crashes = stack.enter_context((logs / f"{name}.crash.log").open("w", encoding="utf-8"))
    stack.callback(crashes_to_stderr if faulthandler.is_enabled() else faulthandler.disable)
    faulthandler.enable(crashes)
    root.info("%s started as process %d", name, os.getpid())
    return stack


class _LogFile(logging.FileHandler):
    _said = False

    def handleError(self, record: logging.LogRecord | None) -> None:  # noqa: N802
        # A full disk must not end the run, nor print a message for each line.
        if not self._said and isinstance(error := sys.exception(), OSError):
            self._said = True
            print(f"{self.baseFilename}: lines are lost ({error.strerror})", file=sys.stderr)
        elif record is not None and not self._said:
            super().handleError(record)

    def close(self) -> None:
        try:
            super().close()
        except OSError:  # lines that did not fit on the disk are written again
            self.handleError(None)


# ---------------------------------------------------------------- JSON


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace ``path`` in one step."""
    atomic_write(path, json.dumps(json_ready(data), indent=1) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Make ``path`` hold exactly ``rows``."""
    content = "".join(f"{json.dumps(json_ready(row))}\n" for row in rows).encode()
    # Each start mends its files: large ones that are intact are only read.
    if not path.is_file() or path.read_bytes() != content:
        atomic_write(path, content)


def read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``, empty where there is no file; DamagedError if it is damaged."""
    try:
        with reading(path):
            return checked(path, json.loads(path.read_bytes().decode()))
    except FileNotFoundError:
        return {}


def value_in(cls: type[T], data: Any, path: Path) -> T:
    """The value of what was read from ``path``; DamagedError where it is none."""
    with reading(path):
        return from_json(cls, data)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects in ``path``; none where there is no file.

    A last line without newline is left out, and damaged lines with a warning in the log.
    """
    rows, damage = read_intact(path)
    if damage is not None:
        log.warning("%s", damage)
    return rows


def read_values(cls: type[T], path: Path) -> list[T]:
    """Values in ``path``, as ``read_jsonl``; DamagedError for a line that is none."""
    return values_in(cls, read_jsonl(path), path)


def values_in(cls: type[T], rows: Sequence[Mapping[str, Any]], path: Path) -> list[T]:
    """Values of lines that were read from ``path``; raises as ``read_values``."""
    with reading(path, "remove the line, which is counted from 0, and try again"):
        return from_json(list[cls], rows)  # type: ignore[valid-type]


def read_intact(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """Read as ``read_jsonl``, with a line about damaged ones, or None.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "metrics.jsonl"
        ...     _ = path.write_bytes(b'{"step": 1}\\n{"st\\xff\\n{"step": 3}\\n')
        ...     rows, damage = read_intact(path)
        >>> rows, damage.rpartition("/")[-1]
        ([{'step': 1}, {'step': 3}], 'metrics.jsonl:2 is damaged (not UTF-8) and left out')
    """
    if not path.is_file():
        return [], None
    # After the last newline is what is being written, or what a crash cut short.
    *lines, _unfinished = path.read_bytes().split(b"\n")
    rows: list[dict[str, Any]] = []
    damaged: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        try:
            # Line by line: bytes that are no UTF-8 must not hide the intact lines.
            rows.append(checked(path, json.loads(line.decode())))
        except UnicodeDecodeError:
            damaged.append((number, "not UTF-8"))
        except (ValueError, RecursionError) as error:
            damaged.append((number, first_line(error)))
    if not damaged:
        return rows, None
    number, why = damaged[0]
    more = len(damaged) - 1
    others = f", as {counted(more, 'further line')}" if more else ""
    return rows, f"{path}:{number} is damaged ({why}) and left out{others}"


def mend_jsonl(path: Path) -> str | None:
    """Leave the intact lines of ``path``; what was damaged is kept as ``NAME.damaged``."""
    rows, damage = read_intact(path)
    if damage is not None:
        aside, number = path.with_name(f"{path.name}.damaged"), 1
        while aside.exists():
            aside, number = path.with_name(f"{path.name}.damaged.{number}"), number + 1
        shutil.copyfile(path, aside)
        damage = f"{damage}; the file as it was is {aside.name}"
    write_jsonl(path, rows)
    return damage


def mend_run(run: RunPaths) -> list[str]:
    """Mend the growing files of a run before it goes on; what was damaged."""
    files = (
        *(run.metrics, run.evals, run.exact, run.sentinel, run.ratings),
        *(run.windows, run.scalars),
    )
    return [damage for file in files if file.is_file() and (damage := mend_jsonl(file))]


class JsonlFile:
    """A file of JSON lines, for appending.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = JsonlFile(Path(folder) / "metrics.jsonl")
        ...     for step in (1, 2, 3):
        ...         file.append({"step": step})
        ...     file.rewind(2)
        ...     file.close()
        ...     read_jsonl(file.path)
        [{'step': 1}, {'step': 2}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if damage := mend_jsonl(path):  # a crash cuts the last line short
            log.warning("%s", damage)
        self._file: TextIO = path.open("a", encoding="utf-8")

    def rewind(self, step: int) -> None:
        self._file.close()
        # This replaces the file: one that stayed open would go on in the old one.
        rows = (row for row in read_jsonl(self.path) if row.get("update", row["step"]) <= step)
        write_jsonl(self.path, rows)
        self._file = self.path.open("a", encoding="utf-8")

    def append(self, row: Mapping[str, Any]) -> None:
        self._file.write(f"{json.dumps(json_ready(row))}\n")
        self._file.flush()  # for readers, and against a crash

    def close(self) -> None:
        self._file.close()
