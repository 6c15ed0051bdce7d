"""Boards in one orientation: the rules stay, positions that look different become alike."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.games.grids import Grid, GridGame, placements, winning_cells
from rlforge.games.orientation import canonical, shown, symmetries
from rlforge.games.registry import make_game
from rlforge.types import EnvSpec

BOARDS: list[tuple[GridGame, int, int, int]] = [
    ("tictactoe", 3, 3, 8),
    ("simpletak", 4, 4, 8),
    ("simpletak", 3, 5, 4),
    ("connectfour", 6, 7, 2),
]


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    game, rows, cols, _ = draw(st.sampled_from(BOARDS))
    cells = draw(st.lists(st.sampled_from("..mo"), min_size=rows * cols, max_size=rows * cols))
    me, op = (sum(1 << i for i, cell in enumerate(cells) if cell == mark) for mark in "mo")
    return Grid(game=game, rows=rows, cols=cols, me=me, op=op)


def moved(mask: int, way: tuple[int, ...]) -> int:
    return sum(1 << target for cell, target in enumerate(way) if mask >> cell & 1)


@pytest.mark.parametrize(("game", "rows", "cols", "number"), BOARDS)
def test_the_symmetries_of_a_board_are_a_group(
    game: GridGame, rows: int, cols: int, number: int
) -> None:
    ways = symmetries(game, rows, cols)
    assert len(set(ways)) == len(ways) == number
    assert ways[0] == tuple(range(rows * cols))
    assert {tuple(one[cell] for cell in other) for one in ways for other in ways} == set(ways)


@given(grids())
def test_what_wins_is_turned_with_the_board_and_all_orientations_are_shown_alike(
    grid: Grid,
) -> None:
    expected, _ = canonical(grid)
    for way in symmetries(grid.game, grid.rows, grid.cols):
        me, op = moved(grid.me, way), moved(grid.op, way)
        turned = Grid(game=grid.game, rows=grid.rows, cols=grid.cols, me=me, op=op)
        wins = winning_cells(grid, grid.me) & ~grid.op
        assert winning_cells(turned, me) & ~op == moved(wins, way)
        found, back = canonical(turned)
        assert found == expected
        assert (moved(me, back), moved(op, back)) == (found.me, found.op)


@pytest.mark.parametrize(
    "env",
    [
        EnvSpec(id="TicTacToe-v0-train", canonical=True),
        EnvSpec(id="SimpleTak-v0-train", canonical=True),
        EnvSpec(id="ConnectFour-v0-train", canonical=True),
        EnvSpec(id="tic_tac_toe", source="openspiel", canonical=True),
        EnvSpec(id="connect_four", source="openspiel", canonical=True),
        EnvSpec(id="connect_four", source="openspiel", actions="numbers", canonical=True),
    ],
    ids=lambda env: f"{env.id}-{env.actions}",
)
def test_what_is_said_of_the_turned_board_is_played_on_the_games_own(env: EnvSpec) -> None:
    rng = random.Random(3)
    turns = 0
    for seed in range(4):
        game = make_game(env, seed)
        while not game.done:
            view = game.view()
            asked = shown(env, view)
            assert view.grid is not None
            assert asked.view.grid == canonical(view.grid)[0]
            assert view.legal_actions is not None
            assert asked.view.legal_actions is not None
            assert {asked.played(each) for each in asked.view.legal_actions} == {
                *view.legal_actions
            }
            assert all(asked.played(asked.said(each)) == each for each in view.legal_actions)
            if env.actions == "words":
                assert {*asked.view.legal_actions} == {*placements(asked.view.grid)}
            for nonsense in ("", "pass", "[99]", "[col 99]"):
                assert asked.played(nonsense) == asked.said(nonsense) == nonsense
            turns += asked.view.grid != view.grid
            game.step(asked.played(rng.choice(asked.view.legal_actions)))
            assert game.accepted
    assert turns  # else nothing was turned


def test_of_the_positions_of_tictactoe_an_eighth_is_left() -> None:
    """5,478 positions, of them 765 up to symmetry (Schaefer 2002, "MathRec solutions")."""
    start = Grid(game="tictactoe", rows=3, cols=3, me=0, op=0)
    seen, left = {start}, [start]
    while left:
        grid = left.pop()
        if any(not line & ~grid.op for line in (7, 56, 448, 73, 146, 292, 273, 84)):
            continue  # the opponent has won
        for cell in placements(grid).values():
            after = Grid(game="tictactoe", rows=3, cols=3, me=grid.op, op=grid.me | 1 << cell)
            if after not in seen:
                seen.add(after)
                left.append(after)
    alike = {canonical(grid)[0] for grid in seen}
    # Boards count, and who moves follows from them.
    assert (len(seen), len(alike)) == (5478, 765)


def test_a_view_without_a_grid_and_an_environment_without_the_setting_stay_as_they_are() -> None:
    for env in (
        EnvSpec(id="kuhn_poker", source="openspiel", canonical=True),
        EnvSpec(id="TicTacToe-v0-train"),
    ):
        view = make_game(env, 0).view()
        asked = shown(env, view)
        assert asked.view is view
        assert asked.played("[1]") == asked.said("[1]") == "[1]"
