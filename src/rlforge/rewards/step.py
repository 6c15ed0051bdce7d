"""Transforms of one turn's reward, which starts as its player's final reward.

A transform that ``adds_feedback`` judges the turn itself; the others also map the part that comes
from the outcome (``Sample.outcome_reward``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from rlforge.rewards.final import Bounds
from rlforge.samples import Trajectory


class StepTransform(Protocol):
    """Maps the reward of turn ``step_index`` (0 first) of ``trajectory``.

    Example: see ``Discount``.
    """

    adds_feedback: ClassVar[bool]

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float: ...


@runtime_checkable
class Noting(Protocol):
    """Step transform that also notes facts of a turn, such as its curiosity.

    Notes are made before any reward is computed. All later stages find them in ``info``: step
    transforms in ``trajectory.turns[step_index].info``, others in ``Sample.info``. JSON values are
    allowed; the mean of each number over a batch is the metric ``info/NAME``.
    """

    def notes(self, trajectory: Trajectory, step_index: int) -> Mapping[str, Any]: ...


@dataclass
class FormatReward:
    """Add ``reward`` to a well-formed answer and ``penalty`` to any other.

    Example: the second turn is not well-formed:
        >>> from types import SimpleNamespace as Fake
        >>> trajectory = Fake(turns=[Fake(well_formed=True), Fake(well_formed=False)])
        >>> [FormatReward(reward=0.5, penalty=-0.5)(trajectory, t, 1.0) for t in range(2)]
        [1.5, 0.5]
    """

    adds_feedback: ClassVar[bool] = True
    reward: float = 0.0
    penalty: float = 0.0

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        well_formed = trajectory.turns[step_index].well_formed
        return base_reward + (self.reward if well_formed else self.penalty)


@dataclass
class InvalidMovePenalty:
    """Add ``penalty`` to a move that the game rejected and ``reward`` to any other.

    Example: the game rejected the first turn:
        >>> from types import SimpleNamespace as Fake
        >>> trajectory = Fake(turns=[Fake(legal=False), Fake(legal=True)])
        >>> [InvalidMovePenalty(penalty=-0.5)(trajectory, t, 1.0) for t in range(2)]
        [0.5, 1.0]
    """

    adds_feedback: ClassVar[bool] = True
    reward: float = 0.0
    penalty: float = 0.0

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        legal = trajectory.turns[step_index].legal
        return base_reward + (self.reward if legal else self.penalty)


@dataclass
class Discount:
    """Multiply by gamma to the power of a distance, counted in the player's own turns.

    Attributes:
        distance_from: ``end`` uses gamma ** (T - 1 - t) for turn t of T, the discounted return of a
            terminal reward; ``start`` uses gamma ** t, as in the published example.

    Example: the rewards of a seat's three turns after a win:
        >>> from types import SimpleNamespace as Fake
        >>> trajectory = Fake(turns=[Fake()] * 3)
        >>> [Discount(gamma=0.5)(trajectory, index, 1.0) for index in range(3)]
        [0.25, 0.5, 1.0]
    """

    adds_feedback: ClassVar[bool] = False
    gamma: float = 0.99
    distance_from: Literal["end", "start"] = "end"

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma: {self.gamma} is outside [0, 1]")

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        from_end = len(trajectory.turns) - 1 - step_index
        distance = from_end if self.distance_from == "end" else step_index
        return float(base_reward * self.gamma**distance)


@dataclass
class Scale:
    """Multiply by ``alpha``.

    Example:
        >>> Scale(alpha=0.5)(None, 0, 1.0)
        0.5
    """

    adds_feedback: ClassVar[bool] = False
    alpha: float = 0.1

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        return self.alpha * base_reward


@dataclass
class Clamp(Bounds):
    """Clip into [``min_r``, ``max_r``].

    Example:
        >>> Clamp(min_r=-1.0, max_r=1.0)(None, 0, 3.0)
        1.0
    """

    adds_feedback: ClassVar[bool] = False

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        return self.clip(base_reward)
