from collections import Counter

import pytest
from tests.factories import scripted_game, spiel

from rlforge.config.plugins import PLAYERS
from rlforge.errors import ConfigError
from rlforge.games.base import View
from rlforge.games.grids import Grid
from rlforge.games.players import check_player, make_player
from rlforge.games.registry import make_game
from rlforge.types import EnvSpec

TTT = EnvSpec(id="TicTacToe-v0-train")
SPIEL_TTT = spiel("tic_tac_toe")
TAK = EnvSpec(id="SimpleTak-v0-train")
FOUR = EnvSpec(id="ConnectFour-v0-train")
KUHN = EnvSpec(id="KuhnPoker-v0-short-train")


def results(env, name, opponent, games):
    """Wins, draws and losses of ``name``, half of the games from each seat."""
    counts = Counter()
    for seed in range(games):
        seat = seed % 2
        names = (name, opponent) if seat == 0 else (opponent, name)
        counts[scripted_game(env, names, seed).result().rewards[seat]] += 1
    return counts[1.0], counts[0.0], counts[-1.0]


def see(game, me, op):
    side = {"tictactoe": (3, 3), "simpletak": (4, 4), "connectfour": (6, 7)}[game]
    mask = [sum(1 << cell for cell in cells) for cells in (me, op)]
    grid = Grid(game=game, rows=side[0], cols=side[1], me=mask[0], op=mask[1])
    return View(player_id=0, observation="", grid=grid)


@pytest.mark.parametrize("env", [TTT, SPIEL_TTT], ids=lambda env: env.source)
def test_minimax_never_loses_and_mostly_beats_random(env):
    wins, _, losses = results(env, "minimax", "random_legal", 120)
    assert losses == 0
    assert wins >= 96


def test_minimax_against_itself_is_always_a_draw_but_not_always_the_same_game():
    games = (scripted_game(TTT, ("minimax", "minimax"), seed) for seed in range(30))
    assert {tuple(game.result().rewards.values()) for game in games} == {(0.0, 0.0)}
    openings = {make_player("minimax", TTT, s).act(make_game(TTT, 0).view()) for s in range(200)}
    assert openings == {f"[{cell}]" for cell in range(9)}


def test_random_legal_takes_every_legal_action_equally_often():
    view = View(player_id=0, observation="", legal_actions=("[a]", "[b]", "[c]"))
    player = make_player("random_legal", TTT, 1)
    counts = Counter(player.act(view) for _ in range(3000))
    assert set(counts) == set(view.legal_actions)
    assert all(880 < count < 1120 for count in counts.values())
    stuck = View(player_id=0, observation="", legal_actions=())
    assert player.act(stuck) == ""


@pytest.mark.parametrize("name", [n for n in PLAYERS.names() if not n.endswith("_trader")])
def test_choices_follow_from_the_seed(name):
    view = make_game(TTT, 0).view()

    def acts(seed):
        player = make_player(name, TTT, seed)
        return [player.act(view) for _ in range(20)]

    assert acts(1) == acts(1)
    assert acts(1) != acts(2)


@pytest.mark.parametrize(
    ("game", "me", "op", "action"),
    [
        ("tictactoe", (0, 1), (3, 4), "[2]"),
        ("tictactoe", (0, 8), (3, 4), "[5]"),
        ("simpletak", (0, 4, 8), (1, 2, 3), "[12]"),
        ("simpletak", (15, 10), (4, 5, 6), "[7]"),
        ("connectfour", (35, 36, 37), (28, 29, 30), "[col 3]"),
        ("connectfour", (36, 29), (35, 28, 21), "[col 0]"),
    ],
)
def test_win_block_wins_before_it_blocks_and_blocks_before_anything_else(game, me, op, action):
    for seed in range(10):
        assert make_player("win_block", TAK, seed).act(see(game, me, op)) == action


@pytest.mark.parametrize(("env", "least"), [(TAK, 60), (TTT, 85), (FOUR, 85)])
def test_win_block_beats_random(env, least):
    wins, _, losses = results(env, "win_block", "random_legal", 120)
    assert wins >= least
    assert losses <= 12


def test_players_know_the_games_that_the_check_lets_them_play():
    for name, envs in {
        "random_legal": [KUHN, spiel("leduc_poker")],
        "minimax": [TTT, SPIEL_TTT, TAK, FOUR, spiel("nim")],
        "mcts:5": [TTT, TAK, FOUR, spiel("kuhn_poker")],
        "win_block": [TAK, FOUR],
    }.items():
        for env in envs:
            check_player(name, env)


@pytest.mark.parametrize(
    ("name", "env", "message"),
    [
        ("minmax", TTT, "did you mean minimax"),
        ("minimax", KUHN, "minimax knows OpenSpiel games, TicTac"),
        ("mcts:5", KUHN, "it searches OpenSpiel games, TicTac"),
        ("win_block", EnvSpec(id="Nim-v0"), "win_block knows TicTacToe, SimpleTak and Connect"),
        ("random_legal", EnvSpec(id="Poker-v0"), "needs a game that lists its legal actions"),
        ("random_legal", EnvSpec(id="ScorableGames-v0-7players"), "cannot play"),
    ],
)
def test_a_player_that_cannot_play_is_refused_with_the_reason(name, env, message):
    with pytest.raises(ConfigError, match=message):
        check_player(name, env)
