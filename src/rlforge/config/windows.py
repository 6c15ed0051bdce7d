"""Settings of a market's records: store, windows of time, and the reward of a decision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rlforge.config.rules import (
    Count,
    Group,
    NotNegative,
    Positive,
    Problem,
    Range,
    Share,
    Text,
    Whole,
    checked,
    read,
)
from rlforge.errors import ConfigError


@dataclass
class StoreConfig(Group):
    """Where decisions are kept (group ``store``)."""

    #: Folder of the store; null: ``store`` in the run directory.
    path: Text | None = None
    #: MiB of the write-ahead log at which its decisions move into parquet files.
    segment_mb: Positive = 32.0
    #: Small files of one window that are merged into one.
    merge_files: Annotated[int, Range(2)] = 8
    #: Compression of the parquet files.
    compression: Literal["zstd", "snappy", "none"] = "zstd"


@dataclass
class WindowConfig(Group):
    """Which decisions are trained on together, and when (group ``window``)."""

    #: ``windowed`` takes the decisions of one window, ``rolling`` the newest complete ones.
    mode: Literal["windowed", "rolling"] = "windowed"
    #: Clock that decisions are stamped with: ``wall`` or ``simulated`` (that of the market).
    clock: Literal["wall", "simulated"] = "wall"
    #: Minutes of one window; windows do not overlap and the first begins with 1970 UTC.
    minutes: Positive = 60.0
    #: Seconds to wait for late decisions after a window's end.
    grace_seconds: NotNegative = 0.0
    #: Agents that a window needs, counting those that meet the next two keys.
    min_agents: Count = 3
    #: Decisions with an action other than NO_OP that an agent needs to count.
    min_actions: Whole = 5
    #: Decisions that an agent needs to count.
    min_trajectories_per_agent: Count = 5
    #: Share of a window's decisions whose outcome must be known.
    completeness: Share = 1.0
    #: Least average reward of a window; null: any.
    avg_reward_threshold: float | None = 0.3
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
    pnl_weight: float = 0.5
    #: Weight of the speed term.
    speed_weight: float = 0.2
    #: Weight of the consistency term, the agent's win rate.
    consistency_weight: float = 0.3
    #: Minutes of holding below which a decision counts as fast.
    fast_minutes: NotNegative = 60.0
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
    normalize: Literal["none", "center", "zscore", "minmax"] = "none"
    #: Discount of an agent's later rewards in its return.
    gamma: Share = 0.99

    def clashes(self) -> Iterator[Problem]:
        if not self.low < self.high:
            yield "low", f"must be below decision_reward.high={self.high:g}"


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
        store, window = read(StoreConfig, loaded.store), read(WindowConfig, loaded.window)
    except FileNotFoundError:
        raise ConfigError(f"{config_file}: not found") from None
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{config_file}: {str(error).splitlines()[0]}") from None
    return checked(store, config_file), checked(window, config_file)
