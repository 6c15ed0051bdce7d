"""The digest chain of a run: a line per update, with its digest and that of the line before.

The first line, of step 0, says what computed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.record.files import JsonlFile, read_jsonl
from rlforge.samples import Sample, TrainBatch
from rlforge.system.checkpoint import is_step_name
from rlforge.system.hardware import describe, versions
from rlforge.system.values import json_ready, to_json
from rlforge.types import GameRecord

# All but how the reward came about. An attrgetter, because each update reads thousands.
_fields = (field.name for field in dataclasses.fields(Sample))
_contents = attrgetter(*(name for name in _fields if name not in ("rewards", "before_baseline")))

FILE = "digests.jsonl"


def digest_of(content: Any) -> str:
    """The SHA-256 of plain data as JSON with sorted keys and all digits, in hexadecimal.

    Example:
        >>> digest_of({"b": 1, "a": [0.5]}) == digest_of({"a": [0.5], "b": 1})
        True
    """
    text = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=json_ready
    )
    # A lone surrogate, which a player can send, becomes a question mark, as in files.
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def digest_of_games(records: Iterable[GameRecord]) -> str:
    rows = [to_json(record) for record in records]
    for row in rows:
        # Runs that compute the same differ in durations, and in their run directory, which is in
        # the path of each version that they saved.
        del row["duration_s"]
        for seat in row["spec"]["seats"]:
            if is_step_name(seat["policy"]["uid"]):
                seat["policy"]["path_or_name"] = None
    return digest_of(rows)


def moved(data: Any, old: str, new: str) -> Any:
    """Plain data with the paths in ``old`` as paths in ``new``.

    Example:
        >>> moved([{"uid": "step-1", "path": "runs/a/checkpoints/step-1"}], "runs/a", "runs/b")
        [{'uid': 'step-1', 'path': 'runs/b/checkpoints/step-1'}]
    """
    if isinstance(data, dict):
        return {key: moved(each, old, new) for key, each in data.items()}
    if isinstance(data, list):
        return [moved(each, old, new) for each in data]
    inside = isinstance(data, str) and data.startswith(f"{old}/")
    return f"{new}{data[len(old) :]}" if inside else data


def digest_of_batch(batch: TrainBatch) -> str:
    return digest_of([batch.facts, list(map(_contents, batch.samples))])


def facts(config: PolicyConfig, hardware: HardwareConfig) -> dict[str, Any]:
    """Facts besides configuration and seed that can change a result. hardware: resolved."""
    # Other processors, threads or versions add in another order, which changes the last bits.
    machine = {name: describe()[name] for name in ("processor", "gpus")}
    used = {"device": hardware.device, "threads": hardware.threads}
    return {**versions(), **machine, **used, "determinism": "strict" if config.strict else "fast"}


class DigestChain:
    """The file of one run, for appending.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     chain = DigestChain(Path(folder))
        ...     chain.append(0, {"versions": {"torch": "2.11"}})
        ...     chain.append(1, {"batch": "9f…", "policy": "c2…"})
        ...     broken_at(read_jsonl(Path(folder) / FILE)) is None
        True
    """

    def __init__(self, run_dir: Path) -> None:
        self._file = JsonlFile(run_dir / FILE)
        self._read_last()

    def _read_last(self) -> None:
        rows = read_jsonl(self._file.path)
        self._last = rows[-1]["digest"] if rows else None
        #: Whether the last line is that of the last evaluation, behind all updates.
        self.final = bool(rows and rows[-1].get("final"))

    @property
    def begun(self) -> bool:
        return self._last is not None

    def append(self, step: int, parts: Mapping[str, Any]) -> None:
        """Add the line of an update; parts: digests and facts by name, JSON-ready."""
        # With the digest of the line before, none can be changed or left out unnoticed.
        row = {"step": step, **parts, "before": self._last}
        self._last, self.final = digest_of(row), bool(row.get("final"))
        row["digest"] = self._last
        self._file.append(row)

    def rewind(self, step: int) -> None:
        self._file.rewind(step)
        self._read_last()


def broken_at(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The step of the first line that does not follow from the one before; None: all do."""
    last = None
    for row in rows:
        content = {name: part for name, part in row.items() if name != "digest"}
        if row.get("before") != last or row.get("digest") != digest_of(content):
            return int(row["step"])
        last = row["digest"]
    return None
