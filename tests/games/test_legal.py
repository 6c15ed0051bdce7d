import random
import re

import pytest

from rlforge.games.legal import RULES, family, relisted
from rlforge.games.observations import new_part
from rlforge.games.textarena import TextArenaGame
from rlforge.types import EnvSpec

PLAYED = {
    "TicTacToe-v0-train": 2,
    "SimpleTak-v0-train": 2,
    "SimpleTak-v0-large-train": 2,
    "ConnectFour-v0-train": 2,
    "KuhnPoker-v0-short-train": 2,
    "Nim-v0-train": 2,
    "LiarsDice-v0-small-train": 2,
    "LiarsDice-v0-small": 4,
    "Othello-v0-tiny-train": 2,
    "Othello-v0-small-train": 2,
    "Breakthrough-v0-tiny-train": 2,
    "SantoriniBaseFixed-v0-train": 2,
    "WildTicTacToe-v0-train": 2,
    "ThreePlayerTicTacToe-v0-train": 3,
    "PigDice-v0-short-train": 2,
    "IteratedRockPaperScissors-v0-train": 2,
    "IteratedMatchingPennies-v0-train": 2,
    "Blackjack-v0-train": 1,
    "Bandit-v0-hard-train": 1,
}


@pytest.mark.parametrize(("env_id", "players"), PLAYED.items())
def test_every_listed_action_is_accepted_in_random_play(env_id, players):
    rng = random.Random(3)
    slow = env_id.startswith("Santorini")
    for seed in range(2 if slow else 12):
        game = TextArenaGame(EnvSpec(id=env_id, num_players=players, max_turns=400), seed)
        while not game.done:
            legal = game.view().legal_actions
            assert len(set(legal)) == len(legal)
            if legal:
                game.step(rng.choice(legal))
                assert game.accepted
            else:
                assert env_id.startswith("Breakthrough")
                game.step("stuck")
        stuck = game.result().end_reason == "invalid_move"
        assert stuck == (not legal)


@pytest.mark.parametrize("env_id", ["SantoriniBaseFixed-v0-train", "SantoriniBaseFixed-v0-raw"])
def test_a_list_of_moves_that_are_not_legal_is_replaced(env_id):
    rng = random.Random(1)
    game = TextArenaGame(EnvSpec(id=env_id), 3)
    for _ in range(6):
        view = game.view()
        lists = re.findall("^Valid moves: (.*)$", view.observation, re.MULTILINE)
        assert lists in ([], [", ".join(view.legal_actions)])
        assert lists or env_id.endswith("-raw")
        game.step(rng.choice(view.legal_actions))


def test_conversations_go_on_where_a_list_is_replaced():
    game, views = TextArenaGame(EnvSpec(id="SantoriniBaseFixed-v0-train"), 3), []
    for _ in range(4):
        views.append(game.view())
        game.step(game.view().legal_actions[0])
    for before, now in zip(views, views[2:], strict=False):
        news = new_part(now.observation, before.observation)
        assert "Game Rules" not in news
        assert news.endswith(f"Valid moves: {', '.join(now.legal_actions)}")


def test_lists_of_legal_moves_stay_where_they_are():
    for text in (
        "Available Moves: '[0]', '[2]'\nGo on.",
        "Valid moves: [0]\nGo.\nValid moves: [2]",
        "You may say [a], [b] or [c].",
        "Valid moves: none",
    ):
        assert relisted(text, ["[0]", "[1]", "[2]"]) == text
    assert relisted("Valid moves: [5]\nGo.", []) == "Go.\n\nValid moves: none"


def test_random_play_above_covers_every_rule():
    assert {family(env_id) for env_id in PLAYED} >= set(RULES)
    assert family("SimpleTak-v0-large-train") == "SimpleTak"
    assert family("2048-v0") == "2048"


@pytest.mark.parametrize(
    ("env_id", "all_actions"),
    [
        ("TicTacToe-v0-train", [f"[{i}]" for i in range(9)]),
        ("KuhnPoker-v0-short-train", ["[check]", "[bet]", "[call]", "[fold]"]),
        ("Nim-v0-train", [f"[{i} {n}]" for i in range(3) for n in range(1, 6)]),
        ("LiarsDice-v0-small-train", [f"[Bid: {q}, {f}]" for q in (1, 2) for f in range(1, 7)]),
        (
            "Breakthrough-v0-tiny-train",
            [
                f"[{a}{r}{b}{r + d}]"
                for a in "abcde"
                for b in "abcde"
                for r in range(1, 6)
                for d in (-1, 1)
                if 1 <= r + d <= 5
            ],
        ),
        ("Othello-v0-tiny-train", [f"[{r}, {c}]" for r in range(4) for c in range(4)]),
    ],
)
def test_actions_that_are_not_listed_are_not_accepted(env_id, all_actions):
    rng = random.Random(5)
    turned_down = 0
    for seed in range(4):
        game = TextArenaGame(EnvSpec(id=env_id, error_allowance=1000, max_turns=5000), seed)
        while not game.done:
            legal = game.view().legal_actions
            unlisted = [action for action in all_actions if action not in legal]
            # A pass in Othello is accepted with any answer.
            for action in (
                rng.sample(unlisted, min(len(unlisted), 9)) if "[skip]" not in legal else ()
            ):
                game.step(action)
                assert not game.accepted, action
                assert game.view().legal_actions == legal
                turned_down += 1
            if not legal:
                break
            game.step(rng.choice(legal))
            assert game.accepted
    assert turned_down > 20
