"""Transforms of a game's final rewards: a mapping player -> reward to another, once per game."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

Rewards = Mapping[int, float]


class FinalTransform(Protocol):
    """Maps the rewards of all players of one finished game; a player's id is its role.

    Example: any callable of this form, such as ``Scale``:
        >>> Scale(alpha=0.5)({0: 1.0, 1: -1.0}, "TicTacToe-v0")
        {0: 0.5, 1: -0.5}
    """

    def __call__(self, rewards: Rewards, env_id: str) -> dict[int, float]: ...


@runtime_checkable
class Stateful(Protocol):
    """A transform with state, which is saved and restored when a run is resumed."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass
class WinDrawLoss:
    """Map raw scores to ``win``, ``draw`` and ``loss``.

    The single best player wins, players who share the best score draw, the others lose. In a
    single-player game a positive score wins, 0 draws and a negative score loses.

    Example:
        >>> WinDrawLoss(draw=-0.5)({0: 3.0, 1: 3.0}, "KuhnPoker-v0-short")
        {0: -0.5, 1: -0.5}
    """

    win: float = 1.0
    draw: float = 0.0
    loss: float = -1.0

    def __call__(self, rewards: Rewards, env_id: str) -> dict[int, float]:
        if len(rewards) == 1:
            return {player: self._alone(reward) for player, reward in rewards.items()}
        best = max(rewards.values())
        shared = sum(reward == best for reward in rewards.values()) > 1
        for_best = self.draw if shared else self.win
        return {
            player: for_best if reward == best else self.loss for player, reward in rewards.items()
        }

    def _alone(self, reward: float) -> float:
        if reward == 0:
            return self.draw
        return self.win if reward > 0 else self.loss


@dataclass
class RoleAdvantage:
    """Subtract the running mean reward of the role, since seats may differ in expected reward.

    Role-conditioned advantage estimation of SPIRAL (Liu et al. 2025, arXiv:2506.24119): the
    baseline b of a role starts at 0 and follows b <- decay * b + (1 - decay) * r, once per game
    and role (in mirror self-play too: both seats are trained, each has its own baseline).

    order: ``subtract_then_update`` takes r - b with the baseline of earlier games, which leaves
        the policy gradient unbiased; ``update_then_subtract`` first adds the game to its own
        baseline and so multiplies every advantage by ``decay``.

    Example:
        >>> transform = RoleAdvantage(decay=0.5)
        >>> transform({0: 1.0, 1: -1.0}, "TicTacToe-v0")
        {0: 1.0, 1: -1.0}
        >>> transform({0: 1.0, 1: -1.0}, "TicTacToe-v0")
        {0: 0.5, 1: -0.5}
    """

    decay: float = 0.95
    order: Literal["subtract_then_update", "update_then_subtract"] = "subtract_then_update"
    _baselines: dict[tuple[str, int], float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay: {self.decay} is outside [0, 1)")

    def __call__(self, rewards: Rewards, env_id: str) -> dict[int, float]:
        advantages = {}
        for role, reward in rewards.items():
            key = (self._scope(env_id), role)
            before = self._baselines.get(key, 0.0)
            after = self.decay * before + (1 - self.decay) * reward
            self._baselines[key] = after
            advantages[role] = reward - (before if self.order == "subtract_then_update" else after)
        return advantages

    def _scope(self, env_id: str) -> str:
        """Key of environments that share a baseline: here all of them."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """The baselines as ``[scope, role, value]`` triples."""
        return {"baselines": [[scope, role, b] for (scope, role), b in self._baselines.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``."""
        self._baselines = {(scope, role): b for scope, role, b in state["baselines"]}


@dataclass
class RoleAdvantageByEnv(RoleAdvantage):
    """``RoleAdvantage`` with a baseline per environment and role.

    Example:
        >>> transform = RoleAdvantageByEnv(decay=0.5)
        >>> [transform({0: 1.0}, env_id) for env_id in ("Nim-v0", "KuhnPoker-v0", "Nim-v0")]
        [{0: 1.0}, {0: 1.0}, {0: 0.5}]
    """

    def _scope(self, env_id: str) -> str:
        return env_id


@dataclass
class Scale:
    """Multiply by ``alpha``.

    Example:
        >>> Scale(alpha=0.1)({0: 10.0}, "Nim-v0")
        {0: 1.0}
    """

    alpha: float = 0.1

    def __call__(self, rewards: Rewards, env_id: str) -> dict[int, float]:
        return {player: self.alpha * reward for player, reward in rewards.items()}


@dataclass
class Bounds:
    """The interval of the ``clamp`` transforms. Raises ValueError when it is empty."""

    min_r: float = -1.0
    max_r: float = 1.0

    def __post_init__(self) -> None:
        if self.min_r > self.max_r:
            raise ValueError(f"min_r: {self.min_r} is above max_r {self.max_r}")

    def clip(self, reward: float) -> float:
        """The nearest number in the interval."""
        return max(self.min_r, min(self.max_r, reward))


@dataclass
class Clamp(Bounds):
    """Clip into [``min_r``, ``max_r``].

    Example:
        >>> Clamp(min_r=-1.0, max_r=1.0)({0: 3.0}, "Nim-v0")
        {0: 1.0}
    """

    def __call__(self, rewards: Rewards, env_id: str) -> dict[int, float]:
        return {player: self.clip(reward) for player, reward in rewards.items()}
