import random
from collections import Counter

import pytest

from rlforge.config.plugins import PLAYERS
from rlforge.errors import ConfigError, GameError
from rlforge.games.base import View
from rlforge.games.grids import Grid
from rlforge.games.players import check_player, make_player
from rlforge.games.registry import make_game
from rlforge.types import EnvSpec

TTT = EnvSpec(id="TicTacToe-v0-train")
SPIEL_TTT = EnvSpec(id="tic_tac_toe", source="openspiel")
TAK = EnvSpec(id="SimpleTak-v0-train")
FOUR = EnvSpec(id="ConnectFour-v0-train")


def play(env, names, seed):
    """The rewards of one game between scripted players."""
    game = make_game(env, seed)
    players = [make_player(name, env, 1000 * seed + i) for i, name in enumerate(names)]
    while not game.done:
        view = game.view()
        game.step(players[view.player_id].act(view))
        assert game.accepted
    return game.result().rewards


def results(env, name, opponent, games):
    """Wins, draws and losses of ``name``, half of the games from each seat."""
    counts = Counter()
    for seed in range(games):
        seat = seed % 2
        names = (name, opponent) if seat == 0 else (opponent, name)
        counts[play(env, names, seed)[seat]] += 1
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
    assert {tuple(play(TTT, ("minimax", "minimax"), seed).values()) for seed in range(30)} == {
        (0.0, 0.0)
    }
    openings = {make_player("minimax", TTT, s).act(make_game(TTT, 0).view()) for s in range(200)}
    assert openings == {f"[{cell}]" for cell in range(9)}


def test_minimax_wins_at_once_and_loses_late():
    assert make_player("minimax", TTT, 0).act(see("tictactoe", (0, 1), (3, 4))) == "[2]"
    # Lost with any move (a block at 1 is answered by 6, with two threats), but not at once.
    for seed in range(10):
        assert make_player("minimax", TTT, seed).act(see("tictactoe", (8,), (0, 2))) == "[1]"


def test_random_legal_takes_every_legal_action_equally_often():
    view = View(player_id=0, observation="", legal_actions=("[a]", "[b]", "[c]"))
    player = make_player("random_legal", TTT, 1)
    counts = Counter(player.act(view) for _ in range(3000))
    assert set(counts) == set(view.legal_actions)
    assert all(880 < count < 1120 for count in counts.values())


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
    for name, env in [
        ("random_legal", EnvSpec(id="KuhnPoker-v0-short-train")),
        ("random_legal", EnvSpec(id="leduc_poker", source="openspiel")),
        ("minimax", TTT),
        ("minimax", SPIEL_TTT),
        ("minimax", TAK),
        ("minimax", FOUR),
        ("minimax", EnvSpec(id="nim", source="openspiel")),
        ("mcts:5", TTT),
        ("mcts:5", TAK),
        ("mcts:5", FOUR),
        ("mcts:5", EnvSpec(id="kuhn_poker", source="openspiel")),
        ("win_block", TAK),
        ("win_block", FOUR),
    ]:
        check_player(name, env)


@pytest.mark.parametrize(
    ("name", "env", "message"),
    [
        ("minmax", TTT, "did you mean minimax"),
        (
            "minimax",
            EnvSpec(id="KuhnPoker-v0-short-train"),
            "minimax knows OpenSpiel games, TicTac",
        ),
        ("mcts:5", EnvSpec(id="KuhnPoker-v0-short-train"), "it searches OpenSpiel games, TicTac"),
        ("win_block", EnvSpec(id="Nim-v0"), "win_block knows TicTacToe, SimpleTak and Connect"),
        ("random_legal", EnvSpec(id="Poker-v0"), "needs a game that lists its legal actions"),
        ("random_legal", EnvSpec(id="ScorableGames-v0-7players"), "cannot play"),
    ],
)
def test_a_player_that_cannot_play_is_refused_with_the_reason(name, env, message):
    with pytest.raises(ConfigError, match=message):
        check_player(name, env)


def test_a_player_in_the_wrong_game_fails_as_a_game():
    nim = EnvSpec(id="Nim-v0")
    with pytest.raises(GameError, match="minimax knows OpenSpiel games, TicTacToe"):
        make_player("minimax", nim, 0).act(make_game(nim, 0).view())


def test_random_legal_answers_when_it_is_stuck():
    view = View(player_id=0, observation="", legal_actions=())
    assert make_player("random_legal", TTT, 0).act(view) == ""


def test_minimax_values_agree_with_a_plain_search():
    def outcome(cells, mover):
        lines = [
            (0, 1, 2),
            (3, 4, 5),
            (6, 7, 8),
            (0, 3, 6),
            (1, 4, 7),
            (2, 5, 8),
            (0, 4, 8),
            (2, 4, 6),
        ]
        if any(all(cells[i] == 3 - mover for i in line) for line in lines):
            return -1
        free = [i for i in range(9) if not cells[i]]
        if not free:
            return 0
        return max(
            -outcome([mover if j == i else c for j, c in enumerate(cells)], 3 - mover) for i in free
        )

    rng = random.Random(4)
    for _ in range(40):
        game = make_game(TTT, 0)
        for _ in range(rng.choice((3, 4, 5))):
            if not game.done:
                game.step(rng.choice(game.view().legal_actions))
        if game.done:
            continue
        grid = game.view().grid
        cells = [1 if grid.me >> i & 1 else 2 if grid.op >> i & 1 else 0 for i in range(9)]
        choice = int(make_player("minimax", TTT, 0).act(game.view())[1])
        after = [1 if i == choice else cell for i, cell in enumerate(cells)]
        assert -outcome(after, 2) == outcome(cells, 1)
