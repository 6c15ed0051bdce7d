"""Export and import in the layout of Hugging Face ``datasets``.

``data/train-NNNNN.parquet`` has the decisions with the columns of the store, a date as
``timestamp`` and the scorer's ``score`` and ``explanation``; ``windows/train-00000.parquet`` has
the metrics of the run's windows. The head of ``README.md`` describes both to ``load_dataset``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from rlforge.continuous.decisions.columns import (
    COMPLETION,
    METADATA,
    RESULT,
    decision_row,
    to_decision,
)
from rlforge.continuous.decisions.records import calendar_date
from rlforge.continuous.decisions.store import Row, StoreReader, TrajectoryStore, errors_explained
from rlforge.errors import RlforgeError, counted
from rlforge.record.files import RunPaths, read_json, read_jsonl
from rlforge.system.files import atomic_path
from rlforge.types import value

_RESULT = pa.struct([field for field in RESULT.arrow_type if field.name != "winRate"])
#: Columns of an exported file of decisions, and what they hold.
_COLUMNS = {
    "id": (pa.string(), "unique, in the order of the agent's decisions"),
    "agentId": (pa.string(), "the agent"),
    "windowId": (pa.string(), "window of time that holds it, named by its start in UTC"),
    # ``datasets`` reads arrow's JSON as objects, whose fields may vary.
    "state": (pa.json_(), "the state that the agent saw, an object"),
    "action": (pa.json_(), "its action, an object; the kind under `type`"),
    "reward": (pa.float64(), "reward; null until the outcome is known"),
    "nextState": (pa.json_(), "the next state, an object; null until the outcome is known"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "time of it, by the wall or a simulated clock"),
    "metadata": (
        METADATA.arrow_type,
        "`provider` (`scripted:NAME`, a model), `reasoning`, `confidence` (0 to 1)",
    ),
    "result": (_RESULT, "`pnl`, `investment`, `holdTimeMinutes`; null until the outcome is known"),
    "agentStats": (pa.struct([("winRate", pa.float64())]), "`winRate` of the agent so far"),
    "observation": (pa.string(), "the prompt of a language model"),
    "completion": (
        COMPLETION.arrow_type,
        "its answer: text, token ids, log-probs and the version that sampled them",
    ),
    "complete": (pa.bool_(), "whether the outcome is known"),
    "score": (pa.float64(), "RULER score, 0 to 1, within the window; null where none was given"),
    "explanation": (pa.string(), "what the scorer says of it"),
}
_SCHEMA = pa.schema([(name, kind) for name, (kind, _) in _COLUMNS.items()])
#: Rows after which an exported file is full, and rows that are read at a time.
_FILE_ROWS, _BATCH_ROWS = 100_000, 4096
#: Bad rows that a message names; the others are counted.
_NAMED = 10
_NEEDED = ("id", "agentId", "windowId", "state", "action", "timestamp")


@value
class Imported:
    """Rows written, rows that the store held already, and bad rows left out."""

    written: int
    known: int
    bad: tuple[str, ...]


def export_dataset(
    reader: StoreReader,
    folder: Path,
    window_ids: Collection[str] | None = None,
    run_dir: Path | None = None,
) -> int:
    """Write decisions into a new folder, or nothing after an error; returns how many.

    Args:
        reader: The store.
        folder: RlforgeError if it exists already, or there is nothing to write.
        window_ids: Windows to write; None: all.
        run_dir: The run whose scores and metrics are written, too.
    """
    if folder.exists():
        raise RlforgeError(f"{folder} exists already; name a folder that does not")
    run = None if run_dir is None else RunPaths(root=run_dir)
    wanted = [w for w in reader.window_ids() if window_ids is None or w in window_ids]

    def tables() -> Iterator[pa.Table]:
        for window_id in wanted:
            stored = None if run is None else read_json(run.scores(window_id))
            scores, rows = (stored or {}).get("scores", {}), []
            for row in reader.rows(window_id):
                given = scores.get(row["id"], {})
                scored = {name: given.get(name) for name in ("score", "explanation")}
                rows.append({**row, **scored, "timestamp": calendar_date(row["timestamp"])})
            yield pa.Table.from_pylist(rows, schema=_SCHEMA)

    with errors_explained(folder), atomic_path(folder) as work:
        rows = _write_files(tables(), work / "data")
        if not rows:
            raise RlforgeError(f"{reader.root} has no decisions to export")
        noted = [] if run is None else read_jsonl(run.windows)
        metrics = [row for row in noted if row["window_id"] in wanted]
        if metrics:
            _write_metrics(metrics, work / "windows")
        (work / "README.md").write_text(_card(rows, len(metrics)), encoding="utf-8")
    return rows


def dataset_files(folder: Path) -> list[Path]:
    """The parquet files of a dataset; RlforgeError where there are none."""
    paths = sorted((folder / "data").glob("*.parquet")) or sorted(folder.glob("*.parquet"))
    if not paths:
        raise RlforgeError(f"{folder} holds no dataset: no parquet file in it or in its data/")
    return paths


def import_dataset(folder: Path, store: TrajectoryStore, *, skip_bad: bool = False) -> Imported:
    """Append the rows of a dataset, without scores, to ``store``, which skips those that it holds.

    Raises RlforgeError that names bad rows by file and number, unless ``skip_bad``; then none is
    written.
    """
    bad: list[str] = []
    seen: set[tuple[str, str]] = set()

    def good() -> Iterator[Row]:
        for place, given in _rows(folder):
            try:
                row = _checked(given)
                if (name := (row["windowId"], row["id"])) in seen:
                    raise RlforgeError(f"id {row['id']} occurs twice")
            except RlforgeError as error:
                bad.append(f"{place}: {error}")
                continue
            seen.add(name)
            yield row
        if bad and not skip_bad:
            more = f"\nand {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
            raise RlforgeError(
                f"{folder}: {len(bad)} bad rows, nothing was imported; mend them or leave them out "
                "(--skip-bad)\n" + "\n".join(bad[:_NAMED]) + more
            )

    # ``good`` raises within the transaction, which undoes the rows that were written before.
    written = store.append_rows(good())
    return Imported(written=written, known=len(seen) - written, bad=tuple(bad))


# ---------------------------------------------------------------- export


def _write_files(tables: Iterable[pa.Table], folder: Path) -> int:
    """Write files of about ``_FILE_ROWS`` rows each; returns the count of rows."""
    folder.mkdir(parents=True)
    rows = 0

    # A window is never split: its table goes into the file where its first row belongs.
    def full_files(table: pa.Table) -> int:
        nonlocal rows
        before, rows = rows, rows + len(table)
        return before // _FILE_ROWS

    for number, (_, of_file) in enumerate(itertools.groupby(tables, full_files)):
        file = folder / f"train-{number:05d}.parquet"
        with pq.ParquetWriter(file, _SCHEMA, compression="zstd") as writer:
            for table in of_file:
                writer.write_table(table)
    return rows


def _write_metrics(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write the lines of ``windows.jsonl``, a column for each name; objects are JSON."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        cells = [row.get(name) for row in rows]
        if any(isinstance(cell, dict | list) for cell in cells):
            columns[name] = pa.array([cell and json.dumps(cell) for cell in cells], pa.json_())
        else:
            columns[name] = pa.array(cells)
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "train-00000.parquet", compression="zstd")


def _card(rows: int, windows: int) -> str:
    configs = [{"config_name": "default", "data_files": "data/*.parquet", "default": True}]
    if windows:
        configs.append({"config_name": "windows", "data_files": "windows/*.parquet"})
    head = {
        "pretty_name": "Decisions of agents",
        "task_categories": ["reinforcement-learning"],
        "tags": ["rlforge", "trajectories"],
        "configs": configs,
    }
    table = "\n".join(f"| `{name}` | {about} |" for name, (_, about) in _COLUMNS.items())
    metrics = 'windows = load_dataset("FOLDER", "windows")  # metrics of each window\n'
    return (
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n# Decisions of agents\n\n"
        f"{counted(rows, 'decision')}, one per row, written by rlforge.\n\n"
        f"| column | what it holds |\n|---|---|\n{table}\n\n"
        "```python\n"
        "from datasets import load_dataset\n\n"
        'dataset = load_dataset("FOLDER")\n'
        "window = dataset.filter(lambda x: x['windowId'] == '2024-11-13-10:00')\n"
        "agent = dataset.filter(lambda x: x['agentId'] == 'agent-123')\n"
        f"{metrics if windows else ''}"
        "```\n"
    )


# ---------------------------------------------------------------- import


def _rows(folder: Path) -> Iterator[tuple[str, Row]]:
    """All rows, each with its file and number."""
    for path in dataset_files(folder):
        name, numbers = path.relative_to(folder), itertools.count(1)
        try:
            for batch in pq.ParquetFile(path).iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist():
                    yield f"{name} row {next(numbers)}", row
        except (pa.ArrowException, OSError) as error:
            raise RlforgeError(f"{path} cannot be read: {error}") from error


def _checked(given: Row) -> Row:
    """The row of the store for one of a dataset; RlforgeError says what is wrong with it."""
    if lacking := [name for name in _NEEDED if given.get(name) is None]:
        raise RlforgeError(f"no {', '.join(lacking)}")
    if not all(isinstance(given[name], str) for name in ("id", "agentId", "windowId")):
        raise RlforgeError("id, agentId and windowId must be texts")
    try:
        decision = to_decision({**given, "timestamp": _seconds(given["timestamp"])})
        if not isinstance(decision.action.get("type"), str):
            raise RlforgeError("action has no type")
        return decision_row(decision)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RlforgeError(" ".join(f"{type(error).__name__}: {error}".split())) from error


def _seconds(timestamp: Any) -> float:
    """Seconds since 1970 UTC of a number, a date, or its ISO form."""
    if isinstance(timestamp, int | float):
        return float(timestamp)
    date = datetime.fromisoformat(timestamp) if isinstance(timestamp, str) else timestamp
    if not isinstance(date, datetime):
        raise RlforgeError(f"timestamp {timestamp!r} is not a date")
    # Without a zone it is UTC, as everything here; the local zone would differ between machines.
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
