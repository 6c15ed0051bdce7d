import random
import re
from collections import Counter

import pyspiel
import pytest
from tests.factories import random_views, spiel

from rlforge.errors import ConfigError
from rlforge.games.openspiel import OpenSpielGame, load_game
from rlforge.games.registry import check_env
from rlforge.types import EnvSpec

KUHN = spiel("kuhn_poker")


def cards(game):
    """Both cards of a Kuhn game, by looking at the boards of both players in turn."""
    first = game.view().board.split()[1]
    game.step("[check]")
    return first, game.view().board.split()[1]


def play(seed, *actions):
    game = OpenSpielGame(KUHN, seed)
    hands = cards(OpenSpielGame(KUHN, seed))
    for action in actions:
        assert action in game.view().legal_actions
        game.step(action)
    return hands, game.result().rewards


@pytest.mark.parametrize(
    ("actions", "stake", "winner"),
    [
        (("[check]", "[check]"), 1, None),
        (("[bet]", "[call]"), 2, None),
        (("[check]", "[bet]", "[call]"), 2, None),
        (("[bet]", "[fold]"), 1, 0),
        (("[check]", "[bet]", "[fold]"), 1, 1),
    ],
)
def test_the_higher_card_wins_the_pot_and_a_fold_loses_the_ante(actions, stake, winner):
    for seed in range(12):
        (first, second), rewards = play(seed, *actions)
        won = "JQK".index(second) > "JQK".index(first) if winner is None else winner
        assert rewards == {won: stake, 1 - won: -stake}


def test_chance_follows_from_the_seed_with_the_right_odds():
    hands = [cards(OpenSpielGame(KUHN, seed)) for seed in range(1200)]
    assert hands == [cards(OpenSpielGame(KUHN, seed)) for seed in range(1200)]
    counts = Counter(hands)
    assert len(counts) == 6
    assert all(140 < count < 260 for count in counts.values())


def test_a_player_sees_its_card_and_the_bets_but_not_the_other_card():
    game = OpenSpielGame(KUHN, 3)
    own, _ = cards(OpenSpielGame(KUHN, 3))
    observation = game.view().observation
    assert f"Your card: {own}." in observation
    assert "Bets so far: none." in observation
    assert observation.endswith("Your available actions are: [check], [bet]")
    game.step("[check]")
    game.step("[bet]")
    assert "Bets so far: check, bet." in game.view().observation
    others = {
        OpenSpielGame(KUHN, seed).view().observation
        for seed in range(60)
        if cards(OpenSpielGame(KUHN, seed))[0] == own
    }
    assert others == {observation}


def test_leduc_shows_the_public_card_after_the_first_round():
    game = OpenSpielGame(spiel("leduc_poker"), 0)
    assert "Public card" not in game.view().observation
    for action in ("[raise]", "[call]", "[call]"):
        game.step(action)
    view = game.view()
    assert "Bets so far: raise, call.\nPublic card: " in view.observation
    assert "Bets since it was shown: call." in view.observation
    words = view.board.split()
    assert words[2:6] == ["raise", "call", "none", "none"]
    assert words[6] in "JQK"
    assert words[7:] == ["call", "none", "none", "[call]", "[raise]", "go"]


@pytest.mark.parametrize("allowance", [0, 1, 3])
def test_invalid_answers_beyond_the_allowance_lose_the_most_there_is(allowance):
    game = OpenSpielGame(EnvSpec(id="leduc_poker", error_allowance=allowance), 0)
    game.step("[raise]")
    assert game.accepted
    for _ in range(allowance):
        game.step("[check]")
        assert not game.accepted
        view = game.view()
        assert view.player_id == 1
        assert view.retry
        assert "Your last action was not accepted: [check]." in view.observation
    game.step("no brackets")
    result = game.result()
    assert (result.end_reason, result.invalid_by) == ("invalid_move", 1)
    assert result.rewards == {0: 13.0, 1: -13.0}


@pytest.mark.parametrize(
    ("name", "moves", "lost"),
    [
        ("bridge", 0, {0, 2}),
        ("bridge", 2, {0, 2}),
        ("tiny_bridge_4p", 1, {1, 3}),
        ("euchre", 0, {0, 2}),
        ("spades", 5, {1, 3}),
        ("coop_box_pushing", 1, {0, 1}),
        ("tiny_hanabi", 1, {0, 1}),
        ("leduc_poker(players=3)", 1, {1}),
    ],
)
def test_a_player_who_forfeits_loses_with_its_team(name, moves, lost):
    players = load_game(name).num_players()
    env = spiel(name, players, error_allowance=0, actions="numbers")
    game, draw = OpenSpielGame(env, 7), random.Random(3)
    while moves or game.view().player_id not in lost:
        game.step(draw.choice(game.view().legal_actions))
        moves -= bool(moves)
    game.step("no brackets")
    rewards = game.result().rewards
    assert {one for one in rewards if env.outcome(rewards, one) == "loss"} == lost
    assert {rewards[one] for one in lost} == {load_game(name).min_utility()}
    assert len({rewards[one] for one in rewards if one not in lost}) <= 1
    if load_game(name).get_type().utility == pyspiel.GameType.Utility.ZERO_SUM:
        assert sum(rewards.values()) == 0


@pytest.mark.parametrize(("moves", "teams"), [(0, {1}), (9, {1, 2})])
def test_defenders_are_a_team_once_the_landlord_is_known(moves, teams):
    env = spiel("dou_dizhu", 3, error_allowance=0)
    lost = set()
    for seed in range(12):
        game, draw = OpenSpielGame(env, seed), random.Random(seed)
        for _ in range(moves):
            if not game.done:
                game.step(draw.choice(game.view().legal_actions))
        if game.done:  # without a landlord
            continue
        game.step("no brackets")
        result = game.result()
        team = [one for one in range(3) if env.outcome(result.rewards, one) == "loss"]
        assert result.invalid_by in team
        lost.add(len(team))
    assert lost == teams


def test_the_turn_limit_is_a_draw_and_an_accepted_action_restores_the_allowance():
    game = OpenSpielGame(EnvSpec(id="leduc_poker", max_turns=2), 0)
    game.step("[call]")
    game.step("[call]")
    assert game.result().end_reason == "turn_limit"
    assert game.result().rewards == {0: 0.0, 1: 0.0}
    with pytest.raises(ValueError, match="kuhn_poker is not over"):
        OpenSpielGame(KUHN, 0).result()
    game = OpenSpielGame(KUHN, 0)
    for action in ("bad", "[check]", "bad", "[check]"):
        game.step(action)
    assert game.result().end_reason == "finished"


def test_simultaneous_moves_are_asked_in_turn_and_stay_hidden():
    env = spiel("matrix_rps")
    seen = set()
    for action in ("[Rock]", "[Paper]", "[Scissors]"):
        game = OpenSpielGame(env, 0)
        assert game.view().legal_actions == ("[Rock]", "[Paper]", "[Scissors]")
        game.step(action)
        assert game.view().player_id == 1
        seen.add(game.view().observation)
        game.step("[Rock]")
    assert len(seen) == 1
    assert game.result().rewards == {0: -1.0, 1: 1.0}


@pytest.mark.parametrize(
    "name",
    ["tic_tac_toe", "connect_four", "chess", "liars_dice", "goofspiel", "hex", "2048", "hanabi"],
)
def test_listed_actions_are_accepted_in_random_play(name):
    players = {"2048": 1}.get(name, 2)
    env = spiel(name, players, max_turns=60)
    check_env(env)
    for seed in range(3):
        game = OpenSpielGame(env, seed)
        for view in random_views(game, seed):
            assert view.observation
            assert game.accepted
        assert game.accepted
        assert len(game.result().rewards) == players


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (spiel("kun_poker"), "did you mean kuhn_poker"),
        (spiel("kuhn_poker", 3), "is for 2 players, not 3"),
        (spiel("2048"), "is for 1 player, not 2"),
        (spiel("misere"), "does not load: Missing parameter game"),
        (spiel("kuhn_poker(players=1)"), r"players_ = 1, .* = 2; give"),
        (spiel("mfg_garnet"), "mean-field"),
        (spiel("negotiation"), "cannot follow a seed"),
        (spiel("crossword", 1), "cannot be played: crossword: view failed in turn 0: SpielError"),
        (spiel("hex(board_size=1)"), "turn 1: ValueError: there is no action"),
        (spiel("clobber(rows=1,columns=1)"), "there is no action to choose"),
        (
            EnvSpec(id="TicTacToe-v0", actions="numbers"),
            "actions=numbers is for games of OpenSpiel",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_reason(env, message):
    with pytest.raises(ConfigError, match=message):
        check_env(env)


@pytest.mark.parametrize(
    ("name", "listed", "board"),
    [
        ("kuhn_poker", "[0] (Pass), [1] (Bet)", r"kuhn [JQK] none none \[0\] \[1\] go"),
        ("leduc_poker", "[1] (Call), [2] (Raise)", r"leduc [JQK]( none){8} \[1\] \[2\] go"),
        ("tiny_hanabi", "[0] (p0a0), [1] (p0a1), [2] (p0a2)", r"tiny_hanabi p0:d[01] .*\[2\] go"),
        ("connect_four", "[col 0], [col 1]", "four( [a-f]_{7}){6} go"),
    ],
)
def test_actions_can_be_written_as_numbers(name, listed, board):
    env = spiel(name, actions="numbers")
    game = OpenSpielGame(env, seed=3)
    view = game.view()
    assert f"Your available actions are: {listed}" in view.observation
    assert re.fullmatch(board, view.board)
    game.step(view.legal_actions[-1])
    assert game.accepted


@pytest.mark.parametrize("name", ["leduc_poker", "tiny_hanabi", "dark_hex(num_rows=2,num_cols=2)"])
def test_a_game_in_numbers_is_the_game_in_words(name):
    """The same cards, decisions and rewards, action by action."""
    for seed in range(20):
        choose = random.Random(seed)
        games = [
            OpenSpielGame(spiel(name, actions=actions), seed) for actions in ("words", "numbers")
        ]
        while not games[0].done:
            views = [game.view() for game in games]
            assert len({(view.player_id, view.history) for view in views}) == 1
            place = choose.randrange(len(views[0].legal_actions))
            for game, view in zip(games, views, strict=True):
                game.step(view.legal_actions[place])
                assert game.accepted
        assert games[1].done
        assert games[0].result() == games[1].result()


def test_players_see_boards_and_cards_where_the_information_state_is_numbers():
    shown = {
        "oshi_zumo": r"Coins: 43 47, Field: #\.\.\.\.W\.\.#",
        "coop_box_pushing": r"Total moves: 1[\s\S]*\.b\.BB\.b\.",
        "battleship": r"State of player's ships",
        "blackjack": r"Dealer: Cards: \?\? ",
        "solitaire": r"TABLEAUS",
        "twixt": r"\n  2  \.  \.  \.",  # without colours of a terminal
    }
    for name, expected in shown.items():
        players = 1 if name in ("blackjack", "solitaire") else 2
        game = OpenSpielGame(spiel(name, players), 0)
        if name in ("oshi_zumo", "coop_box_pushing", "battleship"):  # both move at once
            for action in (7, 3) if name == "oshi_zumo" else (0, 0):
                game.step(game.view().legal_actions[action])
        assert re.search(expected, game.view().observation), name


@pytest.mark.parametrize("name", ["oshi_zumo", "coop_box_pushing", "goofspiel"])
def test_the_move_of_the_first_player_stays_hidden_from_the_second(name):
    views = set()
    for action in range(3):
        game = OpenSpielGame(spiel(name), 0)
        game.step(game.view().legal_actions[action])
        views.add(game.view().observation)
    assert len(views) == 1
