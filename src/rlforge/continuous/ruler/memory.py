"""The features and rewards of past windows that scorers learn from, in memory and in one file."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlforge.continuous.ruler.pairs import Floats
from rlforge.errors import CheckpointError
from rlforge.system.files import atomic_path
from rlforge.types import value

_FORMAT = 1


@value
class LearnedWindow:
    """A learned window. features: one row per decision, shape [n, features]; rewards: [n]."""

    id: str
    features: Floats
    rewards: Floats


class WindowMemory:
    """The newest ``windows`` windows that were learned, at most ``rows`` decisions of each.

    Models are refitted to all of it: a scorer's state is a function of memory and configuration.
    """

    def __init__(self, names: Sequence[str], *, windows: int, rows: int, seed: int) -> None:
        self.names = tuple(names)
        self._most_windows, self._most_rows, self._seed = windows, rows, seed
        self.windows: tuple[LearnedWindow, ...] = ()

    def knows(self, window_id: str) -> bool:
        """Whether the window is remembered."""
        return any(window.id == window_id for window in self.windows)

    def add(self, window: LearnedWindow) -> bool:
        """Remember a window; False if it is known already or has no rows."""
        if not len(window.rewards) or self.knows(window.id):
            return False
        if len(window.rewards) > self._most_rows:
            draw = np.random.default_rng([self._seed, zlib.crc32(window.id.encode())])
            kept = np.sort(draw.choice(len(window.rewards), self._most_rows, replace=False))
            features, rewards = window.features[kept], window.rewards[kept]
            window = LearnedWindow(id=window.id, features=features, rewards=rewards)
        every = sorted([*self.windows, window], key=lambda one: one.id)
        self.windows = tuple(every[-self._most_windows :])
        return True

    def save(self, path: Path) -> None:
        """Write the memory to ``path``, whole or not at all. Raises CheckpointError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path, durable=True) as work, work.open("wb") as file:
                empty = np.zeros((0, len(self.names)))
                np.savez_compressed(
                    file,
                    format=np.array(_FORMAT),
                    names=np.array(self.names),
                    ids=np.array([one.id for one in self.windows], dtype=np.str_),
                    counts=np.array([len(one.rewards) for one in self.windows], dtype=np.int64),
                    features=np.concatenate([empty, *(one.features for one in self.windows)]),
                    rewards=np.concatenate([empty[:, 0], *(one.rewards for one in self.windows)]),
                )
        except OSError as error:
            raise CheckpointError(
                f"the scorer's memory cannot be written to {path} ({error}); make room, or "
                "name another ruler.model_path"
            ) from error

    def load(self, path: Path) -> None:
        """Read ``path``. Raises CheckpointError if it is damaged or of other features."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                kind = int(stored["format"])
                names = tuple(str(name) for name in stored["names"])
                ids, counts = stored["ids"], stored["counts"]
                features, rewards = stored["features"], stored["rewards"]
        except Exception as error:  # a damaged archive raises many kinds of errors
            raise CheckpointError(
                f"{path} is not a readable state of a scorer ({type(error).__name__}: {error}); "
                "remove it to start without a memory, or name another ruler.model_path"
            ) from error
        if kind != _FORMAT or names != self.names:
            raise CheckpointError(
                f"{path} was learned from other features (format {kind}, {len(names)} features; "
                f"here format {_FORMAT}, {len(self.names)}); set ruler.features as it was, name "
                "another ruler.model_path, or remove the file to start without a memory"
            )
        ends = np.cumsum(counts)
        self.windows = tuple(
            LearnedWindow(id=str(name), features=features[start:end], rewards=rewards[start:end])
            for name, start, end in zip(ids, ends - counts, ends, strict=True)
        )[-self._most_windows :]
