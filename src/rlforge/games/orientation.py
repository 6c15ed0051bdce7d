"""Grids in one of the orientations that the symmetries of a board make equal.

A square board looks different in eight orientations in which the same moves are good: TicTacToe has
5,478 positions, and 765 that differ in more than their orientation. A model that is shown one of
the eight learns the game from an eighth of the positions, and more requests are alike.
"""

from __future__ import annotations

import dataclasses
import re
from functools import cache, lru_cache

from rlforge.games.base import View
from rlforge.games.board import grid_board
from rlforge.games.grids import Grid, GridGame
from rlforge.types import EnvSpec, value

_NUMBER = re.compile(r"\d+")

Cells = tuple[int, ...]
"""For each cell of a board, the one where it is in another orientation."""


@value
class Shown:
    """A view as a player is shown it. cells: where each cell of the game's view is; None: there.

    Example:
        >>> from rlforge.types import EnvSpec
        >>> grid = Grid(game="tictactoe", rows=3, cols=3, me=1 << 8, op=0)  # the last corner
        >>> view = View(player_id=0, observation="", legal_actions=("[0]", "[1]"), grid=grid)
        >>> found = shown(EnvSpec(id="TicTacToe-v0", canonical=True), view)
        >>> found.view.grid.me, found.view.legal_actions  # the first corner
        (1, ('[5]', '[8]'))
        >>> found.played("[8]"), found.said("[0]")
        ('[0]', '[8]')
    """

    view: View
    cells: Cells | None = None

    def played(self, action: str) -> str:
        """The action in the game of one that is meant in ``view``."""
        return action if self.cells is None else _moved(action, _inverse(self.cells), self._columns)

    def said(self, action: str) -> str:
        """The action in ``view`` of one of the game."""
        return action if self.cells is None else _moved(action, self.cells, self._columns)

    @property
    def _columns(self) -> int:
        """The number of columns where actions name these, else 0."""
        grid = self.view.grid
        return grid.cols if grid is not None and grid.game == "connectfour" else 0


def shown(env: EnvSpec, view: View) -> Shown:
    """``view`` as the run's model is shown it in ``env``: with ``canonical`` turned."""
    if not env.canonical or view.grid is None:
        return Shown(view=view)
    grid, cells = canonical(view.grid)
    turned = Shown(view=dataclasses.replace(view, grid=grid), cells=cells)
    legal = view.legal_actions
    return dataclasses.replace(
        turned,
        view=dataclasses.replace(
            turned.view,
            board=None if view.board is None else grid_board(grid),
            legal_actions=legal and tuple(sorted(map(turned.said, legal), key=_natural)),
        ),
    )


@lru_cache(maxsize=1 << 16)
def canonical(grid: Grid) -> tuple[Grid, Cells]:
    """The orientation of ``grid`` with the smallest masks, and the way of each cell to it.

    Example: one stone in a corner is in the first one.
        >>> canonical(Grid(game="tictactoe", rows=3, cols=3, me=1 << 6, op=0))[0].me
        1
    """
    ways = symmetries(grid.game, grid.rows, grid.cols)
    me, op, cells = min((_mask(grid.me, way), _mask(grid.op, way), way) for way in ways)
    return dataclasses.replace(grid, me=me, op=op), cells


@cache
def symmetries(game: GridGame, rows: int, cols: int) -> tuple[Cells, ...]:
    """The ways to turn and mirror a board that keep the rules of ``game``, the identity first.

    Example:
        >>> [len(symmetries(game, 4, 4)) for game in ("simpletak", "connectfour")]
        [8, 2]
    """
    cells = [(r, c) for r in range(rows) for c in range(cols)]
    across = tuple(r * cols + cols - 1 - c for r, c in cells)
    found = [tuple(range(rows * cols)), across]
    if game != "connectfour":  # stones fall: rows stay where they are
        down = tuple((rows - 1 - r) * cols + c for r, c in cells)
        found += [tuple(down[cell] for cell in way) for way in found]
        if rows == cols:
            other = tuple(c * cols + r for r, c in cells)
            found += [tuple(other[cell] for cell in way) for way in found]
    return tuple(found)


def _mask(stones: int, way: Cells) -> int:
    return sum(1 << target for cell, target in enumerate(way) if stones >> cell & 1)


@cache
def _inverse(way: Cells) -> Cells:
    return tuple(sorted(range(len(way)), key=way.__getitem__))


def _moved(action: str, way: Cells, columns: int) -> str:
    """``action`` with its first number moved, if that is a cell or column of the board."""
    number = _NUMBER.search(action)
    if number is None or int(number[0]) >= (columns or len(way)):
        return action
    # A column is where its cell of the first row is.
    moved = way[int(number[0])]
    return f"{action[: number.start()]}{moved}{action[number.end() :]}"


def _natural(action: str) -> tuple[int, str]:
    number = _NUMBER.search(action)
    return (int(number[0]) if number else -1, action)
