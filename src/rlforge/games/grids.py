"""Rules of placement games on a grid, as bit masks, from the side of the player to move.

Cell ``r * cols + c`` is bit ``r * cols + c``; row 0 is the top. A mask is an ``int``, so a whole
board is tested in a few machine operations and makes a cheap key for memoisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Literal

from rlforge.types import value

GridGame = Literal["tictactoe", "simpletak", "connectfour"]

#: Stones in a straight line that win, in the games that lines win.
LINE_LENGTHS: Mapping[GridGame, int] = {"tictactoe": 3, "connectfour": 4}


@value
class Grid:
    """A position: the stones of the player to move (``me``) and of the opponent (``op``)."""

    game: GridGame
    rows: int
    cols: int
    me: int
    op: int


def placements(grid: Grid) -> dict[str, int]:
    """Each legal action in the game's notation, and the cell where its stone lands."""
    playable = playable_cells(grid.game, grid.rows, grid.cols, grid.me | grid.op)
    if grid.game == "connectfour":
        columns = (playable & _column(grid.rows, grid.cols, col) for col in range(grid.cols))
        return {f"[col {col}]": cell.bit_length() - 1 for col, cell in enumerate(columns) if cell}
    return {
        token: cell for cell, token in _cell_tokens(grid.rows * grid.cols) if playable >> cell & 1
    }


def playable_cells(game: GridGame, rows: int, cols: int, taken: int) -> int:
    """Mask of the cells where the next stone may land."""
    full = (1 << rows * cols) - 1
    if game != "connectfour":
        return full & ~taken
    bottom = full ^ full >> cols
    return (taken >> cols | bottom) & ~taken


def winning_cells(grid: Grid, stones: int) -> int:
    """Mask of the cells where one more stone wins for the side that holds ``stones``.

    Does not check that a cell is free or reachable: see ``placements``.
    """
    if grid.game == "simpletak":
        return connecting_cells(grid.rows, grid.cols, stones)
    return line_completing_cells(grid.rows, grid.cols, LINE_LENGTHS[grid.game], stones)


@cache
def _cell_tokens(count: int) -> tuple[tuple[int, str], ...]:
    return tuple((cell, f"[{cell}]") for cell in range(count))


@cache
def _column(rows: int, cols: int, col: int) -> int:
    return sum(1 << r * cols + col for r in range(rows))


@lru_cache(maxsize=1 << 16)
def connecting_cells(rows: int, cols: int, stones: int) -> int:
    """Cells that would join two opposite edges: each side of the path is a cell's own edge or a
    neighbouring stone that already reaches that edge."""
    full = (1 << rows * cols) - 1
    top = (1 << cols) - 1
    bottom = top << (rows - 1) * cols
    left = sum(1 << r * cols for r in range(rows))
    right = left << cols - 1

    def grown(mask: int) -> int:
        sideways = (mask & ~right) << 1 | (mask & ~left) >> 1
        return (mask | mask << cols | mask >> cols | sideways) & full

    def reaching(edge: int) -> int:
        reached = stones & edge
        while (wider := grown(reached) & stones) != reached:
            reached = wider
        return edge | grown(reached)

    joins = reaching(top) & reaching(bottom) | reaching(left) & reaching(right)
    return joins & ~stones


@lru_cache(maxsize=1 << 16)
def line_completing_cells(rows: int, cols: int, length: int, stones: int) -> int:
    """Cells that complete a straight run of ``length``: its only missing stone."""
    completing = 0
    for line in _lines(rows, cols, length):
        missing = line & ~stones
        if missing.bit_count() == 1:
            completing |= missing
    return completing


@cache
def lines_through(rows: int, cols: int, length: int) -> tuple[tuple[int, ...], ...]:
    """For each cell, the masks of the straight runs of ``length`` that it is in."""
    return tuple(
        tuple(line for line in _lines(rows, cols, length) if line >> cell & 1)
        for cell in range(rows * cols)
    )


@cache
def _lines(rows: int, cols: int, length: int) -> tuple[int, ...]:
    """Every straight run of ``length`` cells, as a mask."""
    return tuple(
        sum(1 << (r + i * down) * cols + c + i * across for i in range(length))
        for down, across in ((0, 1), (1, 0), (1, 1), (1, -1))
        for r in range(rows)
        for c in range(cols)
        if r + (length - 1) * down < rows and 0 <= c + (length - 1) * across < cols
    )
