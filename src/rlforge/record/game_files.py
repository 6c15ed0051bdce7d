"""Finished games on disk, in small chunks: ``games/NAME-NUMBER.parquet``, a row per game."""

from __future__ import annotations

import dataclasses
import marshal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlforge.record.files import RunPaths, numbered
from rlforge.system.files import atomic_path, reading
from rlforge.system.values import Codec
from rlforge.types import EndReason, GameRecord, GameSpec, Purpose, value

_GAMES = Codec(GameRecord)


@cache
def _schema() -> Any:
    # pyarrow is imported where it is used: it takes a quarter second that few commands need.
    import pyarrow as pa

    # Further columns than the fields of ``GameRecord``, to list games without reading turns.
    index = {
        "game_id": pa.string(),
        "env_id": pa.string(),
        "purpose": pa.string(),
        "num_turns": pa.int64(),
        "written_at": pa.float64(),
    }
    return pa.schema([*index.items(), *_GAMES.arrow_type])


class GameWriter:
    """Writes chunks of ``chunk_games`` games, or less once the first is ``chunk_seconds`` old.

    Writers of one run need different names.
    """

    def __init__(
        self,
        run_dir: Path | str,
        name: str = "games",
        chunk_games: int = 128,
        chunk_seconds: float = 20.0,
    ) -> None:
        self._folder = RunPaths(root=Path(run_dir)).games
        self._folder.mkdir(parents=True, exist_ok=True)
        self._name = name
        self._chunk_games = chunk_games
        self._chunk_seconds = chunk_seconds
        self._rows: list[dict[str, Any]] = []
        self._oldest = 0.0
        # A resumed run goes on behind its files: none is overwritten.
        taken = (number for number, _ in numbered(self._folder.glob(f"{name}-*.parquet")))
        self._next = max(taken, default=0) + 1

    def add(self, records: Iterable[GameRecord]) -> None:
        for record in records:
            if not self._rows:
                self._oldest = time.monotonic()
            about = {
                "game_id": record.spec.game_id,
                "env_id": record.spec.env_id,
                "purpose": record.spec.purpose,
                "num_turns": len(record.turns),
                "written_at": time.time(),
            }
            self._rows.append({**about, **_GAMES.encode(record)})
            if len(self._rows) >= self._chunk_games:
                self.flush()
        self.tick()

    def tick(self) -> None:
        """Write the gathered games if they are old enough."""
        if self._rows and time.monotonic() - self._oldest >= self._chunk_seconds:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self._folder / f"{self._name}-{self._next:06d}.parquet"
        columns = {name: [row[name] for row in self._rows] for name in _schema().names}
        table = pa.table(columns, _schema())
        with atomic_path(path) as work:  # a reader never sees half of it
            pq.write_table(table, work, compression="zstd")
        self._next += 1
        self._rows = []

    @property
    def written(self) -> int:
        """Number of the newest file of this name; 0: none."""
        return self._next - 1

    def rewind(self, number: int) -> None:
        """Delete the files after ``number``, and what is gathered."""
        for made, path in numbered(self._folder.glob(f"{self._name}-*.parquet")):
            if made > number:
                path.unlink()
        self._rows, self._next = [], number + 1

    def close(self) -> None:
        self.flush()


def _chunks(run_dir: Path | str) -> list[Path]:
    folder = RunPaths(root=Path(run_dir)).games
    return [path for _, path in numbered(folder.glob("*-*.parquet"))]


def _rows_of(
    chunk: Path,
    columns: Sequence[str] | None = None,
    wanted: Callable[[Mapping[str, Any]], bool] | None = None,
) -> list[dict[str, Any]]:
    """Rows of a chunk. wanted: judges each by its ``game_id`` and ``purpose``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(chunk) as file:
        if wanted is None:
            table = file.read(columns)
        else:  # most chunks have none, and their turns need not be read
            found = [wanted(row) for row in file.read(["game_id", "purpose"]).to_pylist()]
            if not any(found):
                return []
            table = file.read(columns).filter(pa.array(found))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


#: What a user can do about a damaged chunk.
_MEND = "move it away to read the other games"


def read_games(
    run_dir: Path | str, game_ids: Collection[str] | None = None, purpose: Purpose | None = None
) -> Iterator[GameRecord]:
    """The finished games of these ids and this purpose, oldest first; DamagedError if damaged."""
    if game_ids is not None and not game_ids:
        return  # nothing is wanted: no file is opened
    ids = None if game_ids is None else {*game_ids}

    def wanted(row: Mapping[str, Any]) -> bool:
        return (ids is None or row["game_id"] in ids) and purpose in (None, row["purpose"])

    for chunk in _chunks(run_dir):
        with reading(chunk, _MEND):
            games = [_GAMES.decode(row) for row in _rows_of(chunk, wanted=wanted)]
        yield from games


@value
class GameIndex:
    """A finished game without its turns."""

    spec: GameSpec
    num_turns: int
    rewards: Mapping[int, float]
    end_reason: EndReason
    invalid_by: int | None
    error: str | None
    written_at: float


def index_games(run_dir: Path | str) -> list[GameIndex]:
    """All finished games without turns and ``spec.past``, oldest first.

    Raises DamagedError for a damaged file.
    """
    own = ("game_id", "seed", "group_id")
    # Reading past turns would undo what reading no turns saves.
    parts = [field.name for field in dataclasses.fields(GameSpec) if field.name != "past"]
    others = [field.name for field in dataclasses.fields(GameIndex) if field.name != "spec"]
    columns, specs = [*(f"spec.{part}" for part in parts), *others], Codec(GameSpec)
    # Thousands of games have all but their ``own`` in common: it is decoded once.
    decoded: dict[bytes, GameSpec] = {}

    def indexed(row: dict[str, Any]) -> GameIndex:
        spec, rewards = row.pop("spec"), dict(row.pop("rewards"))
        common = marshal.dumps({name: part for name, part in spec.items() if name not in own})
        if common not in decoded:
            decoded[common] = specs.decode(spec)
        spec = dataclasses.replace(decoded[common], **{name: spec[name] for name in own})
        return GameIndex(spec=spec, rewards=rewards, **row)

    index: list[GameIndex] = []
    for chunk in _chunks(run_dir):
        with reading(chunk, _MEND):
            index += map(indexed, _rows_of(chunk, columns))
    return sorted(index, key=lambda game: game.written_at)
