"""Scorers that learn from past windows: what the preference and the regression scorer share."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rlforge.config.ruler import RulerConfig
from rlforge.ruler.base import Scores
from rlforge.ruler.comparison import (
    finished,
    finite_rewards,
    nothing_to_compare,
    undecided,
    unscored,
)
from rlforge.ruler.features import feature_names, featurize
from rlforge.ruler.memory import Memory
from rlforge.trajectories.records import Decision, TrainingWindow
from rlforge.types import value

Floats = NDArray[np.float64]


@value
class Judgement:
    """values, explanations: one per decision; metrics: of the model and what it saw."""

    values: Floats
    explanations: Sequence[str]
    metrics: Mapping[str, float]


@value
class Scale:
    """Mean and standard deviation of each feature (1 where it never changes)."""

    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, features: Floats) -> Scale:
        """The scale of rows of features."""
        deviation = features.std(axis=0)
        return cls(mean=features.mean(axis=0), deviation=np.where(deviation > 1e-9, deviation, 1.0))

    def standardise(self, features: Floats) -> Floats:
        """The features with mean 0 and deviation 1, where they are like those of the scale."""
        scaled: Floats = (features - self.mean) / self.deviation
        return scaled


class LearnedScorer(abc.ABC):
    """A model over features, fitted to the windows in its memory.

    With ``ruler.model_path`` the memory is read from there and written back whenever a window
    was learned. A scorer without a model judges a window by the window's own outcomes; where it
    has neither, the decisions stay unscored.
    """

    #: Name of the state file under ``ruler.model_path``.
    file_name: ClassVar[str]

    def __init__(self, config: RulerConfig, *, seed: int = 0) -> None:
        self.config, self.seed = config, seed
        self.memory = Memory(
            feature_names(config.features),
            windows=config.memory_windows,
            rows=config.memory_rows,
            seed=seed,
        )
        self._path = Path(config.model_path) / self.file_name if config.model_path else None
        if self._path is not None and self._path.is_file():
            self.memory.load(self._path)
        self._fitted = False

    async def score(self, decisions: Sequence[Decision]) -> Scores:
        """See ``Scorer``."""
        return self.score_now(decisions)

    def score_now(self, decisions: Sequence[Decision]) -> Scores:
        """The same, outside an event loop."""
        if reason := nothing_to_compare(decisions, self.config.min_agents):
            return undecided(decisions, reason)
        self._fit_once()
        rewards = finite_rewards(decisions)
        judged = self._judge(featurize(decisions, self.config.features), rewards)
        metrics = {"learned_windows": float(len(self.memory.windows))}
        if judged is None:
            reason = "no window was learned so far, and too few outcomes of this one are known"
            return unscored(decisions, reason, metrics)
        values = [float(score) for score in judged.values]
        return finished(decisions, values, judged.explanations, {**metrics, **judged.metrics})

    def learn(self, windows: Sequence[TrainingWindow]) -> Mapping[str, float]:
        """See ``Scorer``. The state file is replaced whole: a crash leaves the old or the new."""
        added = sum(self._remember(window) for window in windows)
        if added:
            self._fitted = False
            if self._path is not None:
                self.memory.save(self._path)
        rows = sum(len(window.rewards) for window in self.memory.windows)
        return {
            "learned_windows": float(len(self.memory.windows)),
            "learned_decisions": float(rows),
            "newly_learned": float(added),
        }

    async def close(self) -> None:  # noqa: B027  # nothing to give back is the common case
        """Nothing to give back."""

    def _remember(self, window: TrainingWindow) -> bool:
        known = [
            (decision, reward)
            for decision, reward in zip(
                window.trajectories, finite_rewards(window.trajectories), strict=True
            )
            if reward is not None
        ]
        features = featurize([decision for decision, _ in known], self.config.features)
        return self.memory.add(window.id, features, np.array([reward for _, reward in known]))

    def _fit_once(self) -> None:
        if not self._fitted:
            self._fit(self.memory)
            self._fitted = True

    @abc.abstractmethod
    def _fit(self, memory: Memory) -> None:
        """Fit the model to all of ``memory``, or forget it where there is nothing to learn."""

    @abc.abstractmethod
    def _judge(self, features: Floats, rewards: Sequence[float | None]) -> Judgement | None:
        """Score rows of features, shape [n, features]; None without a model and outcomes."""
