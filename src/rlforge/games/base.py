"""The ``Game`` protocol: whose turn it is, what that player sees, and how the game ended.

The functions at the end choose a game's source. A new source is a module with a ``Game`` class,
``check(env)`` and ``env_ids()``, and one branch in ``_source``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Protocol

from rlforge.errors import ConfigError, nearest
from rlforge.games.grids import Grid
from rlforge.types import EndReason, EnvSpec, value

SOURCES: Final = ("textarena", "openspiel", "market")


@value
class View:
    """What the player to move sees.

    legal_actions: every action the game accepts, in the game's notation; None where the game does
    not list them, empty where the player has no legal action and loses with any answer.
    board: the state in a few words, for models with short prompts; None where no such form
    exists. grid: the same state for scripted players of placement games.
    retry: this player's last action was rejected and it may try again. state: the whole state as
    JSON, for scripted traders of markets.
    """

    player_id: int
    observation: str
    legal_actions: tuple[str, ...] | None = None
    board: str | None = None
    retry: bool = False
    grid: Grid | None = None
    state: Mapping[str, Any] | None = None


@value
class GameResult:
    """How a game ended. rewards: one per player id. invalid_by: whose invalid move ended it."""

    rewards: Mapping[int, float]
    end_reason: EndReason
    invalid_by: int | None = None


class Game(Protocol):
    """One game from start to end; an object is never reused for a second game.

    Failures of the game itself raise ``GameError``; an invalid action does not.
    """

    @property
    def done(self) -> bool:
        """Whether the game is over; then only ``result`` may be called."""
        ...

    @property
    def accepted(self) -> bool:
        """Whether the last action counted as a move; True before the first."""
        ...

    def view(self) -> View:
        """What the player to move sees. Asking again gives the same view."""
        ...

    def step(self, action: str) -> None:
        """Apply the action of the player to move."""
        ...

    def result(self) -> GameResult:
        """How it ended. Raises ``ValueError`` while the game goes on."""
        ...


class TurnGame(ABC):
    """Base of the sources' games: counts turns, keeps the current view and the result."""

    def __init__(self, env: EnvSpec) -> None:
        self._spec = env
        self._turn = 0
        self._view: View | None = None
        self._result: GameResult | None = None

    @property
    def done(self) -> bool:
        return self._result is not None

    def view(self) -> View:
        if self._view is None:
            self._view = self._look()
        return self._view

    def result(self) -> GameResult:
        if self._result is None:
            raise ValueError(f"{self._spec.id} is not over after {self._turn} turns")
        return self._result

    @abstractmethod
    def _look(self) -> View:
        """The view of the player to move; called once a turn."""

    def _finish(
        self, rewards: Mapping[int, float], reason: EndReason, invalid_by: int | None
    ) -> None:
        self._result = GameResult(rewards=rewards, end_reason=reason, invalid_by=invalid_by)


class Source(Protocol):
    """A module that games come from."""

    def make(self, env: EnvSpec, seed: int) -> Game:
        """A fresh game."""
        ...

    def check(self, env: EnvSpec) -> None:
        """Start the game once; raises ``ConfigError`` where that fails."""
        ...

    def env_ids(self) -> list[str]:
        """All ids, sorted."""
        ...


def make_game(env: EnvSpec, seed: int) -> Game:
    """A new game whose chance events follow from ``seed``.

    Raises ``GameError`` or ``ConfigError``.

    Example:
        >>> game = make_game(EnvSpec(id="kuhn_poker", source="openspiel"), seed=0)
        >>> view = game.view()
        >>> view.player_id, view.legal_actions
        (0, ('[check]', '[bet]'))
        >>> game.step("[check]")
        >>> game.done
        False
    """
    return _source(env.source).make(env, seed)


def check_env(env: EnvSpec) -> None:
    """Start the game once; raises ``ConfigError`` with the reason and the mend if it does not."""
    if env.max_turns < 1 or env.timeout_s <= 0 or env.error_allowance < 0:
        raise ConfigError(
            f"env {env.id!r}: max_turns and timeout_s must be positive and error_allowance not "
            f"negative, got {env.max_turns}, {env.timeout_s:g} and {env.error_allowance}"
        )
    _source(env.source).check(env)


def env_ids(source: str) -> list[str]:
    """All ids that a source knows, sorted. Raises ``ConfigError`` for an unknown source."""
    return _source(source).env_ids()


def _source(name: str) -> Source:
    # Imported on first use: a run with one source does not load the others.
    if name == "textarena":
        from rlforge.games import textarena

        return textarena
    if name == "openspiel":
        from rlforge.games import openspiel

        return openspiel
    if name == "market":
        from rlforge.games import market

        return market
    raise ConfigError(
        f"source {name!r} is unknown{nearest(name, SOURCES)}; there are {', '.join(SOURCES)}"
    )
