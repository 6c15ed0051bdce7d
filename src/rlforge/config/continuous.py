"""The configuration of a continuous run: a policy, how it is trained, and its market.

A continuous experiment composes ``conf/continuous.yaml`` instead of ``conf/config.yaml``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlforge.config.market import MarketConfig
from rlforge.config.ruler import RulerConfig
from rlforge.config.rules import Count, FolderName, Group, Share, Whole
from rlforge.config.schema import PolicyConfig
from rlforge.config.serving import DeploymentConfig, ServeConfig
from rlforge.config.windows import DecisionRewardConfig, StoreConfig, WindowConfig


@dataclass
class ContinuousSettings(Group):
    """The loop from window to window (group ``continuous``)."""

    #: Windows until the run is done; null: no end.
    windows: Count | None = 8
    #: Agents that the model plays in the market, in addition to the scripted
    #: ``market.traders``.
    agents: Count = 16
    #: Window that simulated time begins with, in UTC.
    start: str = "2024-11-13-10:00"
    #: Train on decisions whose ``score`` or ``reward`` exceeds ``threshold``, or on ``all``.
    select_by: Literal["score", "reward", "all"] = "score"
    #: Threshold of ``select_by``; scores range from 0 to 1.
    threshold: float = 0.5
    #: Least number of selected decisions for an update; a window with fewer is not trained on.
    min_selected: Count = 5
    #: Training reward of a decision: ``reward``, ``score``, or ``mix``: (1 - w) reward +
    #: w (2 score - 1). Invalid actions always get ``invalid_reward``.
    train_on: Literal["reward", "score", "mix"] = "reward"
    #: w of ``mix``.
    score_weight: Share = 0.5
    #: Most versions between the one that made a decision and the one that is trained on it.
    max_staleness: Whole = 1
    #: Reward of an answer without an action that the market accepts; such answers are always
    #: selected. null: they count as decisions to do nothing.
    invalid_reward: float | None = -1.0
    #: Episodes, in separate markets, that compare the policy before and after the run.
    compare_episodes: Whole = 4
    #: Serve the current version over HTTP while the run lasts (group ``serve``).
    http: bool = False


@dataclass
class ContinuousConfig(PolicyConfig):
    """A run that trains from window to window of a market."""

    primary = "continuous"
    command = "continuous"
    about = "a continuous run"

    name: FolderName = "continuous"
    market: MarketConfig = field(default_factory=MarketConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    decision_reward: DecisionRewardConfig = field(default_factory=DecisionRewardConfig)
    ruler: RulerConfig = field(default_factory=RulerConfig)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    continuous: ContinuousSettings = field(default_factory=ContinuousSettings)

    @property
    def total_updates(self) -> int | None:
        """One update per window."""
        return self.continuous.windows
