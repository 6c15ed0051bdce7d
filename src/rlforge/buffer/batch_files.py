"""Drawn batches as parquet files: one file a batch, one row a step."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rlforge.system.files import atomic_path
from rlforge.system.values import Codec
from rlforge.types import Step, TrainBatch

_STEPS = Codec(Step)
#: One column per field of ``Step``; ``info`` is JSON text.
SCHEMA = pa.schema(_STEPS.arrow_type)
_BATCH_FIELDS = ("whole_episodes", "min_version", "max_version", "dropped_stale")
_BATCH_KEY = b"rlforge.batch"


def write_batch(path: Path, batch: TrainBatch) -> None:
    """Write ``batch`` to ``path``, whole or not at all; makes the folder.

    The fields of the batch itself are in the file's metadata. Raises OSError as the disk does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    about = json.dumps({name: getattr(batch, name) for name in _BATCH_FIELDS})
    schema = SCHEMA.with_metadata({_BATCH_KEY: about.encode()})
    table = pa.Table.from_pylist([_STEPS.encode(step) for step in batch.steps], schema)
    with atomic_path(path) as work:
        pq.write_table(table, work, compression="zstd")


def read_batch(path: Path) -> TrainBatch:
    """The batch that ``write_batch`` wrote, field for field."""
    table = pq.read_table(path)
    steps = tuple(map(_STEPS.decode, table.to_pylist()))
    return TrainBatch(steps=steps, **json.loads(table.schema.metadata[_BATCH_KEY]))
