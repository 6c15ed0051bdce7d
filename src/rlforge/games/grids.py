"""Rules of placement games on a grid, as bit masks, from the side of the player to move.

Cell ``r * cols + c`` is that bit; row 0 is the top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Literal

from rlforge.types import value

GridGame = Literal["tictactoe", "simpletak", "connectfour"]

#: Stones in a straight line that win, in the games that lines win.
LINE_LENGTHS: Mapping[GridGame, int] = {"tictactoe": 3, "connectfour": 4}


@value
class Grid:
    """A position: the stones of the player to move and of the opponent."""

    game: GridGame
    rows: int
    cols: int
    me: int
    op: int


def grid_of(game: GridGame, rows: Sequence[Sequence[str]], marks: str, player: int) -> Grid:
    """Read a board as ``player`` sees it. marks: marks of both players."""
    cells = [cell for row in rows for cell in row]
    stones = [sum(1 << i for i, cell in enumerate(cells) if cell == mark) for mark in marks]
    return Grid(
        game=game, rows=len(rows), cols=len(rows[0]), me=stones[player], op=stones[1 - player]
    )


def placements(grid: Grid) -> dict[str, int]:
    """Each legal action, and the cell where its stone lands."""
    playable = playable_cells(grid.game, grid.rows, grid.cols, grid.me | grid.op)
    cells = [cell for cell in range(grid.rows * grid.cols) if playable >> cell & 1]
    if grid.game != "connectfour":
        return {f"[{cell}]": cell for cell in cells}
    # Stones fall, so a column has at most one playable cell.
    columns = sorted((cell % grid.cols, cell) for cell in cells)
    return {f"[col {column}]": cell for column, cell in columns}


def playable_cells(game: GridGame, rows: int, cols: int, taken: int) -> int:
    full = (1 << rows * cols) - 1
    if game != "connectfour":
        return full & ~taken
    bottom = full ^ full >> cols
    return (taken >> cols | bottom) & ~taken


def winning_cells(grid: Grid, stones: int) -> int:
    """Cells where one more stone wins for the side that holds ``stones``."""
    # Some may be taken or out of reach, so callers keep those in ``placements``.
    if grid.game == "simpletak":
        return connecting_cells(grid.rows, grid.cols, stones)
    return line_completing_cells(grid.rows, grid.cols, LINE_LENGTHS[grid.game], stones)


@lru_cache(maxsize=1 << 16)
def connecting_cells(rows: int, cols: int, stones: int) -> int:
    """Cells that would join two opposite edges."""
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

    # A cell joins two edges if it is at each of them or beside a stone that reaches it.
    joins = reaching(top) & reaching(bottom) | reaching(left) & reaching(right)
    return joins & ~stones


@lru_cache(maxsize=1 << 16)
def line_completing_cells(rows: int, cols: int, length: int, stones: int) -> int:
    completing = 0
    for line in _lines(rows, cols, length):
        missing = line & ~stones
        if missing.bit_count() == 1:
            completing |= missing
    return completing


@cache
def lines_through(rows: int, cols: int, length: int) -> tuple[tuple[int, ...], ...]:
    """For each cell, the straight runs of ``length`` that it is in."""
    return tuple(
        tuple(line for line in _lines(rows, cols, length) if line >> cell & 1)
        for cell in range(rows * cols)
    )


@cache
def _lines(rows: int, cols: int, length: int) -> tuple[int, ...]:
    return tuple(
        sum(1 << (r + i * down) * cols + c + i * across for i in range(length))
        for down, across in ((0, 1), (1, 0), (1, 1), (1, -1))
        for r in range(rows)
        for c in range(cols)
        if r + (length - 1) * down < rows and 0 <= c + (length - 1) * across < cols
    )
