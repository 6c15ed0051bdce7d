"""Scripted players: opponents and baselines without a model. They get the same views as models."""

from __future__ import annotations

import json
import random
from functools import cache, partial
from typing import Protocol

from rlforge.config.plugins import PLAYERS
from rlforge.errors import ConfigError, ExtensionError, GameError
from rlforge.games.base import View, guarded
from rlforge.games.grids import Grid, line_completing_cells, placements, winning_cells
from rlforge.games.market import load_market
from rlforge.games.registry import make_game
from rlforge.market.traders import make_trader
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
        ...


class RandomLegal:
    """A uniformly random legal action.

    Example:
        >>> view = View(player_id=0, observation="", legal_actions=("[bet]",))
        >>> RandomLegal(EnvSpec(id="kuhn_poker"), random.Random(0)).act(view)
        '[bet]'
    """

    def __init__(self, env: EnvSpec, rng: random.Random) -> None:
        self._rng = rng

    def act(self, view: View) -> str:
        """Raises ``GameError`` when the game does not list its legal actions."""
        if view.legal_actions is None:
            raise GameError("random_legal needs a game that lists its legal actions")
        return self._rng.choice(view.legal_actions) if view.legal_actions else ""


class WinBlock:
    """Takes a winning cell, else a cell where the opponent would win, else a random one."""

    def __init__(self, env: EnvSpec, rng: random.Random) -> None:
        self._rng = rng

    def act(self, view: View) -> str:
        """Raises ``GameError`` outside of placement games."""
        grid = _grid_of(view, "win_block")
        choices = placements(grid)
        for stones in (grid.me, grid.op):
            winning = winning_cells(grid, stones)
            if found := [token for token, cell in choices.items() if winning >> cell & 1]:
                return self._rng.choice(found)
        return self._rng.choice(list(choices))


class Minimax:
    """Perfect TicTacToe: wins as soon and loses as late as possible; random among best actions."""

    def __init__(self, env: EnvSpec, rng: random.Random) -> None:
        self._rng = rng

    def act(self, view: View) -> str:
        """Raises ``GameError`` outside of TicTacToe."""
        grid = _grid_of(view, "minimax")
        values = {token: _value(grid.me, grid.op, cell) for token, cell in placements(grid).items()}
        best = max(values.values())
        return self._rng.choice([token for token, value in values.items() if value == best])


class MarketTrader:
    """A scripted trader of ``rlforge.market.traders`` at a seat of a market."""

    def __init__(self, kind: str, env: EnvSpec, rng: random.Random) -> None:
        if env.source != "market":
            raise ConfigError(f"a {kind} trader cannot play {env.id}: it trades on markets only")
        self._trader = make_trader(kind, load_market(env.id), rng)

    def act(self, view: View) -> str:
        """The trader's action as JSON."""
        assert view.state is not None
        return json.dumps(self._trader.decide(view.state))


# Traders that use only what a seat observes; insiders trade in the background only.
noise_trader = partial(MarketTrader, "noise")
momentum_trader = partial(MarketTrader, "momentum")
value_trader = partial(MarketTrader, "value")


def make_player(name: str, env: EnvSpec, seed: int) -> Player:
    """The player ``name`` for one game of ``env``; its choices follow from ``seed``.

    Raises ``ConfigError`` for an unknown name, and for a trader outside of markets.
    """
    with PLAYERS.trial(name, ExtensionError):
        player = _new_player(name, env, seed)
    made: Player = guarded(PLAYERS, name, player)
    return made


def _new_player(name: str, env: EnvSpec, seed: int) -> Player:
    player: Player = PLAYERS.find(name)(env, random.Random(seed))
    return player


def check_player(name: str, env: EnvSpec) -> None:
    """Ask the player for one action; raises ``ConfigError`` if it is unknown or cannot play."""
    try:
        with PLAYERS.trial(name):
            _new_player(name, env, seed=0).act(make_game(env, seed=0).view())
    except GameError as error:
        raise ConfigError(f"player {name!r} cannot play {env.id}: {error}") from error


def _grid_of(view: View, name: str) -> Grid:
    """The view's grid; raises ``GameError`` for games that the player ``name`` cannot play."""
    if view.grid is None or (name == "minimax" and view.grid.game != "tictactoe"):
        games = "TicTacToe" if name == "minimax" else "TicTacToe, SimpleTak and ConnectFour"
        raise GameError(f"{name} knows {games} only")
    return view.grid


_TICTACTOE = (1 << 9) - 1


def _value(me: int, op: int, cell: int) -> int:
    """Value of placing on ``cell`` for the player who does so: see ``_best``."""
    if line_completing_cells(3, 3, 3, me) >> cell & 1:
        return (_TICTACTOE & ~(me | op)).bit_count()
    return -_best(op, me | 1 << cell)


@cache
def _best(me: int, op: int) -> int:
    """Value for the player to move under perfect play of both: the number of free cells before
    the winning stone is placed, negative when it is the opponent's, 0 for a draw."""
    free = _TICTACTOE & ~(me | op)
    return max((_value(me, op, cell) for cell in range(9) if free >> cell & 1), default=0)
