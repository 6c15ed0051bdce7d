"""The scorer of a configuration, and one without an event loop."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlforge.config.plugins import SCORERS
from rlforge.continuous.config.ruler import RulerConfig
from rlforge.continuous.decisions.records import Decision, TrainingWindow
from rlforge.continuous.ruler.agreement import MAX_PAIRS, generate_pairs
from rlforge.continuous.ruler.base import DecisionScorer, DecisionScores, finite_rewards
from rlforge.continuous.ruler.judge_backends import ENGINE, LocalModel, check_endpoint


def make_scorer(
    config: RulerConfig, *, seed: int = 0, local: LocalModel | None = None
) -> DecisionScorer:
    """The scorer ``ruler.scoring_method``. local: the model ``ruler.judge.model=engine``.

    Raises ConfigError for an unknown method and a missing key, CheckpointError for a damaged state.
    """
    scorer: DecisionScorer = SCORERS.find(config.scoring_method)(config, seed, local)
    return scorer


def check_judge(config: RulerConfig) -> None:
    """Raise ConfigError where a judge is configured and its address or API key is missing."""
    if config.scoring_method == "judge" and config.judge.model != ENGINE:
        check_endpoint(config.judge)


class RULERScorer:
    """Reward Understanding via Learning from Examples and Rewards, for scripts and notebooks.

    Inside an event loop, use ``make_scorer``, whose errors it raises. config: all other settings;
    the three named arguments override it.

    Example:
        >>> from rlforge.continuous.decisions.records import Metadata
        >>> both = {"window_id": "2024-11-13-10:00", "timestamp": 1731492000.0, "state": {}}
        >>> both |= {"action": {"type": "NO_OP"}, "metadata": Metadata(provider="scripted:noise")}
        >>> ann = Decision(id="ann-1", agent_id="ann", reward=0.9, **both)
        >>> bob = Decision(id="bob-1", agent_id="bob", reward=0.1, **both)
        >>> better, worse = RULERScorer().score_trajectories([ann, bob])
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
        self.config = dataclasses.replace(
            config or RulerConfig(),
            model_path=None if model_path is None else str(model_path),
            scoring_method=scoring_method,
            temperature=temperature,
        )
        self._seed = seed
        self._scorer = make_scorer(self.config, seed=seed)

    def score_trajectories(self, decisions: Sequence[Decision]) -> list[float | None]:
        """The score of each decision, 0 to 1; None if the scorer could not judge it."""
        return list(self.score(decisions).values)

    def score(self, decisions: Sequence[Decision]) -> DecisionScores:
        async def once() -> DecisionScores:
            try:
                return await self._scorer.score(decisions)
            finally:
                # Connections belong to the event loop of one call.
                await self._scorer.close()

        return asyncio.run(once())

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
        return self._scorer.learn(windows)
