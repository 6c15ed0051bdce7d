"""The run directory: its paths, and how its JSON files are written and read.

Every reader of a run starts at ``open_run``; every writer at ``create_run``. Files that change
(``progress.json``, ``pool.json``, ``summary.json``) are replaced whole, so a reader in another
process never sees half of one; files that grow (``*.jsonl``) get one whole line at a time.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from rlforge.errors import RlforgeError, nearest
from rlforge.system.files import atomic_write
from rlforge.system.values import json_ready
from rlforge.types import value


@value
class RunPaths:
    """Where everything of one run lies, below ``root``."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved configuration, YAML."""
        return self.root / "config.yaml"

    @property
    def command(self) -> Path:
        """The command lines that started and resumed the run."""
        return self.root / "command.txt"

    @property
    def graph(self) -> Path:
        """The run graph, JSON."""
        return self.root / "graph.json"

    @property
    def metrics(self) -> Path:
        """One object per learner update."""
        return self.root / "metrics.jsonl"

    @property
    def windows(self) -> Path:
        """One object per window of a continuous run."""
        return self.root / "windows.jsonl"

    @property
    def comparison(self) -> Path:
        """How the policy of a continuous run did before and after it, beside scripted traders."""
        return self.root / "comparison.json"

    @property
    def evals(self) -> Path:
        """One object per evaluation of one opponent in one environment."""
        return self.root / "evals.jsonl"

    @property
    def ratings(self) -> Path:
        """One object per pool snapshot: step and (mu, sigma) per policy."""
        return self.root / "ratings.jsonl"

    @property
    def scalars(self) -> Path:
        """One object per flush: the namespaced means that every sink gets."""
        return self.root / "scalars.jsonl"

    @property
    def games(self) -> Path:
        """Finished games, parquet."""
        return self.root / "games"

    @property
    def checkpoints(self) -> Path:
        """One folder per saved version."""
        return self.root / "checkpoints"

    @property
    def pool(self) -> Path:
        """Entries, ratings and match counts as last seen."""
        return self.root / "pool.json"

    @property
    def summary(self) -> Path:
        """What the run reached, versions, seeds, wall time; its ``status`` says how it ended."""
        return self.root / "summary.json"

    @property
    def progress(self) -> Path:
        """The live view that ``rlforge monitor`` reads."""
        return self.root / "progress.json"

    @property
    def logs(self) -> Path:
        """One file per actor."""
        return self.root / "logs"

    @property
    def report(self) -> Path:
        """Curves and tables, one HTML file."""
        return self.root / "report.html"

    def is_run(self) -> bool:
        """Whether anything that only a run writes is there."""
        marks = (self.config, self.progress, self.summary, self.metrics)
        return any(mark.is_file() for mark in marks)


def create_run(run_dir: Path | str) -> RunPaths:
    """Make the run directory with its folders; what is already there stays."""
    paths = RunPaths(root=Path(run_dir))
    for folder in (paths.root, paths.games, paths.checkpoints, paths.logs):
        folder.mkdir(parents=True, exist_ok=True)
    return paths


def open_run(run_dir: Path | str) -> RunPaths:
    """The paths of an existing run, for readers.

    Raises:
        RlforgeError: there is no such directory, or it is not a run; names the nearest runs.
    """
    paths = RunPaths(root=Path(run_dir))
    if paths.is_run():
        return paths
    if not paths.root.exists():
        raise RlforgeError(f"no run directory {run_dir}{_suggest_runs(paths.root)}")
    if not paths.root.is_dir():
        raise RlforgeError(f"{run_dir} is a file; a run directory is expected")
    inside = _runs_below(paths.root)
    if inside:
        raise RlforgeError(
            f"{run_dir} holds {len(inside)} runs but is not one; the newest is {inside[0]}"
        )
    raise RlforgeError(
        f"{run_dir} is not a run directory: it has no config.yaml, progress.json, summary.json "
        f"or metrics.jsonl{_suggest_runs(paths.root)}"
    )


def _runs_below(folder: Path) -> list[str]:
    """Run directories one or two levels below ``folder``, newest first."""
    if not folder.is_dir():
        return []
    found = [
        path
        for pattern in ("*", "*/*")
        for path in folder.glob(pattern)
        if path.is_dir() and RunPaths(root=path).is_run()
    ]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [str(path) for path in found]


def _suggest_runs(wanted: Path) -> str:
    """The end of a message: runs whose names look like ``wanted``, else the newest ones."""
    names: dict[str, None] = {}
    for folder in (Path("runs"), wanted.parent, wanted.parent.parent):
        # "." and above hold whatever the user has: only folders that look like runs/ are searched.
        if folder.name not in ("", ".."):
            names.update(dict.fromkeys(_runs_below(folder)))
    if not names:
        return ""
    return nearest(str(wanted), names) or f"; the newest runs are {', '.join([*names][:3])}"


def open_log(name: str, run_dir: str) -> None:
    """What every process of a run does first: its own log file, and tracebacks of hard crashes."""
    logs = Path(run_dir) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(logs / f"{name}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("rlforge")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    root.propagate = False
    crashes = (logs / f"{name}.crash.log").open("w")
    faulthandler.enable(crashes)
    root.info("%s started as process %d", name, os.getpid())


# ---------------------------------------------------------------- JSON


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace ``path`` by ``data`` in one step: a reader sees the old file or the new one."""
    atomic_write(path, json.dumps(json_ready(data), indent=1) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Leave exactly ``rows`` in ``path``, an object a line; replaced in one step where it differs.

    An unfinished last line goes, too.
    """
    text = "".join(f"{json.dumps(json_ready(row))}\n" for row in rows)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        atomic_write(path, text)


def read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``; empty when the file is not there yet.

    Raises:
        RlforgeError: the file is damaged.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RlforgeError(f"{path} is damaged ({error}); remove it and try again") from error
    if not isinstance(data, dict):
        raise RlforgeError(f"{path} is damaged (an object is expected); remove it and try again")
    return data


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects in ``path``, in order; empty when the file is not there yet.

    A last line without its newline is still being written, or was when a run died: it is left out.

    Raises:
        RlforgeError: a whole line is not an object.
    """
    if not path.is_file():
        return []
    *lines, _unfinished = path.read_text(encoding="utf-8").split("\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RlforgeError(f"{path}:{number} is damaged ({error}); remove that line") from error
        if not isinstance(row, dict):
            raise RlforgeError(f"{path}:{number} is damaged (no object); remove that line")
        rows.append(row)
    return rows


class JsonlFile:
    """A file that grows by one JSON object per line, each on disk as soon as it is written."""

    def __init__(self, path: Path) -> None:
        """Open for appending; the rest of a line that a crash cut short is removed."""
        self.path = path
        write_jsonl(path, read_jsonl(path))
        self._file: TextIO = path.open("a", encoding="utf-8")

    def rewind(self, step: int) -> None:
        """Delete the objects whose ``step`` is above ``step``, and go on after the others."""
        self._file.close()
        write_jsonl(self.path, (row for row in read_jsonl(self.path) if row["step"] <= step))
        self._file = self.path.open("a", encoding="utf-8")

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one object."""
        self._file.write(f"{json.dumps(json_ready(row))}\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()
