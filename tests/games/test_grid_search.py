"""The best actions are those of a plain search, and of OpenSpiel's search."""

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlforge.games.grid_search import best_actions, search_depth
from rlforge.games.grids import Grid, GridGame, placements, winning_cells

SIDES = {"tictactoe": (3, 3), "simpletak": (4, 4), "connectfour": (6, 7)}


def position(game: GridGame, stones: int, rng: random.Random, side: int = 0) -> Grid:
    """A position after ``stones`` random stones, of which none wins."""
    rows, cols = (side, side) if side else SIDES[game]
    while True:
        grid = Grid(game=game, rows=rows, cols=cols, me=0, op=0)
        for _ in range(stones):
            cell = rng.choice(list(placements(grid).values()))
            if winning_cells(grid, grid.me) >> cell & 1:
                break
            grid = Grid(game=game, rows=rows, cols=cols, me=grid.op, op=grid.me | 1 << cell)
        else:
            return grid


@cache
def plain_value(grid: Grid, cell: int) -> int:
    """Free cells before the winning stone, negative for the opponent's, by a search of all."""
    if winning_cells(grid, grid.me) >> cell & 1:
        return grid.rows * grid.cols - (grid.me | grid.op).bit_count()
    after = Grid(game=grid.game, rows=grid.rows, cols=grid.cols, me=grid.op, op=grid.me | 1 << cell)
    return -max((plain_value(after, other) for other in placements(after).values()), default=0)


@pytest.mark.parametrize(("game", "fewest"), [("tictactoe", 0), ("simpletak", 9)])
@given(seed=st.integers(0, 10**6), data=st.data())
@settings(max_examples=30, deadline=None)
def test_solved_boards_have_the_best_actions_of_a_plain_search(game, fewest, seed, data):
    stones = data.draw(st.integers(fewest, 6 if game == "tictactoe" else 12))
    grid = position(game, stones, random.Random(seed))
    values = {action: plain_value(grid, cell) for action, cell in placements(grid).items()}
    best = max(values.values())
    assert best_actions(grid) == [action for action, value in values.items() if value == best]


def test_openings_and_a_double_threat_are_known():
    grid = Grid(game="simpletak", rows=4, cols=4, me=0, op=0)
    assert best_actions(grid) == list(placements(grid))
    assert best_actions(Grid(game="connectfour", rows=6, cols=7, me=0, op=0)) == ["[col 3]"]
    # Two stones in the bottom row, both ends free: a third makes two threats.
    me, op = 1 << 37 | 1 << 38, 1 << 31 | 1 << 30
    actions = best_actions(Grid(game="connectfour", rows=6, cols=7, me=me, op=op))
    assert set(actions) <= {"[col 1]", "[col 4]"}


@pytest.mark.parametrize(("game", "side"), [("connectfour", 0), ("simpletak", 5)])
def test_the_choice_does_not_depend_on_the_moves_before(game, side):
    rng = random.Random(3)
    grids = [position(game, stones, rng, side) for stones in (10, 12)]
    first = [best_actions(grid) for grid in grids]
    assert [best_actions(grid) for grid in reversed(grids)] == first[::-1]


def test_connect_four_sees_every_win_within_the_depth():
    rng = random.Random(5)
    seen = set()
    for _ in range(15):
        grid = position("connectfour", 34, rng)
        values = {action: plain_value(grid, cell) for action, cell in placements(grid).items()}
        best = max(values.values())
        expected = [action for action, value in values.items() if value == best]
        assert search_depth("connectfour", 42) == 8  # the 8 free cells are searched to the end
        assert best_actions(grid) == expected
        seen.add((best > 0) - (best < 0))
    assert seen == {-1, 0, 1}
