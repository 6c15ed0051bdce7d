"""The configuration of a continuous run: what a policy is trained with, and the market it lives in.

A continuous experiment composes ``conf/continuous.yaml`` instead of ``conf/config.yaml``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rlforge.config.schema import RunConfig


@dataclass
class ContinuousSettings:
    """The loop from window to window (group ``continuous``)."""

    #: Windows until the run is done; null: for ever.
    windows: int | None = 8
    #: Which decisions are learned from: those whose ``score``, or ``reward``, is above the
    #: threshold, or ``all``.
    select_by: str = "score"
    #: What a score (0 to 1) or reward must exceed.
    threshold: float = 0.5
    #: Selected decisions below which a window trains nothing.
    min_selected: int = 5
    #: What is learned: ``reward``, ``score``, or ``mix``, (1 - w) reward + w (2 score - 1).
    train_on: str = "reward"
    #: w of ``mix``.
    score_weight: float = 0.5
    #: Most versions a decision may be behind the one that learns from it.
    max_staleness: int = 1
    #: Windows of a market of its own in which the untrained and the last policy are compared.
    compare_windows: int = 1


@dataclass
class ContinuousConfig(RunConfig):
    """The whole continuous experiment."""

    name: str = "continuous"
    continuous: ContinuousSettings = field(default_factory=ContinuousSettings)


#: Groups of a game run that a continuous run has no use for.
GAME_GROUPS = ("env", "pool", "rewards", "buffer", "collector", "eval")
