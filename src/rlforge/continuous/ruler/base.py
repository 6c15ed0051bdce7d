"""The interface of scorers, and scores where nothing can be compared."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from rlforge.continuous.decisions.records import Decision, TrainingWindow
from rlforge.types import value

log = logging.getLogger(__name__)

#: Scores closer together than this are equal.
_SAME = 1e-9


NOT_JUDGED = "not judged: it is not learned from"
"""The explanation of decisions that no score was asked for."""


@value
class DecisionScores:
    """Scores of decisions in their order, 0 to 1, or None if the scorer failed or was not asked.

    note: a sentence for the lines of the run, if there is one.

    Example:
        >>> DecisionScores(values=(0.9, None), explanations=("early", ""), metrics={}).values[0]
        0.9
    """

    values: tuple[float | None, ...]
    explanations: tuple[str, ...]
    metrics: Mapping[str, float]
    note: str = ""

    @property
    def unscored(self) -> str:
        """The most frequent reason for a missing score, or nothing."""
        said = [
            why
            for score, why in zip(self.values, self.explanations, strict=True)
            if score is None and why != NOT_JUDGED
        ]
        return max(said, key=said.count, default="")


class DecisionScorer(Protocol):
    """Scores the decisions of one window relative to each other.

    Example: the confident ones.
        >>> class Confidence:
        ...     async def score(self, decisions):
        ...         values = tuple(decision.metadata.confidence for decision in decisions)
        ...         return DecisionScores(
        ...             values=values, explanations=("",) * len(values), metrics={}
        ...         )
        ...     def learn(self, windows):
        ...         return {}
        ...     async def close(self):
        ...         pass
        >>> import asyncio
        >>> asyncio.run(Confidence().score([])).values
        ()
    """

    async def score(self, decisions: Sequence[Decision]) -> DecisionScores:
        """The score of each; what fails is logged and left unscored."""

    def learn(self, windows: Sequence[TrainingWindow]) -> Mapping[str, float]:
        """Learn from windows whose outcomes are known; a window learned before changes nothing.

        Returns metrics, such as how well rewards were forecast (``forecast_kendall_tau``,
        ``forecast_pairwise_accuracy``).
        """

    async def close(self) -> None:
        """Close connections."""


def finite_rewards(decisions: Sequence[Decision]) -> list[float | None]:
    """The rewards; None where one is missing or not finite."""
    return [
        d.reward if d.reward is not None and math.isfinite(d.reward) else None for d in decisions
    ]


def nothing_to_compare(decisions: Sequence[Decision], min_agents: int) -> str | None:
    """The reason why decisions cannot be compared, or None."""
    agents = len({decision.agent_id for decision in decisions})
    if agents < min_agents:
        return f"{agents} agent{'s' * (agents != 1)} of at least {min_agents}"
    if len(decisions) < 2:
        return "fewer than two decisions"
    rewards = finite_rewards(decisions)
    if rewards[0] is not None and all(reward == rewards[0] for reward in rewards):
        return f"all rewards are {rewards[0]:g}"
    return None


def undecided(
    decisions: Sequence[Decision], reason: str, metrics: Mapping[str, float]
) -> DecisionScores:
    """0.5 for each, because of ``reason``, which is logged."""
    if decisions:
        log.warning("%s: nothing to compare: %s; every score is 0.5", window_of(decisions), reason)
    why = [f"nothing to compare: {reason}"] * len(decisions)
    return _counted([0.5] * len(decisions), why, {**metrics, "nothing_to_compare": 1.0})


def finished(
    decisions: Sequence[Decision],
    values: Sequence[float | None],
    explanations: Sequence[str],
    metrics: Mapping[str, float],
) -> DecisionScores:
    """The scores with their counts, or ``undecided`` if all of them are equal."""
    known = [value for value in values if value is not None]
    # Equal scores select all decisions or none, so that the threshold would decide, not the scorer.
    if len(known) == len(values) > 1 and max(known) - min(known) < _SAME:
        return undecided(decisions, "all scores are equal", metrics)
    return _counted(values, explanations, {**metrics, "nothing_to_compare": 0.0})


def _counted(
    values: Sequence[float | None], explanations: Sequence[str], metrics: Mapping[str, float]
) -> DecisionScores:
    unscored = sum(value is None for value in values)
    counts = {"scored": float(len(values) - unscored), "unscored": float(unscored)}
    return DecisionScores(
        values=tuple(values), explanations=tuple(explanations), metrics={**metrics, **counts}
    )


def window_of(decisions: Sequence[Decision]) -> str:
    ids = sorted({decision.window_id for decision in decisions})
    return f"window {ids[0]}" if len(ids) == 1 else f"windows {ids[0]} to {ids[-1]}"
