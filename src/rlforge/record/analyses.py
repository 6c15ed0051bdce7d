"""The value of finished games over their turns, in ``analyses/`` of a run."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlforge.record.files import RunPaths, read_json, value_in, write_json
from rlforge.system.values import to_json
from rlforge.types import value

# Ids of games of datasets may have slashes.
_NO_FILE_NAME = re.compile(r"[^\w.~-]")
_Z95 = statistics.NormalDist().inv_cdf(0.975)


@value
class Estimate:
    """A mean reward over ``games`` games, and half the width of its 95 % interval."""

    mean: float
    half: float
    games: int

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half


def estimate(rewards: Sequence[float], bounds: tuple[float, float]) -> Estimate:
    """The mean of at least one reward with a normal interval; bounds: the possible rewards.

    Example:
        >>> won = estimate([1.0] * 64, (-1.0, 1.0))
        >>> won.mean, round(won.half, 2)
        (1.0, 0.06)
    """
    # A game at each bound is imagined for the variance, as Agresti and Coull (1998) do for shares:
    # else the interval of equal rewards would be empty.
    spread = statistics.pvariance([*rewards, *bounds])
    half = _Z95 * math.sqrt(spread / len(rewards))
    return Estimate(mean=statistics.fmean(rewards), half=half, games=len(rewards))


@value
class Moment:
    """A turn of an analysed game, counted from 1.

    Attributes:
        before, after: Mean reward of the analysed player in continuations from there.
        own_before, own_after: The same of the player that moved.
        decisive: The 95 % interval of ``change``, over all turns together, leaves 0 out.
        best: After a decisive loss, a better legal action.
    """

    turn: int
    player: int
    policy: str
    action: str
    before: Estimate
    after: Estimate
    own_before: Estimate
    own_after: Estimate
    decisive: bool
    best: str | None = None
    best_reward: Estimate | None = None

    @property
    def change(self) -> float:
        """Difference that the turn makes to the player that moved."""
        # By their own reward: where a game is not zero-sum, another's says nothing about a move.
        return self.own_after.mean - self.own_before.mean


@value
class Analysis:
    """A game's value over its turns, for ``player``. seats: who played on. games: continuations."""

    game_id: str
    env_id: str
    player: int
    seats: tuple[str, ...]
    rewards: Mapping[int, float]
    moments: tuple[Moment, ...]
    games: int
    failed: int = 0


def write_analysis(run_dir: Path, analysis: Analysis) -> Path:
    """Write an analysis, over an earlier one of the game; returns the file."""
    folder = RunPaths(root=run_dir).analyses
    folder.mkdir(exist_ok=True)
    file = folder / f"{_NO_FILE_NAME.sub('_', analysis.game_id)}.json"
    write_json(file, to_json(analysis))
    return file


def read_analyses(run_dir: Path) -> list[Analysis]:
    """The analyses of a run, by game. Raises DamagedError for a damaged file."""
    files = sorted(RunPaths(root=run_dir).analyses.glob("*.json"))
    return [value_in(Analysis, read_json(file), file) for file in files]
