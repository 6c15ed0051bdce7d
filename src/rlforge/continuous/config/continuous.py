"""The configuration of a continuous run: a policy, how it is trained, and its market."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from rlforge.config.pool import ApiSettings, HfSettings
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
from rlforge.system.files import readable_size
from rlforge.system.hub import as_folder

#: Windows and versions that a run without an end keeps, where it is not set: of windows of an hour
#: those of two weeks, of versions those of three days.
KEPT_WINDOWS, KEPT_CHECKPOINTS = 336, 72
#: Most bytes of a decision in the store, with the agent's state and prompt, as measured: 5,300 in
#: the market of the preset ``default``, 8,900 in that of ``tiny``, which has more markets.
DECISION_BYTES = 9000


@dataclass
class StoreConfig(Group):
    """Where decisions are kept (group ``store``)."""

    #: Folder of the store; null: ``store`` in the run directory.
    path: Text | None = None
    #: Windows that are kept after they were worked on, with their scores. null: all of a run with
    #: an end; of one without the newest 336, or those whose outcomes may still come.
    keep_windows: Count | None = None
    #: Dataset of the Hugging Face hub, ORG/NAME, or folder, ./NAME, that is replaced once a day by
    #: all decisions, scores and metrics in the store; null: none.
    push: Text | None = None
    #: Hour of the day, in UTC by the clock of the decisions, from which it is replaced.
    push_hour: Annotated[int, Range(0, 23)] = 2

    def clashes(self) -> Iterator[Problem]:
        # A name without its owner would be created under the account that is logged in.
        if self.push is None or as_folder(self.push) is not None:
            return
        if len(self.push.split("/")) != 2:
            yield "push", "names a dataset of the hub, ORG/NAME, or a folder, ./NAME"


@dataclass
class RequestsConfig(Group):
    """Which answers over HTTP are learned from (group ``requests``)."""

    #: Hours that an answer waits for its outcome (``POST /v1/outcomes``) before it is deleted.
    keep_hours: Positive = 24.0
    #: ``package.module:function`` of yours, called with the messages, or the prompt as text, and
    #: the answer. It returns what may be kept of the first; None: nothing. null: all is kept.
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

    #: ``windowed``: the decisions of one window; ``rolling``: the newest complete ones.
    mode: Literal["windowed", "rolling"] = "windowed"
    #: Clock that stamps decisions: ``wall`` or ``simulated`` (that of the market).
    clock: Literal["wall", "simulated"] = "wall"
    #: Minutes of one window; the first begins with 1970 UTC.
    minutes: Positive = 60.0
    #: Seconds to wait after a window's end for late decisions and outcomes; null: until the
    #: outcomes that ``completeness`` asks for are known, an episode of the market at most.
    grace_seconds: NotNegative | None = None
    #: Learning agents that a window needs, each of which meets the next two keys; scripted traders
    #: do not count.
    min_agents: Count = 3
    #: Actions other than NO_OP, refused ones included, that an agent needs to count.
    min_actions: Whole = 5
    #: Decisions that an agent needs to count.
    min_trajectories_per_agent: Count = 5
    #: Share of a window's decisions whose outcome must be known.
    completeness: Share = 1.0
    #: Least average reward of the learning agents' accepted decisions; null: any. The document's is
    #: 0.3, which untrained models seldom reach.
    avg_reward_threshold: Number | None = None
    #: Decisions of a batch in mode ``rolling``.
    rolling_decisions: Count = 512

    def clashes(self) -> Iterator[Problem]:
        # Ids of windows know no parts of a second.
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
    #: Weight of the agent's win rate.
    consistency_weight: Number = 0.3
    #: Speed term of a decision that is held for an hour or longer; any other has 1.
    slow_reward: Number = 0.5
    #: Profit-and-loss term of a decision that invested nothing.
    uninvested_reward: Number = 0.0
    #: Rewards of one window before training: ``none``; ``center`` (less their mean); ``zscore``
    #: (and divided by their deviation); ``minmax`` (stretched to -1 … 1).
    normalize: Literal["none", "center", "zscore", "minmax"] = "none"
    #: Discount of an agent's later rewards in its return.
    gamma: Share = 0.99


@dataclass
class TradersConfig(Group):
    """How language models among ``market.traders`` are asked (group ``traders``)."""

    #: Traders behind an API.
    api: ApiSettings = field(default_factory=ApiSettings)
    #: Other local models as traders.
    hf: HfSettings = field(default_factory=HfSettings)
    #: Their answers are one JSON action that the trader's state allows, and nothing else: a
    #: ``response_format`` for APIs, left out where one refuses it. Not for models that reason
    #: before they act.
    constrained: bool = False


@dataclass
class ContinuousSettings(Group):
    """The loop from window to window (group ``continuous``)."""

    #: Where decisions come from: a ``market``, ``episodes`` of your function, HTTP ``requests``
    #: whose outcomes clients report, or a recorded or imported ``store`` (``store.path``), read to
    #: its end.
    source: Literal["market", "episodes", "requests", "store"] = "market"
    #: Windows until the run is done; null: no end.
    windows: Count | None = 8
    #: Agents that the model plays, beside ``market.traders``.
    agents: Count = 16
    #: Further agents of the first version, which never learns: the difference to their rewards
    #: shows what was learned, whatever the market does.
    control_agents: Whole = 4
    #: Window that simulated time begins with, in UTC.
    start: str = "2024-11-13-10:00"
    #: Train on decisions whose ``score`` or ``reward`` exceeds ``threshold``, or on ``all``. null:
    #: ``score`` with a market or store, else ``all``.
    select_by: Literal["score", "reward", "all"] | None = None
    #: Threshold of ``select_by``; scores range from 0 to 1.
    threshold: Number = 0.5
    #: Least number of decisions, selected or refused ones, for an update.
    min_selected: Count = 5
    #: Largest share of the decisions learned from that is one agent's, or one user's of a service;
    #: others are left out by seed. 1: no limit.
    max_agent_share: Part = 1.0
    #: Training reward: ``reward``; ``return``, the sum of it and its agent's later rewards in the
    #: window, discounted by ``decision_reward.gamma``; ``score``; or ``mix``: (1 - w) reward + w (2
    #: score - 1). Invalid actions have ``invalid_reward``.
    train_on: Literal["reward", "return", "score", "mix"] = "reward"
    #: w of ``mix``.
    score_weight: Share = 0.5
    #: Share of the training reward of a post or comment that is the mean reward of the followers'
    #: trades that had read it, in compact text with ``market.social``; 0: what agents say earns
    #: nothing but the reward of doing nothing.
    reader_share: Share = 0.0
    #: Most versions between the one that made a decision and the one that is trained on it; null:
    #: 1, and as many more as windows may end while a window waits for its outcomes.
    max_staleness: Whole | None = None
    #: Reward of an answer without an accepted action; such answers are always selected. null: they
    #: count as decisions to do nothing.
    invalid_reward: Number | None = -1.0
    #: In a market in prose: the engine draws one JSON action that the agent's state allows, and
    #: nothing else. Not for models that reason before they act.
    constrained: bool = False
    #: Episodes, in separate markets, that compare the policy before and after the run; not with
    #: ``source`` ``episodes`` or ``requests``, which have no market.
    compare_episodes: Whole = 4
    #: Serve the current version over HTTP meanwhile (group ``serve``).
    http: bool = False

    @property
    def selects_by(self) -> Literal["score", "reward", "all"]:
        """``select_by``, or what follows from the source."""
        # Without a market there is nothing that scores could be relative to.
        trades = self.source in ("market", "store")
        return self.select_by or ("score" if trades else "all")


@dataclass
class ContinuousConfig(PolicyConfig):
    """A run that trains from window to window of a market."""

    kind = "continuous"
    primary = "continuous"
    command = "continuous"
    about = "a continuous run"
    others = "traders"

    name: FolderName = "continuous"
    market: MarketConfig = field(default_factory=MarketConfig)
    traders: TradersConfig = field(default_factory=TradersConfig)
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
    def model_traders(self) -> dict[str, int]:
        """The language models that trade in the run's market, by name; tests have none."""
        return self.market.models if self.continuous.source == "market" else {}

    @property
    def total_updates(self) -> int | None:
        """One update per window."""
        return self.continuous.windows

    @property
    def has_market(self) -> bool:
        """Whether agents trade in a market, to be trained or tested."""
        settings = self.continuous
        # What is learned from a store is tested in the market of the configuration.
        tested = settings.compare_episodes > 0 or self.deployment.holdout_games > 0
        return settings.source == "market" or (settings.source == "store" and tested)

    @property
    def agents_talk(self) -> bool:
        """Whether agents have words for what they say to each other and whom of them they follow.

        Those that answer in JSON have.
        """
        return self.model.prompt_template != "board" or self.market.social

    @property
    def episode_s(self) -> float:
        """Seconds of an episode of the market, at whose end all outcomes are known."""
        return self.market.tick_minutes * self.market.episode_ticks * 60

    @property
    def windows_end_settled(self) -> bool:
        """Whether all outcomes are known when a window ends."""
        if self.continuous.source != "market":
            # Decisions of other sources come with their outcome.
            return True
        # By rounding, 240 minutes may not be exactly 2 episodes of 2 hours.
        episodes = self.window.minutes * 60 / self.episode_s
        whole = round(episodes) >= 1 and abs(episodes - round(episodes)) < 1e-9
        # By the wall clock episodes begin with the run, not with a window.
        return whole and self.window.clock == "simulated"

    @property
    def windows_waited(self) -> int:
        """Windows that may end while one waits for outcomes or late decisions."""
        waited = self.window.grace_seconds
        if waited is None:
            # The wait ends with the outcomes, after an episode at the latest.
            nothing = self.windows_end_settled or self.window.completeness == 0
            waited = 0.0 if nothing else self.episode_s
        return math.ceil(waited / (self.window.minutes * 60))

    @property
    def windows_open(self) -> int:
        """Windows, the current one included, that may hold decisions without an outcome."""
        if self.continuous.source != "market":
            return 1
        # A decision is settled with its episode at the latest.
        return 1 + math.ceil(self.episode_s / (self.window.minutes * 60))

    @property
    def endless(self) -> bool:
        """Whether the run records windows of its own without an end."""
        return self.continuous.windows is None and self.continuous.source != "store"

    @property
    def keep_windows(self) -> int | None:
        """``store.keep_windows``, or what follows for a run without an end; None: all."""
        bound = max(KEPT_WINDOWS, self.windows_open) if self.endless else None
        return self.store.keep_windows or bound

    @property
    def keep_checkpoints(self) -> int | None:
        """``learner.keep_checkpoints``, or what follows for a run without an end; None: all."""
        given = self.learner.keep_checkpoints
        return KEPT_CHECKPOINTS if given is None and self.endless else given

    @property
    def bytes_a_day(self) -> int | None:
        """Most bytes by which a market's store grows in a day of its clock; None for others."""
        if self.continuous.source != "market":
            return None
        traders = self.continuous.agents + self.continuous.control_agents
        traders += sum(self.market.traders.values())
        return round(traders * 24 * 60 / self.market.tick_minutes * DECISION_BYTES)

    @property
    def growth(self) -> str:
        """Clauses on how fast the store grows, and what a run without an end keeps; or ''."""
        said = []
        if (grows := self.bytes_a_day) is not None:
            said.append(f"the store grows by up to {readable_size(grows)} a day of the market")
        if self.endless:
            said.append(
                f"the newest {self.keep_windows} windows and {self.keep_checkpoints} versions are "
                "kept (store.keep_windows, learner.keep_checkpoints)"
            )
        return "; ".join(said)

    @property
    def max_staleness(self) -> int | None:
        """``continuous.max_staleness``, or what follows from the windows waited."""
        given = self.continuous.max_staleness
        if self.continuous.source == "store":
            # Versions in a store may be another run's, with numbers of their own.
            return None
        return 1 + self.windows_waited if given is None else given
