"""The configuration of a continuous run: what a policy is trained with, and the market it lives in.

A continuous experiment composes ``conf/continuous.yaml`` instead of ``conf/config.yaml``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rlforge.config.market import MarketConfig
from rlforge.config.ruler import RulerConfig
from rlforge.config.rules import Group
from rlforge.config.schema import PolicyConfig
from rlforge.config.serving import DeploymentConfig, ServeConfig
from rlforge.config.windows import DecisionRewardConfig, StoreConfig, WindowConfig


@dataclass
class ContinuousSettings(Group):
    """The loop from window to window (group ``continuous``)."""

    #: Windows until the run is done; null: for ever.
    windows: int | None = 8
    #: Agents of the model that live in the market, beside the scripted ``market.traders``.
    agents: int = 16
    #: Window that simulated time begins with, in UTC.
    start: str = "2024-11-13-10:00"
    #: Which decisions are learned from: those whose ``score``, or ``reward``, is above the
    #: threshold, or ``all``.
    select_by: str = "score"
    #: What a score (0 to 1) or reward must exceed.
    threshold: float = 0.5
    #: Selected decisions below which a window trains nothing.
    min_selected: int = 5
    #: What is learned: ``reward``, ``score``, or ``mix``, (1 - w) reward + w (2 score - 1); of
    #: refused actions ``invalid_reward``, always.
    train_on: str = "reward"
    #: w of ``mix``.
    score_weight: float = 0.5
    #: Most versions a decision may be behind the one that learns from it.
    max_staleness: int = 1
    #: Reward of an answer that is no action, or none that the market accepts. It is learned from
    #: whatever its score. null: it is a decision like others, which does nothing.
    invalid_reward: float | None = -1.0
    #: Episodes of markets of their own in which the policy before and after the run is compared.
    compare_episodes: int = 4
    #: Serve the current version over HTTP while the run lasts (group ``serve``).
    http: bool = False


@dataclass
class ContinuousConfig(PolicyConfig):
    """A run that trains from window to window of a market."""

    primary = "continuous"
    command = "continuous"
    about = "a continuous run"

    name: str = "continuous"
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
