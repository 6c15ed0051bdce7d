"""Base of the preference and the regression scorer, which learn from past windows."""

from __future__ import annotations

import abc
import logging
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from rlforge.continuous.config.ruler import RulerConfig
from rlforge.continuous.decisions.records import Decision, TrainingWindow
from rlforge.continuous.ruler.agreement import Floats, agreement, pooled
from rlforge.continuous.ruler.base import (
    DecisionScores,
    finished,
    finite_rewards,
    nothing_to_compare,
    undecided,
    window_of,
)
from rlforge.continuous.ruler.features import STATE_ACTION, feature_names, featurize
from rlforge.errors import CheckpointError
from rlforge.system.files import atomic_path
from rlforge.types import value

log = logging.getLogger(__name__)

_FORMAT = 1

#: Decisions remembered of each window; drawn by seed where there are more.
MEMORY_ROWS = 1000


@value
class LearnedWindow:
    """A learned window. features: shape [decisions, features]. rewards: [decisions]."""

    id: str
    features: Floats
    rewards: Floats


class WindowMemory:
    """The newest ``windows`` windows that were learned, at most ``rows`` decisions of each."""

    def __init__(self, names: Sequence[str], *, windows: int, rows: int, seed: int) -> None:
        self.names = tuple(names)
        self._most_windows, self._most_rows, self._seed = windows, rows, seed
        self.windows: tuple[LearnedWindow, ...] = ()

    def knows(self, window_id: str) -> bool:
        return any(window.id == window_id for window in self.windows)

    def add(self, window: LearnedWindow) -> bool:
        """Remember a window; returns whether it is new and has rows."""
        if not len(window.rewards) or self.knows(window.id):
            return False
        if len(window.rewards) > self._most_rows:
            # Seeded by the window, so that the draw does not depend on what was learned before.
            draw = np.random.default_rng([self._seed, zlib.crc32(window.id.encode())])
            kept = np.sort(draw.choice(len(window.rewards), self._most_rows, replace=False))
            features, rewards = window.features[kept], window.rewards[kept]
            window = LearnedWindow(id=window.id, features=features, rewards=rewards)
        every = sorted([*self.windows, window], key=lambda one: one.id)
        self.windows = tuple(every[-self._most_windows :])
        return True

    def save(self, path: Path) -> bool:
        """Write ``path``, whole or not at all; returns whether it was written, and logs why not."""
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
            log.error(
                "the scorer's memory cannot be written to %s (%s); make room, or name another "
                "ruler.model_path",
                path,
                error,
            )
            return False
        return True

    def load(self, path: Path) -> None:
        """Read ``path``. Raises CheckpointError if it is damaged or of other features."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                kind = int(stored["format"])
                names = tuple(str(name) for name in stored["names"])
                ids, counts = stored["ids"], stored["counts"]
                features, rewards = stored["features"], stored["rewards"]
        except Exception as error:
            # A damaged archive raises many kinds of errors.
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


class LearnedScorer(abc.ABC):
    """A model over features, fitted to the windows in its memory, which ``ruler.model_path`` keeps.

    Before the first window, decisions are scored by their own window's outcomes. local: not used;
    all scorers are made alike.
    """

    #: Name of the state file under ``ruler.model_path``.
    file_name: ClassVar[str]

    def __init__(self, config: RulerConfig, seed: int = 0, local: object = None) -> None:
        self.config, self.seed = config, seed
        self.memory = WindowMemory(
            feature_names(config.features),
            windows=config.memory_windows,
            rows=MEMORY_ROWS,
            seed=seed,
        )
        self._path = Path(config.model_path) / self.file_name if config.model_path else None
        if self._path is not None and self._path.is_file():
            self.memory.load(self._path)
        self._saved = self.memory.windows
        self._fitted: tuple[LearnedWindow, ...] | None = None

    async def score(self, decisions: Sequence[Decision]) -> DecisionScores:
        if reason := nothing_to_compare(decisions, self.config.min_agents):
            return undecided(decisions, reason, {})
        features, count = featurize(decisions, self.config.features), len(decisions)
        judged = self.judge(features, finite_rewards(decisions))
        if judged is None:
            why = "no window was learned so far, and too few outcomes of this one are known"
            log.warning("%s: %d decisions unscored: %s", window_of(decisions), count, why)
            judged = DecisionScores(values=(None,) * count, explanations=(why,) * count, metrics={})
        metrics = {"learned_windows": float(len(self.memory.windows)), **judged.metrics}
        return finished(decisions, judged.values, judged.explanations, metrics)

    def learn(self, windows: Sequence[TrainingWindow]) -> Mapping[str, float]:
        """See ``DecisionScorer``. ``state_saved`` is 0 where the state file cannot be written."""
        new = [self._learnable(one) for one in windows if not self.memory.knows(one.id)]
        forecasts = []
        if self.config.features == STATE_ACTION:
            for one in new:
                # A forecast: rewards are hidden, and features of this kind hold no outcomes.
                judged = self.judge(one.features, [None] * len(one.rewards))
                if judged is not None and len(one.rewards) > 1:
                    forecasts.append(agreement(judged.values, one.rewards.tolist()))
        added = sum(self.memory.add(one) for one in new)
        # Where it cannot be written, the next call tries again.
        newest = self.memory.windows
        if self._path is not None and self._saved is not newest and self.memory.save(self._path):
            self._saved = newest
        return {
            "learned_windows": float(len(self.memory.windows)),
            "learned_decisions": float(sum(len(one.rewards) for one in self.memory.windows)),
            "newly_learned": float(added),
            "state_saved": float(self._path is None or self._saved is self.memory.windows),
            **pooled(forecasts).metrics("forecast_"),
        }

    def _learnable(self, window: TrainingWindow) -> LearnedWindow:
        given = zip(window.decisions, finite_rewards(window.decisions), strict=True)
        known = [(decision, reward) for decision, reward in given if reward is not None]
        return LearnedWindow(
            id=window.id,
            features=featurize([decision for decision, _ in known], self.config.features),
            rewards=np.array([reward for _, reward in known], dtype=np.float64),
        )

    async def close(self) -> None:  # noqa: B027  # most scorers have no connections
        """See ``DecisionScorer``."""

    def judge(self, features: Floats, rewards: Sequence[float | None]) -> DecisionScores | None:
        """The scores of rows of features; None without a model and enough rewards."""
        self._fit_once()
        return self._judge(features, rewards)

    def _fit_once(self) -> None:
        # All of the memory, so that a state is a function of memory and configuration alone.
        if self._fitted is not self.memory.windows:
            self._fit()
            self._fitted = self.memory.windows

    @abc.abstractmethod
    def _fit(self) -> None:
        """Fit the model to the memory, or drop it if there is too little to learn from."""

    @abc.abstractmethod
    def _judge(self, features: Floats, rewards: Sequence[float | None]) -> DecisionScores | None:
        """See ``judge``; the model is fitted."""
