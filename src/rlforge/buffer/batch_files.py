"""Drawn batches as parquet files: one file a batch, one row a step."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rlforge.system.files import atomic_path
from rlforge.types import Step, TrainBatch

#: One column per field of ``Step``; ``info`` is JSON text.
SCHEMA = pa.schema(
    [
        ("game_id", pa.string()),
        ("env_id", pa.string()),
        ("player_id", pa.int32()),
        ("group_id", pa.string()),
        ("turn_index", pa.int32()),
        ("last_turn", pa.bool_()),
        ("observation", pa.string()),
        ("action", pa.string()),
        ("prompt_token_ids", pa.list_(pa.int32())),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float64())),
        ("raw_reward", pa.float64()),
        ("reward", pa.float64()),
        ("outcome_reward", pa.float64()),
        ("policy_uid", pa.string()),
        ("policy_version", pa.int64()),
        ("info", pa.string()),
    ]
)
_BATCH_FIELDS = ("whole_episodes", "min_version", "max_version", "dropped_stale")
_BATCH_KEY = b"rlforge.batch"


def write_batch(path: Path, batch: TrainBatch) -> None:
    """Write ``batch`` to ``path``, whole or not at all; makes the folder.

    The fields of the batch itself are in the file's metadata. Raises OSError as the disk does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [getattr(step, name) for step in batch.steps] for name in SCHEMA.names}
    columns["info"] = [json.dumps(dict(step.info)) for step in batch.steps]
    about = json.dumps({name: getattr(batch, name) for name in _BATCH_FIELDS})
    table = pa.table(columns, schema=SCHEMA.with_metadata({_BATCH_KEY: about.encode()}))
    with atomic_path(path) as work:
        pq.write_table(table, work, compression="zstd")


def read_batch(path: Path) -> TrainBatch:
    """The batch that ``write_batch`` wrote, field for field."""
    table = pq.read_table(path)
    steps = []
    for row in table.to_pylist():
        for name in ("prompt_token_ids", "token_ids", "logprobs"):
            row[name] = tuple(row[name])
        steps.append(Step(**{**row, "info": json.loads(row["info"])}))
    return TrainBatch(steps=tuple(steps), **json.loads(table.schema.metadata[_BATCH_KEY]))
