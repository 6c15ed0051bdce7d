"""Scripted players, which get the same views as models."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Protocol

from rlforge.config.plugins import PLAYERS
from rlforge.errors import ConfigError, GameError
from rlforge.games.base import View, guarded
from rlforge.games.grid_search import best_actions
from rlforge.games.grids import placements, winning_cells
from rlforge.games.registry import make_game
from rlforge.types import EnvSpec


class Player(Protocol):
    """Answers views with actions in the game's notation; each game makes its own.

    Example:
        >>> class First:
        ...     def __init__(self, env: EnvSpec, rng: random.Random) -> None:
        ...         pass
        ...     def act(self, view: View) -> str:
        ...         return view.legal_actions[0]
        >>> player: Player = First(EnvSpec(id="kuhn_poker"), random.Random(0))
        >>> player.act(View(player_id=0, observation="", legal_actions=("[bet]", "[pass]")))
        '[bet]'
    """

    def act(self, view: View) -> str:
        """The action in ``view``."""


class RandomLegal:
    """A uniformly random legal action."""

    def __init__(self, env: EnvSpec, rng: random.Random) -> None:
        self._rng = rng

    def act(self, view: View) -> str:
        if view.legal_actions is None:
            raise GameError("random_legal needs a game that lists its legal actions")
        return self._rng.choice(view.legal_actions) if view.legal_actions else ""


class WinBlock:
    """Takes a winning cell, else a cell where the opponent would win, else a random one."""

    def __init__(self, env: EnvSpec, rng: random.Random) -> None:
        self._rng = rng

    def act(self, view: View) -> str:
        if (grid := view.grid) is None:
            raise GameError("win_block knows TicTacToe, SimpleTak and ConnectFour only")
        choices = placements(grid)
        for stones in (grid.me, grid.op):
            winning = winning_cells(grid, stones)
            if found := [token for token, cell in choices.items() if winning >> cell & 1]:
                return self._rng.choice(found)
        return self._rng.choice(list(choices))


class Minimax:
    """Plays best actions: wins as soon and loses as late as possible; random among the best.

    Larger boards than those of TicTacToe and SimpleTak are searched to a fixed depth.
    """

    def __init__(self, env: EnvSpec, rng: random.Random) -> None:
        self._env, self._rng = env, rng

    def act(self, view: View) -> str:
        if view.grid is not None:
            return self._rng.choice(best_actions(view.grid))
        if view.history is not None:
            # Imported here so that a run without OpenSpiel games does not load OpenSpiel.
            from rlforge.games.tree_search import exact_actions

            return self._rng.choice(exact_actions(self._env, view))
        raise GameError("minimax knows OpenSpiel games, TicTacToe, SimpleTak and ConnectFour only")


def mcts(simulations: str) -> Callable[[EnvSpec, random.Random], Player]:
    """Factory of the player ``mcts:SIMULATIONS``."""
    if not re.fullmatch("[1-9][0-9]*", simulations):
        raise ConfigError("needs the simulations per move, a number above 0, as in mcts:200")

    def make(env: EnvSpec, rng: random.Random) -> Player:
        from rlforge.games.tree_search import TreeSearch

        return TreeSearch(env, int(simulations), rng)

    return make


#: Players called ``FAMILY:NAME``, by family: functions of the part behind the colon.
FAMILIES = {"mcts": mcts}

#: Players and families whose moves may take seconds: they are asked in a thread.
SEARCHING = ("minimax", "mcts")


def make_player(name: str, env: EnvSpec, seed: int) -> Player:
    """The player ``name`` for one game of ``env``; ConfigError for an unknown name."""
    limit_s = env.timeout_s
    made: Player = guarded(PLAYERS, name, limit_s, lambda: _new_player(name, env, seed))
    return made


def _new_player(name: str, env: EnvSpec, seed: int) -> Player:
    player: Player = PLAYERS.find(name)(env, random.Random(seed))
    return player


def check_player(name: str, env: EnvSpec) -> None:
    """Ask the player for one action; ConfigError if it is unknown or cannot play."""
    try:
        with PLAYERS.trial(name):
            _new_player(name, env, seed=0).act(make_game(env, seed=0).view())
    except GameError as error:
        raise ConfigError(f"player {name!r} cannot play {env.id}: {error}") from error
