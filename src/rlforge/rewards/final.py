"""Final transforms: from one mapping player -> reward to another, once per game."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from rlforge.types import GameRecord

Rewards = Mapping[int, float]


class FinalTransform(Protocol):
    """Maps the rewards of all players of a finished game; a player's id is its role.

    Example: any callable of this form, such as ``Scale``:
        >>> Scale(alpha=0.5)({0: 1.0, 1: -1.0}, "TicTacToe-v0")
        {0: 0.5, 1: -0.5}
    """

    def __call__(self, rewards: Rewards, env_id: str) -> dict[int, float]: ...


@runtime_checkable
class GameTransform(Protocol):
    """Final transform that needs the whole game; it need not be callable.

    Args:
        rewards: Rewards after the transforms before this one; those of ``record`` are raw.
        learned: Players whose episodes are learned from: trained seats, less those that
            ``collector.filter_opponent_invalid`` leaves out.
    """

    def of_game(
        self, rewards: Rewards, record: GameRecord, learned: Collection[int]
    ) -> dict[int, float]: ...


@runtime_checkable
class Stateful(Protocol):
    """Transform with state, which a resumed run restores."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass
class WinDrawLoss:
    """Map raw scores to ``win``, ``draw`` and ``loss``.

    The best player wins; several best draw, or win as a team. A single player wins with a score of
    at least the environment's ``win_score`` (``EnvSpec.outcome``).

    Attributes:
        single_player: ``score`` keeps the score of single-player games, so that partial solutions
            pay.

    Example:
        >>> from rlforge.types import EnvSpec, GameSpec
        >>> env = EnvSpec(id="KuhnPoker-v0-short")
        >>> spec = GameSpec(game_id="g", env=env, seed=0, purpose="train", seats=())
        >>> game = GameRecord(spec=spec, turns=(), rewards={0: 3.0, 1: 3.0}, end_reason="finished")
        >>> WinDrawLoss(draw=-0.5).of_game(game.rewards, game, learned=[0, 1])
        {0: -0.5, 1: -0.5}
    """

    win: float = 1.0
    draw: float = 0.0
    loss: float = -1.0
    single_player: Literal["outcome", "score"] = "outcome"

    def of_game(
        self, rewards: Rewards, record: GameRecord, learned: Collection[int]
    ) -> dict[int, float]:
        if len(rewards) == 1 and self.single_player == "score":
            return dict(rewards)
        paid = {"win": self.win, "draw": self.draw, "loss": self.loss}
        env = record.spec.env
        return {player: paid[env.outcome(rewards, player)] for player in rewards}


@dataclass
class RoleAdvantage:
    """Subtract the running mean reward of the role, since seats may differ in expected reward.

    Role-conditioned advantage estimation of SPIRAL (Liu et al. 2025, arXiv:2506.24119): the
    baseline of a role starts at 0 and follows b <- decay * b + (1 - decay) * r, once per game.

    Attributes:
        order: ``subtract_then_update`` takes r - b with the baseline of earlier games, which leaves
            the policy gradient unbiased; ``update_then_subtract`` counts the game itself and so
            multiplies every advantage by ``decay``.

    Example:
        >>> from rlforge.types import EnvSpec, GameSpec
        >>> env = EnvSpec(id="TicTacToe-v0")
        >>> spec = GameSpec(game_id="g", env=env, seed=0, purpose="train", seats=())
        >>> game = GameRecord(spec=spec, turns=(), rewards={0: 1.0, 1: -1.0}, end_reason="finished")
        >>> transform = RoleAdvantage(decay=0.5)
        >>> [transform.of_game(game.rewards, game, learned=[0]) for _ in range(2)]
        [{0: 1.0, 1: -1.0}, {0: 0.5, 1: -1.0}]
    """

    # The baseline lags behind, so rewards after it differ where those before it are all the same.
    is_baseline: ClassVar[bool] = True

    decay: float = 0.95
    order: Literal["subtract_then_update", "update_then_subtract"] = "subtract_then_update"
    _baselines: dict[tuple[str, int], float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay: {self.decay} is outside [0, 1)")

    def of_game(
        self, rewards: Rewards, record: GameRecord, learned: Collection[int]
    ) -> dict[int, float]:
        scope = self._scope(record.spec.env_id)
        advantages = {}
        for role, reward in rewards.items():
            before = after = self._baselines.get((scope, role), 0.0)
            # Rewards of opponents that are not trained say nothing about the learner's.
            if role in learned:
                after = self.decay * before + (1 - self.decay) * reward
                self._baselines[scope, role] = after
            advantages[role] = reward - (before if self.order == "subtract_then_update" else after)
        return advantages

    def _scope(self, env_id: str) -> str:
        """Key of environments that share a baseline: here all of them."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Baselines as ``[scope, role, value]`` triples."""
        return {"baselines": [[scope, role, b] for (scope, role), b in self._baselines.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._baselines = {(scope, role): b for scope, role, b in state["baselines"]}


@dataclass
class RoleAdvantageByEnv(RoleAdvantage):
    """``RoleAdvantage`` with a baseline per environment and role.

    Example: see ``RoleAdvantage``.
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
    """Interval of the ``clamp`` transforms. Raises ValueError when it is empty."""

    min_r: float = -1.0
    max_r: float = 1.0

    def __post_init__(self) -> None:
        if self.min_r > self.max_r:
            raise ValueError(f"min_r: {self.min_r} is above max_r {self.max_r}")

    def clip(self, reward: float) -> float:
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
