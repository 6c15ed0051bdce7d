import copy
import random

import pytest
import textarena
from hypothesis import given, settings
from hypothesis import strategies as st

from rlforge.games.grids import Grid, placements, winning_cells
from rlforge.games.textarena import TextArenaGame
from rlforge.types import EnvSpec


@pytest.mark.parametrize("env_id", ["TicTacToe-v0", "SimpleTak-v0", "ConnectFour-v0"])
def test_winning_cells_are_those_where_the_environment_ends_in_a_win(env_id):
    rng = random.Random(7)
    wins = 0
    for seed in range(12):
        game = TextArenaGame(EnvSpec(id=env_id), seed)
        env = textarena.make(f"{env_id}-raw")
        env.reset(num_players=2, seed=seed)
        while not game.done:
            grid = game.view().grid
            winning = winning_cells(grid, grid.me)
            for action, cell in placements(grid).items():
                tried = copy.deepcopy(env)
                tried.step(action)
                won = (tried.state.rewards or {}).get(game.view().player_id) == 1
                assert bool(winning >> cell & 1) == won
                wins += won
            action = rng.choice(game.view().legal_actions)
            env.step(action)
            game.step(action)
    assert wins > 20


@given(st.integers(0, 2**25 - 1))
@settings(max_examples=200)
def test_a_connecting_cell_is_found_by_search_on_larger_boards(stones):
    side = 5

    def connected(mask):
        for starts, goals in (
            (list(range(side)), lambda c: c >= side * (side - 1)),
            ([r * side for r in range(side)], lambda c: c % side == side - 1),
        ):
            seen = [c for c in starts if mask >> c & 1]
            for cell in seen:
                if goals(cell):
                    return True
                row, col = divmod(cell, side)
                for r, c in ((row + 1, col), (row - 1, col), (row, col + 1), (row, col - 1)):
                    other = r * side + c
                    if 0 <= r < side and 0 <= c < side and mask >> other & 1 and other not in seen:
                        seen.append(other)
        return False

    grid = Grid(game="simpletak", rows=side, cols=side, me=stones, op=0)
    if connected(stones):
        return
    winning = winning_cells(grid, stones)
    for cell in range(side * side):
        if not stones >> cell & 1:
            assert bool(winning >> cell & 1) == connected(stones | 1 << cell)


def test_stones_go_to_free_cells_and_those_of_connect_four_fall_to_the_lowest():
    grid = Grid(game="tictactoe", rows=3, cols=3, me=0b1, op=0b10)
    assert placements(grid) == {f"[{i}]": i for i in range(2, 9)}
    bottom_left, above = 1 << 35, 1 << 28
    column_6 = sum(1 << (r * 7 + 6) for r in range(6))
    grid = Grid(game="connectfour", rows=6, cols=7, me=bottom_left | column_6, op=above)
    lowest = {f"[col {column}]": 35 + column for column in range(6)}
    assert placements(grid) == {**lowest, "[col 0]": 21}
