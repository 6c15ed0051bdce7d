"""The configuration of a continuous run: a policy, how it is trained, and its market.

A continuous experiment composes ``conf/continuous.yaml`` instead of ``conf/config.yaml``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from rlforge.config.rules import (
    Count,
    FolderName,
    Group,
    NotNegative,
    Number,
    Part,
    Positive,
    Problem,
    Range,
    Share,
    Text,
    Whole,
)
from rlforge.config.schema import PolicyConfig
from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.config.ruler import RulerConfig
from rlforge.continuous.config.serving import DeploymentConfig, ServeConfig


@dataclass
class StoreConfig(Group):
    """Where decisions are kept (group ``store``)."""

    #: Folder of the store; null: ``store`` in the run directory.
    path: Text | None = None
    #: Windows that are kept after they were worked on; older ones are deleted with their scores.
    #: Null: all.
    keep_windows: Count | None = None
    #: Dataset of the Hugging Face hub, ORG/NAME, that is replaced once a day by the decisions,
    #: scores and metrics of all windows in the store; null: none.
    push: Text | None = None
    #: Hour of the day, in UTC by the clock of the decisions, from which it is.
    push_hour: Annotated[int, Range(0, 23)] = 2

    def clashes(self) -> Iterator[Problem]:
        if self.push is not None and len(self.push.split("/")) != 2:
            yield "push", "names a dataset of the hub: ORG/NAME"


@dataclass
class RequestsConfig(Group):
    """Which answers over HTTP are learned from (group ``requests``)."""

    #: Hours that an answer waits for its outcome (``POST /v1/outcomes``); then it is deleted.
    keep_hours: Positive = 24.0
    #: ``package.module:function`` of yours, called with the messages of a conversation, or the
    #: prompt as text, and the answer. It returns what may be kept of the first, None to keep
    #: nothing. Null: all is kept as it is.
    redact: Text | None = None


@dataclass
class EpisodesConfig(Group):
    """Episodes of a user's function, where there is no market (group ``episodes``)."""

    #: ``package.module:function`` of yours: async, called with a ``rlforge.Session``, which asks
    #: the model; returns the reward of its answers.
    function: Text | None = None
    #: Episodes that each agent plays in a window.
    per_agent: Count = 8


@dataclass
class WindowConfig(Group):
    """Which decisions are trained on together, and when (group ``window``)."""

    #: ``windowed`` takes the decisions of one window, ``rolling`` the newest complete ones.
    mode: Literal["windowed", "rolling"] = "windowed"
    #: Clock that decisions are stamped with: ``wall`` or ``simulated`` (that of the market).
    clock: Literal["wall", "simulated"] = "wall"
    #: Minutes of one window; windows do not overlap and the first begins with 1970 UTC.
    minutes: Positive = 60.0
    #: Seconds to wait after a window's end for late decisions and outcomes; null: until the
    #: outcomes that ``completeness`` asks for are known, an episode of the market at most.
    grace_seconds: NotNegative | None = None
    #: Learning agents that a window needs, counting those that meet the next two keys; scripted
    #: traders do not count.
    min_agents: Count = 3
    #: Decisions with an action other than NO_OP, refused ones included, that an agent needs to
    #: count.
    min_actions: Whole = 5
    #: Decisions that an agent needs to count.
    min_trajectories_per_agent: Count = 5
    #: Share of a window's decisions whose outcome must be known.
    completeness: Share = 1.0
    #: Least average reward of the learning agents' decisions that were not refused, where there
    #: are any; null: any. The document's is 0.3, which untrained models seldom reach.
    avg_reward_threshold: Number | None = None
    #: Decisions of a batch in mode ``rolling``.
    rolling_decisions: Count = 512

    def clashes(self) -> Iterator[Problem]:
        seconds = self.minutes * 60
        if seconds < 1 or abs(seconds - round(seconds)) > 1e-6:
            yield "minutes", "a window lasts a whole number of seconds, 1 or more"


@dataclass
class DecisionRewardConfig(Group):
    """How the outcome of a decision becomes a number (group ``decision_reward``)."""

    #: Weight of profit and loss as a share of the investment.
    pnl_weight: Number = 0.5
    #: Weight of the speed term.
    speed_weight: Number = 0.2
    #: Weight of the consistency term, the agent's win rate.
    consistency_weight: Number = 0.3
    #: Speed term of a decision that is held for an hour or longer; of any other it is 1.
    slow_reward: Number = 0.5
    #: Profit-and-loss term of a decision that invested nothing.
    uninvested_reward: Number = 0.0
    #: Rewards of one window before training: ``none``; ``center`` (less their mean); ``zscore``
    #: (and divided by their deviation); ``minmax`` (stretched to -1 … 1).
    normalize: Literal["none", "center", "zscore", "minmax"] = "none"
    #: Discount of an agent's later rewards in its return.
    gamma: Share = 0.99


@dataclass
class ContinuousSettings(Group):
    """The loop from window to window (group ``continuous``)."""

    #: Where decisions come from: a ``market``, ``episodes`` of a function of yours, HTTP
    #: ``requests`` whose outcomes clients report, or a ``store`` that was recorded or imported
    #: (``store.path``) and is read to its end.
    source: Literal["market", "episodes", "requests", "store"] = "market"
    #: Windows until the run is done; null: no end.
    windows: Count | None = 8
    #: Agents that the model plays, in a market in addition to the scripted ``market.traders``.
    agents: Count = 16
    #: Further agents of the version that the run begins with, which never learns: a window's
    #: difference of rewards to theirs shows what was learned, whatever the market does.
    control_agents: Whole = 4
    #: Window that simulated time begins with, in UTC.
    start: str = "2024-11-13-10:00"
    #: Train on decisions whose ``score`` or ``reward`` exceeds ``threshold``, or on ``all``. Null:
    #: ``score`` for decisions of a market or a store, ``all`` for answers in ``episodes`` and to
    #: ``requests``.
    select_by: Literal["score", "reward", "all"] | None = None
    #: Threshold of ``select_by``; scores range from 0 to 1.
    threshold: Number = 0.5
    #: Least number of decisions to learn from, selected or refused ones, for an update.
    min_selected: Count = 5
    #: Most of the decisions learned from that may be one agent's, or one user's of a service;
    #: further ones, drawn by seed, are left out. 1: no limit.
    max_agent_share: Part = 1.0
    #: Training reward of a decision: ``reward``; ``return``, the sum of it and its agent's later
    #: rewards in the window, discounted by ``decision_reward.gamma``; ``score``; or ``mix``:
    #: (1 - w) reward + w (2 score - 1). Invalid actions always have ``invalid_reward``.
    train_on: Literal["reward", "return", "score", "mix"] = "reward"
    #: w of ``mix``.
    score_weight: Share = 0.5
    #: Most versions between the one that made a decision and the one that is trained on it; null:
    #: 1, and as many more as windows may end while a window waits for its outcomes.
    max_staleness: Whole | None = None
    #: Reward of an answer without an action that the market accepts; such answers are always
    #: selected. null: they count as decisions to do nothing.
    invalid_reward: Number | None = -1.0
    #: In a market in prose: answers are one JSON action that the agent's state allows, and nothing
    #: else, because the engine draws no other tokens. Not for models that reason before they act.
    constrained: bool = False
    #: Episodes, in separate markets, that compare the policy before and after the run; not with
    #: ``source`` ``episodes`` or ``requests``, which have no market.
    compare_episodes: Whole = 4
    #: Serve the current version over HTTP while the run lasts (group ``serve``).
    http: bool = False

    @property
    def selects_by(self) -> Literal["score", "reward", "all"]:
        """``select_by``, or what follows from the source."""
        trades = self.source in ("market", "store")
        return self.select_by or ("score" if trades else "all")


@dataclass
class ContinuousConfig(PolicyConfig):
    """A run that trains from window to window of a market."""

    kind = "continuous"
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
    episodes: EpisodesConfig = field(default_factory=EpisodesConfig)
    requests: RequestsConfig = field(default_factory=RequestsConfig)
    continuous: ContinuousSettings = field(default_factory=ContinuousSettings)

    @property
    def total_updates(self) -> int | None:
        """One update per window."""
        return self.continuous.windows

    @property
    def has_market(self) -> bool:
        """Whether agents trade in a market: to be trained, or to measure what was learned."""
        settings = self.continuous
        tested = settings.compare_episodes > 0 or self.deployment.holdout_games > 0
        return settings.source == "market" or (settings.source == "store" and tested)

    @property
    def episode_s(self) -> float:
        """Seconds of an episode of the market, after which every outcome is known."""
        return self.market.tick_minutes * self.market.episode_ticks * 60

    @property
    def windows_end_settled(self) -> bool:
        """Whether all outcomes are known when a window ends.

        In a market it lasts whole simulated episodes then; other decisions come with their outcome.
        """
        if self.continuous.source != "market":
            return True
        episodes = self.window.minutes * 60 / self.episode_s
        whole = round(episodes) >= 1 and abs(episodes - round(episodes)) < 1e-9
        return whole and self.window.clock == "simulated"

    @property
    def windows_waited(self) -> int:
        """How many windows may end while one waits for outcomes or late decisions."""
        waited = self.window.grace_seconds
        if waited is None:
            nothing = self.windows_end_settled or self.window.completeness == 0
            waited = 0.0 if nothing else self.episode_s
        return math.ceil(waited / (self.window.minutes * 60))

    @property
    def windows_open(self) -> int:
        """How many windows, the current one included, may hold decisions without an outcome."""
        if self.continuous.source != "market":
            return 1
        return 1 + math.ceil(self.episode_s / (self.window.minutes * 60))

    @property
    def max_staleness(self) -> int | None:
        """``continuous.max_staleness``, or what follows from the windows waited.

        None for a store, whose versions are not those of this run.
        """
        given = self.continuous.max_staleness
        if self.continuous.source == "store":
            return None
        return 1 + self.windows_waited if given is None else given
