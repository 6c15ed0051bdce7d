"""Base of the preference and the regression scorer, which learn from past windows."""

from __future__ import annotations

import abc
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from rlforge.continuous.config.ruler import RulerConfig
from rlforge.continuous.decisions.records import Decision, TrainingWindow
from rlforge.continuous.ruler.agreement import agreement, pooled
from rlforge.continuous.ruler.base import (
    DecisionScores,
    finished,
    finite_rewards,
    nothing_to_compare,
    undecided,
    unscored,
)
from rlforge.continuous.ruler.features import STATE_ACTION, feature_names, featurize
from rlforge.continuous.ruler.judge_backends import LocalModel
from rlforge.continuous.ruler.memory import LearnedWindow, WindowMemory
from rlforge.continuous.ruler.pairs import Floats
from rlforge.errors import CheckpointError
from rlforge.types import value

log = logging.getLogger(__name__)

#: Decisions remembered of each window; drawn by seed where there are more.
MEMORY_ROWS = 1000


@value
class Judgement:
    """A value and an explanation per decision, and metrics of the model and its data."""

    values: Floats
    explanations: Sequence[str]
    metrics: Mapping[str, float]


class LearnedScorer(abc.ABC):
    """A model over features, fitted to the windows in its memory, which ``ruler.model_path`` keeps.

    Before the first window, decisions are scored by the window's own outcomes.
    """

    #: Name of the state file under ``ruler.model_path``.
    file_name: ClassVar[str]

    def __init__(self, config: RulerConfig, seed: int = 0, local: LocalModel | None = None) -> None:
        """local: not used; it is what a judge may ask."""
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
        """See ``DecisionScorer``."""
        if reason := nothing_to_compare(decisions, self.config.min_agents):
            return undecided(decisions, reason)
        rewards = finite_rewards(decisions)
        judged = self.judge(featurize(decisions, self.config.features), rewards)
        metrics = {"learned_windows": float(len(self.memory.windows))}
        if judged is None:
            reason = "no window was learned so far, and too few outcomes of this one are known"
            return unscored(decisions, reason, metrics)
        values = [float(score) for score in judged.values]
        return finished(decisions, values, judged.explanations, {**metrics, **judged.metrics})

    def learn(self, windows: Sequence[TrainingWindow]) -> Mapping[str, float]:
        """See ``DecisionScorer``. The state file is replaced in one step.

        If it cannot be written (``state_saved`` 0), that is logged, and the next call tries again.
        """
        new = [self._learnable(one) for one in windows if not self.memory.knows(one.id)]
        forecasts = []
        if self.config.features == STATE_ACTION:
            for one in new:
                # Scores without these outcomes, which are in no other features.
                judged = self.judge(one.features, [None] * len(one.rewards))
                if judged is not None and len(one.rewards) > 1:
                    forecasts.append(agreement(judged.values.tolist(), one.rewards.tolist()))
        added = sum(self.memory.add(one) for one in new)
        if self._path is not None and self._saved is not self.memory.windows:
            try:
                self.memory.save(self._path)
                self._saved = self.memory.windows
            except CheckpointError as error:
                log.error("%s", error)
        return {
            "learned_windows": float(len(self.memory.windows)),
            "learned_decisions": float(sum(len(one.rewards) for one in self.memory.windows)),
            "newly_learned": float(added),
            "state_saved": float(self._path is None or self._saved is self.memory.windows),
            **pooled(forecasts).metrics("forecast_"),
        }

    def _learnable(self, window: TrainingWindow) -> LearnedWindow:
        """The decisions whose reward is known."""
        given = zip(window.decisions, finite_rewards(window.decisions), strict=True)
        known = [(decision, reward) for decision, reward in given if reward is not None]
        return LearnedWindow(
            id=window.id,
            features=featurize([decision for decision, _ in known], self.config.features),
            rewards=np.array([reward for _, reward in known], dtype=np.float64),
        )

    async def close(self) -> None:  # noqa: B027  # most scorers have no connections
        """See ``DecisionScorer``; there are no connections."""

    def judge(self, features: Floats, rewards: Sequence[float | None]) -> Judgement | None:
        """Score rows of features, shape [n, features]; None without a model and enough rewards."""
        self._fit_once()
        return self._judge(features, rewards)

    def _fit_once(self) -> None:
        if self._fitted is not self.memory.windows:
            self._fit(self.memory)
            self._fitted = self.memory.windows

    @abc.abstractmethod
    def _fit(self, memory: WindowMemory) -> None:
        """Fit the model to all of ``memory``, or drop it if there is too little to learn from."""

    @abc.abstractmethod
    def _judge(self, features: Floats, rewards: Sequence[float | None]) -> Judgement | None:
        """See ``judge``; the model is fitted."""
