"""Export and import in the layout of Hugging Face ``datasets``.

``data/train-NNNNN-of-NNNNN.parquet`` has the decisions, ``windows/train-00000-of-00001.parquet``
the metrics of the run's windows, and the head of ``README.md`` describes both to ``load_dataset``.
Columns of decisions are those of the store, except that ``timestamp`` is a date with microseconds
and states and actions are JSON to arrow as well, which ``datasets`` reads as objects; ``score`` and
``explanation`` are the scorer's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from rlforge.continuous.decisions.columns import DECISIONS, decision_row, to_decision
from rlforge.continuous.decisions.grid import calendar_date, window_start
from rlforge.continuous.decisions.layout import full_disk_explained
from rlforge.continuous.decisions.reader import StoreReader
from rlforge.continuous.decisions.records import Decision
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.errors import RlforgeError
from rlforge.record.files import RunPaths, read_json, read_jsonl
from rlforge.system.files import atomic_path
from rlforge.types import value

_DATE = pa.timestamp("us", tz="UTC")
_JSON = ("state", "action", "nextState")
_TYPES = {"timestamp": _DATE, **dict.fromkeys(_JSON, pa.json_())}
_SCORED = [("score", pa.float64()), ("explanation", pa.string())]
#: Columns of an exported file of decisions.
_SCHEMA = pa.schema(
    [pa.field(name, _TYPES.get(name, DECISIONS.field(name).type)) for name in DECISIONS.names]
    + _SCORED
)
#: Rows after which an exported file is full.
_FILE_ROWS = 100_000
_BATCH_ROWS = 4096
#: Bad rows that a message names; the others are counted.
_NAMED = 10
_NEEDED = ("id", "agentId", "windowId", "state", "action", "timestamp")

_ABOUT = {
    "id": "unique, in the order of the agent's decisions",
    "agentId": "the agent",
    "windowId": "window of time that holds the decision, named by its start in UTC",
    "state": "the state that the agent saw, an object",
    "action": "its action, an object; the kind under `type`",
    "reward": "reward; null until the outcome is known",
    "nextState": "the next state, an object; null until the outcome is known",
    "timestamp": "time of the decision, by the wall or a simulated clock",
    "metadata": "`provider` (`scripted:NAME`, a model), `reasoning`, `confidence` (0 to 1)",
    "result": "`pnl`, `investment`, `holdTimeMinutes`; null until the outcome is known",
    "agentStats": "`winRate` of the agent so far",
    "observation": "the prompt of a language model",
    "completion": "its answer: text, token ids, log-probs and the version that sampled them",
    "complete": "whether the outcome is known",
    "score": "RULER score, 0 to 1, within the window; null where none was given",
    "explanation": "what the scorer says of it",
}

#: What of the rows that an export writes may be stored as it is, without a look at its values.
_SOUND = """
    SELECT place, windowId, id FROM rows WHERE coalesce(
        id <> '' AND agentId <> '' AND "timestamp" IS NOT NULL AND windowId IS NOT NULL
        AND try(json_type(state)) = 'OBJECT' AND try(json_type(action, '$.type')) = 'VARCHAR'
        AND (nextState IS NULL OR try(json_type(nextState)) = 'OBJECT')
        AND complete = (reward IS NOT NULL AND nextState IS NOT NULL)
        AND isfinite(coalesce(reward, 0)) AND metadata.provider IS NOT NULL
        AND isfinite(metadata.confidence) AND (result IS NULL OR (
            isfinite(result.pnl) AND isfinite(result.investment)
            AND isfinite(result.holdTimeMinutes) AND isfinite(agentStats.winRate))), false)
"""


@value
class Imported:
    """Numbers of rows written and rows that the store held already; the bad rows left out."""

    written: int
    known: int
    bad: tuple[str, ...]


def export_dataset(
    reader: StoreReader,
    folder: Path,
    window_ids: Collection[str] | None = None,
    run_dir: Path | None = None,
) -> int:
    """Write the decisions of these windows (None: all) into a new ``folder``; returns how many.

    run_dir: of scores and metrics to write, too. Raises RlforgeError if the folder exists already
    or there is nothing to write. After any error, no part of the export is left.
    """
    if folder.exists():
        raise RlforgeError(f"{folder} exists already; name a folder that does not")
    with full_disk_explained(folder), atomic_path(folder) as work:
        (work / "data").mkdir(parents=True)
        wanted = [w for w in reader.window_ids() if window_ids is None or w in window_ids]
        paths = None if run_dir is None else RunPaths(root=run_dir)
        tables = (
            _exported(reader.rows((one,)), None if paths is None else paths.scores(one))
            for one in wanted
        )
        rows = _write_files(tables, work / "data")
        if not rows:
            raise RlforgeError(f"{reader.layout.root} has no decisions to export")
        metrics = (
            [r for r in read_jsonl(paths.windows) if r["window_id"] in wanted] if paths else []
        )
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

    All are checked before any is written. Raises RlforgeError that names bad rows by file and
    number, unless ``skip_bad``, and where no parquet file can be read.
    """
    checked = list(_check(folder))
    bad = tuple(problem for batch in checked for problem in batch.bad)
    if bad and not skip_bad:
        more = f"\nand {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise RlforgeError(
            f"{folder}: {len(bad)} bad rows, nothing was imported; mend them or leave them out "
            "(--skip-bad)\n" + "\n".join(bad[:_NAMED]) + more
        )
    written = good = 0
    held = DECISIONS.empty_table()
    for (_, batch), found in zip(_batches(folder), checked, strict=True):
        rows = pa.concat_tables([held, found.rows(batch)])
        good += len(rows) - len(held)
        held = rows
        if len(rows):
            # The last window may go on in the next batch: a window is written fastest as a whole.
            last = pc.equal(rows["windowId"], rows["windowId"][-1])
            written += store.append_table(rows.filter(pc.invert(last)))
            held = rows.filter(last)
    written += store.append_table(held)
    return Imported(written=written, known=good - written, bad=bad)


# ---------------------------------------------------------------- export


def _exported(rows: pa.Table, scores: Path | None) -> pa.Table:
    """Rows of the store as those of a dataset, with the scores in that file."""
    dates = [calendar_date(moment) for moment in rows["timestamp"].to_pylist()]
    columns = {name: rows[name] for name in DECISIONS.names} | {"timestamp": pa.array(dates, _DATE)}
    known = (read_json(scores) or {}).get("scores", {}) if scores is not None else {}
    scored = [known.get(one, {}) for one in rows["id"].to_pylist()]
    for name, kind in _SCORED:
        columns[name] = pa.array([one.get(name) for one in scored], kind)
    return pa.table(columns).cast(_SCHEMA)


def _write_files(tables: Iterator[pa.Table], folder: Path) -> int:
    """Files of about ``_FILE_ROWS`` rows each, windows in order of time; returns the row count."""
    sizes: list[int] = []
    writer = None
    for table in tables:
        if writer is None:
            writer = pq.ParquetWriter(folder / f"{len(sizes)}.parquet", _SCHEMA, compression="zstd")
            sizes.append(0)
        writer.write_table(table)
        sizes[-1] += len(table)
        if sizes[-1] >= _FILE_ROWS:
            writer.close()
            writer = None
    if writer is not None:
        writer.close()
    for number in range(len(sizes)):
        (folder / f"{number}.parquet").rename(folder / _file_name(number, len(sizes)))
    return sum(sizes)


def _file_name(number: int, count: int) -> str:
    return f"train-{number:05d}-of-{count:05d}.parquet"


def _write_metrics(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """The lines of ``windows.jsonl``, a column each; objects as JSON."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        cells = [row.get(name) for row in rows]
        if any(isinstance(cell, dict | list) for cell in cells):
            columns[name] = pa.array([cell and json.dumps(cell) for cell in cells], pa.json_())
        else:
            columns[name] = pa.array(cells)
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / _file_name(0, 1), compression="zstd")


def _card(rows: int, windows: int) -> str:
    def files(name: str, folder: str) -> dict[str, Any]:
        places = [{"split": "train", "path": f"{folder}/*.parquet"}]
        return {"config_name": name, "data_files": places}

    sizes = {1e3: "n<1K", 1e4: "1K<n<10K", 1e5: "10K<n<100K", 1e6: "100K<n<1M", 1e7: "1M<n<10M"}
    head = {
        "pretty_name": "Decisions of agents",
        "task_categories": ["reinforcement-learning"],
        "tags": ["rlforge", "trajectories"],
        "size_categories": [next((sizes[most] for most in sizes if rows < most), "n>10M")],
        "configs": [
            files("default", "data") | {"default": True},
            *([files("windows", "windows")] if windows else []),
        ],
    }
    table = "\n".join(f"| `{name}` | {_ABOUT[name]} |" for name in _SCHEMA.names)
    metrics = 'windows = load_dataset("FOLDER", "windows")  # metrics of each window\n'
    return (
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n# Decisions of agents\n\n"
        f"{rows:,} decisions, one per row, written by rlforge.\n\n"
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


@value
class _Checked:
    """Places of the rows of a batch that may be stored as they are, and that were read one by one.

    bad: what is wrong with the others, by file and number.
    """

    sound: pa.Array
    odd: tuple[int, ...]
    bad: tuple[str, ...]

    def rows(self, batch: pa.RecordBatch) -> pa.Table:
        """The good rows of ``batch`` as ``DECISIONS``."""
        decisions = [_read(batch, place)[0] for place in self.odd]
        rows = [decision_row(decision) for decision in decisions if decision is not None]
        odd = pa.Table.from_pylist(rows, schema=DECISIONS)
        if not len(self.sound):
            return odd
        table = _as_stored(batch)
        whole = len(self.sound) == len(table)
        return table if whole else pa.concat_tables([table.take(self.sound), odd])


def _batches(folder: Path) -> Iterator[tuple[str, pa.RecordBatch]]:
    """All rows, some thousand at a time, with the file that holds them."""
    for path in dataset_files(folder):
        try:
            for batch in pq.ParquetFile(path).iter_batches(_BATCH_ROWS):
                yield str(path.relative_to(folder)), batch
        except (pa.ArrowException, OSError) as error:
            raise RlforgeError(f"{path} cannot be read: {error}") from error


def _check(folder: Path) -> Iterator[_Checked]:
    """Each batch of ``_batches``; rows as an export writes them are checked by columns."""
    seen: set[tuple[str, str]] = set()
    last, number = "", 0
    for file, batch in _batches(folder):
        number, last = number if file == last else 0, file
        as_exported = batch.schema.remove_metadata().equals(_SCHEMA)
        candidates = _sound(_as_stored(batch)) if as_exported else {}
        sound: list[int] = []
        odd: list[int] = []
        bad: list[str] = []
        for place in range(len(batch)):
            name, problem = candidates.get(place), ""
            if name is None:
                decision, problem = _read(batch, place)
                name = None if decision is None else (decision.window_id, decision.id)
            if name is None or name in seen:
                problem = problem if name is None else f"id {name[1]} occurs twice"
                bad.append(f"{file} row {number + place + 1}: {problem}")
            else:
                (sound if place in candidates else odd).append(place)
                seen.add(name)
        number += len(batch)
        yield _Checked(sound=pa.array(sound, pa.int64()), odd=tuple(odd), bad=tuple(bad))


def _as_stored(batch: pa.RecordBatch) -> pa.Table:
    """Rows of an export as ``DECISIONS``."""
    columns = {}
    for name in DECISIONS.names:
        column = batch.column(name)
        if name in _JSON:
            column = column.storage
        elif name == "timestamp":
            column = pc.divide(pc.cast(pc.cast(column, pa.int64()), pa.float64()), 1e6)
        columns[name] = column
    return pa.table(columns).cast(DECISIONS)


def _sound(table: pa.Table) -> dict[int, tuple[str, str]]:
    """Window and id of the rows that may be stored as they are, by place."""
    rows = table.append_column("place", pa.array(range(len(table))))
    with duckdb.connect(":memory:") as database:
        database.register("rows", rows)
        found = database.sql(_SOUND).fetchall()
    times = {window_id for window_id in {row[1] for row in found} if _is_time(window_id)}
    return {place: (window_id, one) for place, window_id, one in found if window_id in times}


def _is_time(window_id: str) -> bool:
    try:
        window_start(window_id)
    except RlforgeError:
        return False
    return True


def _read(batch: pa.RecordBatch, place: int) -> tuple[Decision | None, str]:
    """The decision in a row, or what is wrong with it."""
    row: Mapping[str, Any] = batch.slice(place, 1).to_pylist()[0]
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
    return decision, ""


def _seconds(timestamp: Any) -> float:
    """Seconds since 1970 UTC of a number, a date, or its ISO form; without a zone it is UTC."""
    if isinstance(timestamp, int | float):
        return float(timestamp)
    date = datetime.fromisoformat(timestamp) if isinstance(timestamp, str) else timestamp
    if not isinstance(date, datetime):
        raise RlforgeError(f"timestamp {timestamp!r} is not a date")
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
