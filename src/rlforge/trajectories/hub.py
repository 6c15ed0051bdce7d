"""Export and import in the layout of Hugging Face ``datasets``.

``data/train-NNNNN-of-NNNNN.parquet`` and a ``README.md`` whose head describes them to
``load_dataset``; the folder may be pushed to the hub as it is. Columns are those of the store,
except that ``timestamp`` is a date with microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from rlforge.errors import RlforgeError
from rlforge.system.files import atomic_path
from rlforge.trajectories.columns import DECISIONS, decision_row, to_decision
from rlforge.trajectories.grid import calendar_date
from rlforge.trajectories.layout import full_disk_explained
from rlforge.trajectories.reader import StoreReader
from rlforge.trajectories.records import Decision
from rlforge.trajectories.store import TrajectoryStore
from rlforge.types import value

_DATE = pa.timestamp("us", tz="UTC")
_SCHEMA = DECISIONS.set(DECISIONS.get_field_index("timestamp"), pa.field("timestamp", _DATE))
#: Rows after which an exported file is full.
_FILE_ROWS = 100_000
_BATCH_ROWS = 1000
#: Bad rows that a message names; the others are counted.
_NAMED = 10
_NEEDED = ("id", "agentId", "windowId", "state", "action", "timestamp")

_ABOUT = {
    "id": "unique, in the order of the agent's decisions",
    "agentId": "the agent",
    "windowId": "window of time that holds the decision, named by its start in UTC",
    "state": "the state that the agent saw, JSON text",
    "action": "its action, JSON text; the kind under `type`",
    "reward": "reward; null until the outcome is known",
    "nextState": "the next state, JSON text; null until the outcome is known",
    "timestamp": "time of the decision, by the wall or a simulated clock",
    "metadata": "`provider` (`scripted:NAME`, a model), `reasoning`, `confidence` (0 to 1)",
    "result": "`pnl`, `investment`, `holdTimeMinutes`; null until the outcome is known",
    "agentStats": "`winRate` of the agent so far",
    "observation": "the prompt of a language model",
    "completion": "its answer: text, token ids, log-probs and the version that sampled them",
    "complete": "whether the outcome is known",
}


@value
class Imported:
    """Numbers of rows written and rows that the store held already; the bad rows left out."""

    written: int
    known: int
    bad: tuple[str, ...]


def export_dataset(
    reader: StoreReader, folder: Path, window_ids: Collection[str] | None = None
) -> int:
    """Write the decisions of these windows (None: all) into a new ``folder``; returns how many.

    Raises RlforgeError if the folder exists already or there is nothing to write. After any error,
    no part of the export is left.
    """
    if folder.exists():
        raise RlforgeError(f"{folder} exists already; name a folder that does not")
    with full_disk_explained(folder), atomic_path(folder) as work:
        (work / "data").mkdir(parents=True)
        rows = _write_files(reader, work / "data", window_ids)
        if not rows:
            raise RlforgeError(f"{reader.layout.root} has no decisions to export")
        (work / "README.md").write_text(_card(rows), encoding="utf-8")
    return rows


def import_dataset(folder: Path, store: TrajectoryStore, *, skip_bad: bool = False) -> Imported:
    """Append the rows of a dataset to ``store``. States and actions may be JSON text or structs.

    All rows are checked before any is written. Raises RlforgeError that names the bad ones by file
    and number, unless ``skip_bad``; and if ``folder`` holds no readable parquet file. A row whose
    id its window holds already is skipped, so an import may be repeated.
    """
    bad = [
        f"{where}: {problem}" for where, _, problem in _checked_rows(folder) if problem is not None
    ]
    if bad and not skip_bad:
        more = f"\nand {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise RlforgeError(
            f"{folder}: {len(bad)} bad rows, nothing was imported; mend them or leave them out "
            "(--skip-bad)\n" + "\n".join(bad[:_NAMED]) + more
        )
    written = good = 0
    batch: list[Decision] = []
    for _, decision, _ in _checked_rows(folder):
        if decision is not None:
            batch.append(decision)
        if len(batch) == _BATCH_ROWS:
            written, good, batch = written + store.append(batch), good + len(batch), []
    written, good = written + store.append(batch), good + len(batch)
    return Imported(written=written, known=good - written, bad=tuple(bad))


def _write_files(reader: StoreReader, folder: Path, window_ids: Collection[str] | None) -> int:
    """Files of about ``_FILE_ROWS`` rows each, windows in order of time; returns the row count."""
    rows = 0
    sizes: list[int] = []
    writer = None
    for window_id in reader.window_ids():
        if window_ids is not None and window_id not in window_ids:
            continue
        table = reader.rows((window_id,))
        date = pa.array([calendar_date(t) for t in table["timestamp"].to_pylist()], _DATE)
        table = table.set_column(table.schema.get_field_index("timestamp"), "timestamp", date)
        if writer is None:
            writer = pq.ParquetWriter(folder / f"{len(sizes)}.parquet", _SCHEMA, compression="zstd")
            sizes.append(0)
        writer.write_table(table.select(_SCHEMA.names).cast(_SCHEMA))
        rows, sizes[-1] = rows + len(table), sizes[-1] + len(table)
        if sizes[-1] >= _FILE_ROWS:
            writer.close()
            writer = None
    if writer is not None:
        writer.close()
    for number in range(len(sizes)):
        name = f"train-{number:05d}-of-{len(sizes):05d}.parquet"
        (folder / f"{number}.parquet").rename(folder / name)
    return rows


def _card(rows: int) -> str:
    head = {
        "pretty_name": "Decisions of agents",
        "task_categories": ["reinforcement-learning"],
        "tags": ["rlforge", "trajectories"],
        "size_categories": [_size_category(rows)],
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": "train", "path": "data/*.parquet"}],
            }
        ],
    }
    table = "\n".join(f"| `{name}` | {_ABOUT[name]} |" for name in _SCHEMA.names)
    return (
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n# Decisions of agents\n\n"
        f"{rows:,} decisions, one per row, written by rlforge.\n\n"
        f"| column | what it holds |\n|---|---|\n{table}\n\n"
        "```python\n"
        "from datasets import load_dataset\n\n"
        'dataset = load_dataset("FOLDER")\n'
        "window = dataset.filter(lambda x: x['windowId'] == '2024-11-13-10:00')\n"
        "agent = dataset.filter(lambda x: x['agentId'] == 'agent-123')\n"
        "```\n"
    )


def _size_category(rows: int) -> str:
    steps = ((1e3, "n<1K"), (1e4, "1K<n<10K"), (1e5, "10K<n<100K"), (1e6, "100K<n<1M"))
    return next(
        (name for most, name in steps if rows < most), "1M<n<10M" if rows < 1e7 else "n>10M"
    )


def _checked_rows(folder: Path) -> Iterator[tuple[str, Decision | None, str | None]]:
    """The place of each row, and its decision or what is wrong with it."""
    paths = sorted((folder / "data").glob("*.parquet")) or sorted(folder.glob("*.parquet"))
    if not paths:
        raise RlforgeError(f"{folder} holds no dataset: no parquet file in it or in its data/")
    seen: set[tuple[str, str]] = set()
    for path in paths:
        try:
            file = pq.ParquetFile(path)
            number = 0
            for batch in file.iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    decision, problem = _checked(row)
                    if decision is not None:
                        key = decision.window_id, decision.id
                        problem = f"id {decision.id} occurs twice" if key in seen else None
                        seen.add(key)
                    where = f"{path.relative_to(folder)} row {number}"
                    yield where, None if problem else decision, problem
        except (pa.ArrowException, OSError) as error:
            raise RlforgeError(f"{path} cannot be read: {error}") from error


def _checked(row: Mapping[str, Any]) -> tuple[Decision | None, str | None]:
    """The decision in a row, or what is wrong with it."""
    lacking = [name for name in _NEEDED if row.get(name) is None]
    if lacking:
        return None, f"no {', '.join(lacking)}"
    if not all(isinstance(row[name], str) for name in ("id", "agentId", "windowId")):
        return None, "id, agentId and windowId must be texts"
    try:
        decision = to_decision({**row, "timestamp": _seconds(row["timestamp"])})
        if not isinstance(decision.action.get("type"), str):
            return None, "action has no type"
        for name in ("state", "next_state"):
            content = getattr(decision, name)
            if not isinstance(content, dict) and not (content is None and name == "next_state"):
                return None, f"{name} is not a JSON object"
        decision_row(decision)  # refuses values that cannot be stored
    except (RlforgeError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, " ".join(f"{type(error).__name__}: {error}".split())
    return decision, None


def _seconds(timestamp: Any) -> float:
    """Seconds since 1970 UTC of a number, a date, or its ISO form; without a zone it is UTC."""
    if isinstance(timestamp, int | float):
        return float(timestamp)
    date = datetime.fromisoformat(timestamp) if isinstance(timestamp, str) else timestamp
    if not isinstance(date, datetime):
        raise RlforgeError(f"timestamp {timestamp!r} is not a date")
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
