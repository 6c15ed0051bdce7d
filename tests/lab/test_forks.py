"""Continuations of finished games: scripted players whose values are known, and a small Llama."""

import asyncio
import dataclasses
import itertools
from functools import cache

import pytest

from rlforge import play_game
from rlforge.config.compose import compose, to_yaml
from rlforge.errors import ConfigError, RunError
from rlforge.lab.forks import Start, analyse_game, fork_game
from rlforge.rollout.episode import replayed
from rlforge.types import EnvSpec

LINES = ("012", "345", "678", "036", "147", "258", "048", "246")


@pytest.fixture(scope="session")
def run_dir(small_model, tmp_path_factory):
    """What a run is read from: its configuration."""
    folder = tmp_path_factory.mktemp("run")
    model = ["model=hf", f"model.name={small_model}", "model.prompt_template=board"]
    config = compose(["env=tictactoe", *model, "model.action_extraction=bracket"]).config
    (folder / "config.yaml").write_text(to_yaml(config))
    return folder


@cache
def game_of(*cells):
    """TicTacToe with these cells in turn, then the first free one."""
    moves = itertools.chain((f"[{cell}]" for cell in cells), itertools.repeat(""))

    def player(view):
        assert view.legal_actions is not None
        return next(moves) or view.legal_actions[0]

    return play_game("tictactoe", player)


@cache
def worth(board, mover):
    """What X expects on ``board`` when both move at random."""
    for one, value in (("X", 1.0), ("O", -1.0)):
        if any(all(board[int(cell)] == one for cell in line) for line in LINES):
            return value
    free = [cell for cell in range(9) if board[cell] == "."]
    if not free:
        return 0.0
    after = [board[:cell] + mover + board[cell + 1 :] for cell in free]
    return sum(worth(one, "O" if mover == "X" else "X") for one in after) / len(free)


def forked(run_dir, record, start, name):
    return asyncio.run(fork_game(run_dir, record, start, dict.fromkeys((0, 1), name)))


def test_values_of_random_play_are_those_of_the_whole_tree(run_dir):
    record = game_of(0, 4, 1, 8, 5)
    seats = dict.fromkeys((0, 1), "random_legal")
    # The moment before or after, or the other player's view, would be off by more in the end.
    found = asyncio.run(analyse_game(run_dir, record, seats=seats, samples=150))
    board = list("." * 9)
    for moment, turn in zip(found.moments, record.turns, strict=True):
        exact = worth("".join(board), "XO"[turn.player_id])
        assert abs(moment.before.mean - exact) <= 1.6 * moment.before.half, moment.turn
        board[int(turn.action.strip("[]"))] = "XO"[turn.player_id]
    assert found.moments[-1].after.mean == record.rewards[0]
    assert [one.after for one in found.moments[:-1]] == [one.before for one in found.moments[1:]]


def test_an_analysis_names_the_mistake_and_its_mend(run_dir):
    # X has 0 and 1 and threatens 2; O plays 8 instead, and loses.
    record = game_of(0, 4, 1, 8, 2)
    assert record.rewards[0] == 1
    seats = dict.fromkeys((0, 1), "minimax")
    found = asyncio.run(analyse_game(run_dir, record, seats=seats, samples=8))
    [mistake] = [one for one in found.moments if one.decisive]
    assert (mistake.turn, mistake.player, mistake.action) == (4, 1, "[8]")
    assert mistake.change == -1
    assert mistake.best == "[2]"
    assert mistake.best_reward is not None
    assert mistake.best_reward.mean == 0
    assert (mistake.before.mean, mistake.after.mean) == (0, 1)  # of X


def test_an_action_is_taken_and_the_game_goes_on_from_there(run_dir):
    record = game_of(0, 4, 1, 8, 2)
    found = forked(run_dir, record, Start(turn=4, games=6, action="2"), "random_legal")
    assert found.start.action == "[2]"
    for one in found.records:
        assert one.turns[:3] == record.turns[:3]
        assert one.turns[3].action == "[2]"
        assert not one.spec.trained
    assert len({tuple(turn.action for turn in one.turns) for one in found.records}) > 1


def test_the_policy_of_the_run_plays_on(run_dir):
    record = game_of(0, 4, 1)
    seats = {0: "random_legal", 1: "base"}
    found = asyncio.run(fork_game(run_dir, record, Start(turn=2, games=8), seats))
    assert {one.turns[1].completion.policy_uid for one in found.records} == {"base"}
    assert sum(each.games for each in found.by_action(1).values()) == len(found.played)


def test_hidden_cards_stay_and_chance_to_come_is_drawn_anew(run_dir):
    """Played again, each continuation has the chance that it had, not that of the first game."""
    leduc = EnvSpec(id="leduc_poker", source="openspiel", max_turns=30)
    record = play_game(leduc, "random_legal", seed=3)
    one, two = (
        forked(run_dir, record, Start(turn=turn, games=12), "random_legal").records
        for turn in (1, 2)
    )
    assert {each.turns[0].observation for each in one} == {record.turns[0].observation}
    public = {
        line
        for each in one
        for turn in each.turns
        for line in turn.observation.splitlines()
        if line.startswith("Public card")
    }
    assert len(public) > 1
    for each in (*one, *two):
        seen = [game.view().observation for game, _ in replayed(each)]
        assert seen == [turn.observation for turn in each.turns]


def test_two_forks_are_the_same_games(run_dir):
    record, start = game_of(0, 4, 1), Start(turn=2, games=5)
    one, two = (forked(run_dir, record, start, "random_legal") for _ in range(2))
    actions = [[[turn.action for turn in r.turns] for r in f.records] for f in (one, two)]
    assert actions[0] == actions[1]


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (Start(turn=0, games=1), "turn 0: game play has turns 1 to"),
        (Start(turn=99, games=1), "turn 99: game play has turns 1 to"),
        (Start(turn=2, games=1, action="[0]"), r"action '\[0\]' is not legal at turn 2"),
    ],
)
def test_turns_and_actions_that_cannot_be(run_dir, start, message):
    with pytest.raises(ConfigError, match=message):
        forked(run_dir, game_of(0, 4, 1), start, "random_legal")


def test_seats_that_cannot_be(run_dir):
    record, start = game_of(0, 4, 1), Start(turn=2, games=1)
    with pytest.raises(ConfigError, match="seat 5: the game has seats 0 to 1"):
        asyncio.run(fork_game(run_dir, record, start, {5: "minimax"}))
    with pytest.raises(ConfigError, match="trader cannot play TicTacToe"):
        asyncio.run(fork_game(run_dir, record, start, {0: "value_trader"}))
    with pytest.raises(ConfigError, match="player 7: the game has players 0 to 1"):
        asyncio.run(analyse_game(run_dir, record, player=7))


def test_a_game_that_no_longer_repeats_itself_says_where(run_dir):
    record = game_of(0, 4, 1)
    turns = list(record.turns)
    turns[1] = dataclasses.replace(turns[1], observation="another version of the game")
    changed = dataclasses.replace(record, turns=tuple(turns))
    with pytest.raises(RunError, match="turn 2 does not repeat: its observation is"):
        forked(run_dir, changed, Start(turn=3, games=2), "random_legal")


def test_seconds_bound_an_analysis(run_dir):
    record = game_of(0, 4, 1, 8, 2)
    seats = dict.fromkeys((0, 1), "random_legal")
    found = asyncio.run(analyse_game(run_dir, record, seats=seats, samples=10**6, seconds=0.5))
    assert 16 * len(record.turns) <= found.games < 10**5
