"""The ``Game`` protocol."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, cast

from rlforge.config.names import Kind
from rlforge.errors import ExtensionError
from rlforge.games.grids import Grid
from rlforge.games.watchdog import Watchdog
from rlforge.types import EndReason, EnvSpec, value

_WATCHDOG = Watchdog()


@value
class View:
    """The view of the player to move.

    Attributes:
        legal_actions: Every action in the game's notation; None where the game does not list them,
            empty where the player loses with any answer.
        board: The state in a few words, for models with short prompts.
        grid: The same state for scripted players of placement games.
        retry: Whether this player's last action was rejected.
        state: The whole state as JSON, for scripted traders of markets.
        news: The part of the observation that is new since this player's last turn; None where
            observations repeat what was said before.
        history: All actions of an OpenSpiel game, chance included.

    Example:
        >>> view = View(player_id=1, observation="Your card is a King.", legal_actions=("[bet]",))
        >>> view.retry
        False
    """

    player_id: int
    observation: str
    legal_actions: tuple[str, ...] | None = None
    board: str | None = None
    retry: bool = False
    grid: Grid | None = None
    state: Mapping[str, Any] | None = None
    news: str | None = None
    # Players that search need it. It reveals hidden cards, so no prompt shows it.
    history: tuple[int, ...] | None = None


@value
class GameResult:
    """How a game ended: rewards by player id, and whose invalid move ended it.

    Example:
        >>> GameResult(rewards={0: 1.0, 1: -1.0}, end_reason="finished").rewards[0]
        1.0
    """

    rewards: Mapping[int, float]
    end_reason: EndReason
    invalid_by: int | None = None


class Game(Protocol):
    """One game from start to end; an object is never reused for a second game.

    Example: who says heads, wins.
        >>> class Heads:
        ...     done, accepted = False, True
        ...     def view(self) -> View:
        ...         return View(player_id=0, observation="Heads or tails?")
        ...     def step(self, action: str) -> None:
        ...         self.done, self.won = True, action == "heads"
        ...     def result(self) -> GameResult:
        ...         return GameResult(rewards={0: float(self.won)}, end_reason="finished")
        >>> game: Game = Heads()
        >>> game.step("heads")
        >>> game.result().rewards
        {0: 1.0}
    """

    @property
    def done(self) -> bool:
        """Whether the game is over; then only ``result`` may be called."""

    @property
    def accepted(self) -> bool:
        """Whether the last action counted as a move; True before the first."""

    def view(self) -> View:
        """The view of the player to move. Asking again gives the same view."""

    def step(self, action: str) -> None:
        """Apply an action; GameError where the game itself fails, not where it is invalid."""

    def result(self) -> GameResult:
        """How it ended. Raises ``ValueError`` while the game goes on."""


class TurnGame(ABC):
    """Base of the sources' games."""

    def __init__(self, env: EnvSpec, seed: int) -> None:
        self._spec = env
        # Chance comes from this generator, or a subclass overrides ``reseed``; else forks repeat
        # it.
        self._random = random.Random(seed)
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

    def reseed(self, seed: int) -> None:
        """Draw the chance events that are still to come from ``seed``."""
        self._random.seed(seed)

    @property
    def _out_of_turns(self) -> bool:
        limit = self._spec.max_turns
        return limit is not None and self._turn >= limit

    @abstractmethod
    def _look(self) -> View:
        """The view of the player to move; called once a turn."""

    def _finish(
        self, rewards: Mapping[int, float], reason: EndReason, invalid_by: int | None
    ) -> None:
        self._result = GameResult(rewards=rewards, end_reason=reason, invalid_by=invalid_by)


def reseed(game: Game, seed: int) -> None:
    """Draw the chance events that are still to come from ``seed``."""
    # Other games of extensions have no ``reseed`` and keep the chance of their first seed.
    if isinstance(game._made if isinstance(game, _Guarded) else game, TurnGame):
        cast("TurnGame", game).reseed(seed)


#: Seconds for a call of a user's game or player where ``env.timeout_s`` has no limit.
CALL_LIMIT_S = 600.0


def guarded(kind: Kind, name: str, limit_s: float | None, make: Callable[[], Any]) -> Any:
    """Call ``make`` for a game or player; failures in a user's code are ExtensionErrors.

    limit_s: seconds for each call; None: ``CALL_LIMIT_S``.
    """
    # The package's own code is trusted to return (TextArena has its own time limit), and a proxy
    # would only slow each call down.
    if kind.has_own(name):
        with kind.trial(name, ExtensionError):
            return make()
    trial = partial(_trial, kind, name, limit_s or CALL_LIMIT_S)
    return _Guarded(trial, trial(make))


def _trial(kind: Kind, name: str, limit_s: float, function: Callable[[], Any]) -> Any:
    def run() -> Any:
        with kind.trial(name, ExtensionError):
            return function()

    try:
        return _WATCHDOG.run(run, limit_s)
    except TimeoutError as error:
        raise ExtensionError(f"{kind.noun} {name!r} {error} (env.timeout_s)") from None


class _Guarded:
    def __init__(self, trial: Callable[[Callable[[], Any]], Any], made: Any) -> None:
        self._trial, self._made = trial, made

    def __getattr__(self, attribute: str) -> Any:
        found = self._trial(lambda: getattr(self._made, attribute))
        if not callable(found):
            return found
        return lambda *arguments, **named: self._trial(lambda: found(*arguments, **named))
