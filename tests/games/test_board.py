import random

import pyspiel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import random_views, spiel

from rlforge.games.board import Hand, grid_board, hand_board, state_board
from rlforge.games.grids import Grid
from rlforge.games.openspiel import view_of
from rlforge.games.registry import make_game
from rlforge.types import EnvSpec

GAMES = [
    *(EnvSpec(id=f"{name}-v0-train") for name in ("TicTacToe", "SimpleTak", "ConnectFour")),
    EnvSpec(id="KuhnPoker-v0-short-train"),
    *map(spiel, ("tic_tac_toe", "connect_four", "kuhn_poker", "leduc_poker")),
]


def test_a_grid_is_written_row_by_row_from_the_side_to_move():
    me, op = 1 << 2 | 1 << 5, 1 << 3 | 1 << 4
    assert grid_board(Grid(game="simpletak", rows=4, cols=4, me=me, op=op)) == (
        "tak a__mo bom__ c____ d____ go"
    )
    assert grid_board(Grid(game="simpletak", rows=4, cols=4, me=op, op=me)) == (
        "tak a__om bmo__ c____ d____ go"
    )


def test_a_hand_is_written_in_slots_that_do_not_move():
    kuhn = Hand(game="kuhn", card="K", public=None, rounds=(("check", "bet"),))
    assert hand_board(kuhn, ["[fold]", "[call]"]) == "kuhn K check bet [call] [fold] go"
    leduc = Hand(game="leduc", card="Q", public="K", rounds=(("call", "call"), ("raise",)))
    assert hand_board(leduc, ["[fold]", "[call]", "[raise]"]) == (
        "leduc Q call call none none K raise none none [call] [raise] [fold] go"
    )
    assert state_board("liars_dice", "3 1-2 2-1 ", ["[2-2]", "[Liar]"]) == (
        "liars_dice 3 1-2 2-1 [2-2] [Liar] go"
    )


@pytest.mark.parametrize("env", GAMES, ids=lambda env: env.id)
def test_boards_of_a_game_have_one_length_and_end_alike(env):
    lengths = set()
    for seed in range(20):
        for view in random_views(make_game(env, seed), seed):
            words = view.board.split()
            assert words[-1] == "go"
            lengths.add(len(words) - sum(word.startswith("[") for word in words))
    assert len(lengths) == 1


@pytest.mark.parametrize(
    ("textarena_id", "openspiel_id"),
    [("TicTacToe-v0-train", "tic_tac_toe"), ("ConnectFour-v0-train", "connect_four")],
)
def test_both_sources_show_the_same_board_and_want_the_same_actions(textarena_id, openspiel_id):
    one, other = make_game(EnvSpec(id=textarena_id), 0), make_game(spiel(openspiel_id), 0)
    for view, same in zip(random_views(one, 2), random_views(other, 2), strict=True):
        assert view.board == same.board
        assert view.legal_actions == same.legal_actions
    assert one.result() == other.result()


def test_textarena_kuhn_shows_the_betting_so_far():
    def boards(*actions):
        game = make_game(EnvSpec(id="KuhnPoker-v0-short-train"), 11)
        seen = [game.view().board]
        for action in actions:
            game.step(action)
            seen.append(game.view().board)
        return [board.split(maxsplit=2)[2] for board in seen]

    assert boards("[check]", "[bet]") == [
        "none none [check] [bet] go",
        "check none [check] [bet] go",
        "check bet [call] [fold] go",
    ]
    assert boards("[bet]") == ["none none [check] [bet] go", "bet none [call] [fold] go"]


def test_a_board_that_players_may_not_see_is_not_shown():
    view = make_game(EnvSpec(id="ConnectFour-v0-blind-train"), 0).view()
    assert (view.board, view.grid, view.legal_actions) == (None, None, None)


@given(actions=st.lists(st.integers(0, 30), max_size=12))
@pytest.mark.parametrize(
    "name", ["liars_dice(players=2,numdice=1,dice_sides=4)", "dark_hex(num_rows=2,num_cols=2)"]
)
def test_a_board_in_openspiels_words_tells_a_player_all_it_knows_and_no_more(name, actions):
    """Two states look the same to the player to move if, and only if, it cannot tell them apart."""
    game = pyspiel.load_game(name)
    boards, states = {}, {}
    for seed in range(4):
        state, chance = game.new_initial_state(), random.Random(seed)
        for action in [*actions, 0]:
            while state.is_chance_node():
                state.apply_action(chance.choice(state.legal_actions()))
            if state.is_terminal():
                break
            known = state.information_state_string(state.current_player())
            board = view_of(state).board
            assert board.split()[0] == name.split("(")[0]
            assert boards.setdefault(known, board) == board
            assert states.setdefault(board, known) == known
            legal = state.legal_actions()
            state.apply_action(legal[action % len(legal)])
