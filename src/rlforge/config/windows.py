"""Settings of what agents leave behind: the store, windows of time, and the reward of a decision.

Each class has a list of ``problems``: pairs of a key in its group and what is wrong with its value,
so that whoever composes the configuration can add where the value came from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlforge.config.rules import Group, read
from rlforge.errors import ConfigError, nearest

COMPRESSIONS = ("zstd", "snappy", "none")
MODES = ("windowed", "rolling")
CLOCKS = ("wall", "simulated")
NORMALIZATIONS = ("none", "center", "zscore", "minmax")


@dataclass
class StoreConfig(Group):
    """Where decisions are kept (group ``store``)."""

    #: Folder of the store; null: ``store`` in the run directory.
    path: str | None = None
    #: MiB of the log of new decisions after which they move into parquet files.
    segment_mb: float = 32.0
    #: Small files of one window that are merged into one.
    merge_files: int = 8
    #: Compression of the parquet files: zstd, snappy or none.
    compression: str = "zstd"

    def problems(self) -> Iterator[tuple[str, str]]:
        """Keys with values that cannot be, and why."""
        if not self.segment_mb > 0:
            yield "segment_mb", "must be above 0"
        if self.merge_files < 2:
            yield "merge_files", "must be 2 or more"
        yield from _choice("compression", self.compression, COMPRESSIONS)


@dataclass
class WindowConfig(Group):
    """Which decisions are trained on together, and when (group ``window``)."""

    #: ``windowed`` takes the decisions of one window, ``rolling`` the newest complete ones.
    mode: str = "windowed"
    #: Clock that decisions are stamped with: ``wall`` or ``simulated`` (that of the market).
    clock: str = "wall"
    #: Minutes of one window; windows do not overlap and the first begins with 1970 UTC.
    minutes: float = 60.0
    #: Seconds of the clock after a window's end in which late decisions are waited for.
    grace_seconds: float = 0.0
    #: Agents that a window needs; only those count that meet the two keys below.
    min_agents: int = 3
    #: Decisions with an action other than NO_OP that an agent needs to count.
    min_actions: int = 5
    #: Decisions that an agent needs to count.
    min_trajectories_per_agent: int = 5
    #: Share of a window's decisions whose outcome must be known.
    completeness: float = 1.0
    #: Average reward that a window must reach; null: any.
    avg_reward_threshold: float | None = 0.3
    #: Decisions that mode ``rolling`` takes.
    rolling_decisions: int = 512

    def problems(self) -> Iterator[tuple[str, str]]:
        """Keys with values that cannot be, and why."""
        yield from _choice("mode", self.mode, MODES)
        yield from _choice("clock", self.clock, CLOCKS)
        seconds = self.minutes * 60
        if not 1 <= seconds < math.inf or abs(seconds - round(seconds)) > 1e-6:
            yield "minutes", "a window lasts a whole number of seconds, 1 or more"
        if not 0 <= self.grace_seconds < math.inf:
            yield "grace_seconds", "must be 0 or more"
        for key in ("min_agents", "min_trajectories_per_agent", "rolling_decisions"):
            if getattr(self, key) < 1:
                yield key, "must be 1 or more"
        if self.min_actions < 0:
            yield "min_actions", "must be 0 or more"
        if not 0 <= self.completeness <= 1:
            yield "completeness", "must be between 0 and 1"
        threshold = self.avg_reward_threshold
        if threshold is not None and not math.isfinite(threshold):
            yield "avg_reward_threshold", "must be a finite number, or null for none"


@dataclass
class DecisionRewardConfig(Group):
    """How the outcome of a decision becomes a number (group ``decision_reward``)."""

    #: Weight of profit and loss as a share of the investment.
    pnl_weight: float = 0.5
    #: Weight of the speed term.
    speed_weight: float = 0.2
    #: Weight of the consistency term, the agent's win rate.
    consistency_weight: float = 0.3
    #: Minutes of holding below which a decision counts as fast.
    fast_minutes: float = 60.0
    #: Speed term of a fast decision.
    fast_reward: float = 1.0
    #: Speed term of any other decision.
    slow_reward: float = 0.5
    #: Profit-and-loss term of a decision that invested nothing.
    uninvested_reward: float = 0.0
    #: Rewards below this are raised to it.
    low: float = -1.0
    #: Rewards above this are lowered to it.
    high: float = 1.0
    #: Rewards of one window before training: ``none``; ``center`` (less their mean); ``zscore``
    #: (and divided by their deviation); ``minmax`` (stretched to ``low`` … ``high``).
    normalize: str = "none"
    #: Discount of an agent's later rewards in its return.
    gamma: float = 0.99

    def problems(self) -> Iterator[tuple[str, str]]:
        """Keys with values that cannot be, and why."""
        yield from _choice("normalize", self.normalize, NORMALIZATIONS)
        for key, given in vars(self).items():
            if isinstance(given, float | int) and not math.isfinite(given):
                yield key, "must be a finite number"
        if not self.low < self.high:
            yield "low", f"must be below decision_reward.high={self.high:g}"
        if not 0 <= self.gamma <= 1:
            yield "gamma", "must be between 0 and 1"


def check(config: StoreConfig | WindowConfig | DecisionRewardConfig) -> None:
    """Raise ConfigError for the first of the ``problems``."""
    group = {StoreConfig: "store", WindowConfig: "window", DecisionRewardConfig: "decision_reward"}
    for key, problem in config.problems():
        raise ConfigError(f"{group[type(config)]}.{key}={getattr(config, key)}: {problem}")


def saved_groups(config_file: Path) -> tuple[StoreConfig, WindowConfig]:
    """The groups ``store`` and ``window`` of a run's ``config.yaml``.

    Raises ConfigError where the file is missing, damaged, or of a run without windows.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        loaded = OmegaConf.load(config_file)
        if not isinstance(loaded, DictConfig) or "window" not in loaded or "store" not in loaded:
            raise ConfigError(
                f"{config_file}: a run without windows; want one of rlforge continuous"
            )
        return read(StoreConfig, loaded.store), read(WindowConfig, loaded.window)
    except FileNotFoundError:
        raise ConfigError(f"{config_file}: not found") from None
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{config_file}: {str(error).splitlines()[0]}") from None


def _choice(key: str, given: str, choices: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if given not in choices:
        yield key, f"no such choice{nearest(given, choices)} (there are {', '.join(choices)})"
