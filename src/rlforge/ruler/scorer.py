"""RULER under the names of its document, for scripts and notebooks."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlforge.config.ruler import RulerConfig
from rlforge.ruler.base import DecisionScores, finite_rewards
from rlforge.ruler.pairs import generate_pairs
from rlforge.ruler.registry import make_scorer
from rlforge.trajectories.records import Decision, TrainingWindow


class RULERScorer:
    """Reward Understanding via Learning from Examples and Rewards.

        scorer = RULERScorer(model_path="./checkpoints/latest", scoring_method="preference")
        scorer.learn(past_windows)
        scores = scorer.score_trajectories(window.decisions)  # [0.73, 0.82, 0.65, …]

    A door to ``make_scorer`` that needs no event loop; inside one, use that. config: everything
    else that can be set; the three named arguments win over it.
    """

    def __init__(
        self,
        model_path: str | Path | None = None,
        scoring_method: str = "preference",
        temperature: float = 0.7,
        *,
        config: RulerConfig | None = None,
        seed: int = 0,
    ) -> None:
        """Raises ConfigError and CheckpointError as ``make_scorer`` does."""
        self.config = dataclasses.replace(
            config or RulerConfig(),
            model_path=None if model_path is None else str(model_path),
            scoring_method=scoring_method,
            temperature=temperature,
        )
        self._seed = seed
        self._scorer = make_scorer(self.config, seed=seed)

    def score_trajectories(self, decisions: Sequence[Decision]) -> list[float | None]:
        """One score from 0 to 1 for each; None where the scorer could not judge."""
        return list(self.score(decisions).values)

    def score(self, decisions: Sequence[Decision]) -> DecisionScores:
        """The same with explanations and metrics."""
        return asyncio.run(self._score(decisions))

    def generate_pairs(self, decisions: Sequence[Decision]) -> list[tuple[Decision, Decision]]:
        """(better, worse): the pairs that a window's rewards give."""
        settings = self.config.preference
        pairs = generate_pairs(
            finite_rewards(decisions),
            margin=settings.margin,
            max_pairs=settings.max_pairs,
            seed=self._seed,
        )
        return [
            (decisions[better], decisions[worse])
            for better, worse in zip(pairs.better, pairs.worse, strict=True)
        ]

    def learn(self, windows: Sequence[TrainingWindow]) -> Mapping[str, float]:
        """Learn from windows whose outcomes are known; see ``Scorer``."""
        return self._scorer.learn(windows)

    async def _score(self, decisions: Sequence[Decision]) -> DecisionScores:
        try:
            return await self._scorer.score(decisions)
        finally:
            await self._scorer.close()  # connections end with their event loop
