"""A scorer without an event loop, for scripts and notebooks."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlforge.continuous.config.ruler import RulerConfig
from rlforge.continuous.decisions.records import Decision, TrainingWindow
from rlforge.continuous.ruler.base import DecisionScores, finite_rewards
from rlforge.continuous.ruler.pairs import MAX_PAIRS, generate_pairs
from rlforge.continuous.ruler.registry import make_scorer


class RULERScorer:
    """Reward Understanding via Learning from Examples and Rewards.

    Wraps ``make_scorer``; inside an event loop, use that function. config: all other settings; the
    three named arguments override it. ``scorer.learn(past_windows)`` improves its scores.

    Example:
        >>> from rlforge.continuous.decisions.records import Metadata
        >>> scorer = RULERScorer(scoring_method="preference")
        >>> decisions = [
        ...     Decision(
        ...         id=f"{agent}-1",
        ...         agent_id=agent,
        ...         window_id="2024-11-13-10:00",
        ...         state={},
        ...         action={"type": "NO_OP"},
        ...         timestamp=1731492000.0,
        ...         metadata=Metadata(provider="scripted:noise"),
        ...         reward=reward,
        ...     )
        ...     for agent, reward in (("ann", 0.9), ("bob", 0.1))
        ... ]
        >>> better, worse = scorer.score_trajectories(decisions)
        >>> better > 0.5 > worse
        True
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
        """One score from 0 to 1 for each decision; None if the scorer could not judge it."""
        return list(self.score(decisions).values)

    def score(self, decisions: Sequence[Decision]) -> DecisionScores:
        """Scores with explanations and metrics."""
        return asyncio.run(self._score(decisions))

    def generate_pairs(self, decisions: Sequence[Decision]) -> list[tuple[Decision, Decision]]:
        """Pairs (better, worse) by the rewards of a window."""
        pairs = generate_pairs(
            finite_rewards(decisions),
            margin=self.config.preference.margin,
            max_pairs=MAX_PAIRS,
            seed=self._seed,
        )
        return [
            (decisions[better], decisions[worse])
            for better, worse in zip(pairs.better, pairs.worse, strict=True)
        ]

    def learn(self, windows: Sequence[TrainingWindow]) -> Mapping[str, float]:
        """Learn from windows whose outcomes are known; see ``DecisionScorer``."""
        return self._scorer.learn(windows)

    async def _score(self, decisions: Sequence[Decision]) -> DecisionScores:
        try:
            return await self._scorer.score(decisions)
        finally:
            await self._scorer.close()  # connections belong to one event loop
