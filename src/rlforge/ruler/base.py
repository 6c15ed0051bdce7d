"""The one interface behind which every scorer sits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rlforge.trajectories.records import Decision, TrainingWindow
from rlforge.types import value


@value
class Scores:
    """Scores of decisions, in their order.

    values: 0 to 1, or None where the scorer failed: that decision is kept unscored.
    explanations: why, one per decision; empty strings where the scorer does not say.
    metrics: what the scorer saw, e.g. ``pairs``, ``judge_calls``, ``unscored``.
    """

    values: tuple[float | None, ...]
    explanations: tuple[str, ...]
    metrics: Mapping[str, float]


class Scorer(Protocol):
    """Judges the decisions of one window against each other."""

    async def score(self, decisions: Sequence[Decision]) -> Scores:
        """A score for each; failures of one group leave that group unscored, and are logged."""
        ...

    def learn(self, windows: Sequence[TrainingWindow]) -> Mapping[str, float]:
        """Take in windows whose outcomes are known, and keep what was learned.

        A window that was learned before changes nothing. Returns metrics: what the scorer knows
        now, and how well it forecast the rewards of these windows before it knew them
        (``forecast_kendall_tau``, ``forecast_pairwise_accuracy``; missing where it could not).
        """
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...
