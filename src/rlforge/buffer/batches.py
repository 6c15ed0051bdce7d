"""Drawn batches as files: a row per sample, a column per field of ``Sample``.

``.parquet`` keeps all types; ``.csv`` is for spreadsheets: lists are JSON text there. ``rewards``
and ``info`` are JSON text in both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from rlforge.errors import RunError
from rlforge.samples import Sample, TrainBatch
from rlforge.system.files import atomic_path, reading
from rlforge.system.values import Codec, writable
from rlforge.types import value

_SAMPLES = Codec(Sample)
#: Columns that tell people what was trained on, and its weight.
READABLE = {"prompt": pa.string(), "answer": pa.string(), "advantage": pa.float64()}
#: Readable columns, then one per field of ``Sample``.
SCHEMA = pa.schema([*READABLE.items(), *_SAMPLES.arrow_type])
_LISTS = frozenset(field.name for field in SCHEMA if pa.types.is_list(field.type))
_BATCH_KEY = b"rlforge.batch"
#: Fields of the batch, as last columns of a CSV file: equal in every row.
_BATCH_COLUMNS = {
    f"batch_{name}": pa.bool_() if name == "whole_episodes" else pa.int64()
    for name in TrainBatch(samples=(), whole_episodes=False).facts
}

Decode = Callable[[Iterable[Sequence[int]]], list[str]]
"""Texts of sequences of token ids (``rlforge.models.load.load_decoder``)."""


@value
class ShownSample:
    """Sample with its whole prompt and answer as text, control tokens included.

    ``advantage`` is None where there was no update, as in supervised fine-tuning.
    """

    sample: Sample
    prompt: str
    answer: str
    advantage: float | None


def write_batch(
    path: Path,
    batch: TrainBatch,
    decode: Decode | None = None,
    advantages: Sequence[float] | None = None,
) -> None:
    """Write ``batch`` to ``path`` (``.parquet`` or ``.csv``), whole or not at all.

    Makes the folder. Without ``decode`` the texts, and without ``advantages`` these, are null.
    Parquet holds the batch's own fields in the file's metadata.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unknown = [None] * len(batch.samples)
    prompts, answers = (
        unknown
        if decode is None
        else map(writable, decode(getattr(each, ids) for each in batch.samples))
        for ids in ("prompt_token_ids", "token_ids")
    )
    columns = zip(prompts, answers, advantages or unknown, strict=True)
    rows = [
        dict(zip(READABLE, cells, strict=True)) | _SAMPLES.encode(sample)
        for cells, sample in zip(columns, batch.samples, strict=True)
    ]
    with atomic_path(path) as work:
        (_write_csv if path.suffix == ".csv" else _write_parquet)(work, rows, batch.facts)


def read_batch(path: Path) -> TrainBatch:
    """Batch that ``write_batch`` wrote, field for field; DamagedError where it is damaged."""
    with reading(path, "put a copy in its place"):
        rows, about = _read(path)
        return TrainBatch(
            samples=tuple(map(_SAMPLES.decode, rows)),
            whole_episodes=about["whole_episodes"],
            dropped_stale=about["dropped_stale"],
        )


def read_samples(path: Path) -> list[ShownSample]:
    """Samples that ``write_batch`` wrote, with their texts.

    Raises RunError where it wrote none, as in files of earlier versions, and DamagedError.
    """
    with reading(path, "name another update"):
        rows, _ = _read(path)
        if any(row.get("prompt") is None for row in rows):
            raise RunError(
                f"{path} has token ids only, no text of prompts and answers: it was written by an "
                "earlier version of rlforge"
            )
        return [
            ShownSample(sample=_SAMPLES.decode(row), **{name: row[name] for name in READABLE})
            for row in rows
        ]


_Rows = list[dict[str, Any]]


def _read(path: Path) -> tuple[_Rows, dict[str, Any]]:
    if path.suffix == ".csv":
        rows, about = _read_csv(path)
    else:
        table = pq.read_table(path)
        rows, about = table.to_pylist(), json.loads(table.schema.metadata[_BATCH_KEY])
    for row in rows:
        # Earlier versions learned from games only, and wrote the origin under this name.
        if "game_id" in row:
            row["origin"] = row.pop("game_id")
    return rows, about


def _write_parquet(path: Path, rows: _Rows, about: Mapping[str, Any]) -> None:
    schema = SCHEMA.with_metadata({_BATCH_KEY: json.dumps(about).encode()})
    # By column: ``from_pylist`` takes 1.5 times as long.
    table = pa.table({name: [row[name] for row in rows] for name in SCHEMA.names}, schema)
    pq.write_table(table, path, compression="zstd")


def _write_csv(path: Path, rows: _Rows, about: Mapping[str, Any]) -> None:
    def column(name: str) -> list[Any]:
        return [json.dumps(row[name]) if name in _LISTS else row[name] for row in rows]

    columns = {name: column(name) for name in SCHEMA.names}
    columns |= {f"batch_{name}": [fact] * len(rows) for name, fact in about.items()}
    pyarrow.csv.write_csv(pa.table(columns, _csv_schema()), path)


def _read_csv(path: Path) -> tuple[_Rows, dict[str, Any]]:
    schema = _csv_schema()
    table = pyarrow.csv.read_csv(
        path,
        # One block for the file, because a row with a long prompt does not fit into the usual one.
        read_options=pyarrow.csv.ReadOptions(block_size=max(1, path.stat().st_size)),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    rows = [
        {name: json.loads(cell) if name in _LISTS else cell for name, cell in row.items()}
        for row in table.to_pylist()
    ]
    return rows, {name.removeprefix("batch_"): rows[0][name] for name in _BATCH_COLUMNS}


def _csv_schema() -> Any:
    texts = [(f.name, pa.string() if f.name in _LISTS else f.type) for f in SCHEMA]
    return pa.schema([*texts, *_BATCH_COLUMNS.items()])
