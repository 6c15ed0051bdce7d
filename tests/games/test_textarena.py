import dataclasses
import gc
import random
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import textarena
from tests.factories import random_views
from textarena.envs.registration import ENV_REGISTRY, register

from rlforge.errors import ConfigError, GameError
from rlforge.games.base import GameResult
from rlforge.games.registry import check_env
from rlforge.games.textarena import TextArenaGame
from rlforge.types import EnvSpec

TAK = EnvSpec(id="SimpleTak-v0-train")
DICE = EnvSpec(id="LiarsDice-v0-small-train")


def transcript(game, seed):
    """Everything that is seen in a game of random legal play."""
    return [(view.player_id, view.observation) for view in random_views(game, seed)], game.result()


class Scripted(textarena.Env):
    """An environment that misbehaves on demand: ``misbehave`` runs in step."""

    def __init__(self, misbehave, rewards=None):
        self.misbehave, self.rewards = misbehave, rewards

    def reset(self, num_players, seed=None):
        kind = textarena.TwoPlayerState if num_players == 2 else textarena.TeamMultiPlayerState
        self.state = kind(num_players=num_players, seed=seed)
        self.state.reset(game_state={}, player_prompt_function=lambda **_: "Say something.")

    def step(self, action):
        self.misbehave(self)
        return self.state.step()

    def close(self):
        return self.rewards, {}


@pytest.fixture
def scripted_env():
    ids = []

    def make(misbehave, rewards=None):
        env_id = f"Scripted{len(ids)}-v0"
        register(
            id=env_id,
            entry_point=Scripted,
            default_wrappers=[textarena.wrappers.LLMObservationWrapper],
            misbehave=misbehave,
            rewards=rewards,
        )
        ids.append(env_id)
        return EnvSpec(id=env_id, timeout_s=0.3)

    yield make
    for env_id in ids:
        del ENV_REGISTRY[env_id]


def finish(env):
    env.state.done = True


def test_games_leave_the_random_numbers_of_the_process_alone():
    random.seed(42)
    before, functions = random.getstate(), {n: f for n, f in vars(random).items() if callable(f)}
    transcript(TextArenaGame(DICE, 5), 1)
    assert random.getstate() == before
    assert {n: f for n, f in vars(random).items() if callable(f)} == functions


def test_games_in_eight_threads_are_each_reproducible():
    alone = [transcript(TextArenaGame(DICE, seed), seed) for seed in range(24)]
    barrier = threading.Barrier(8)

    def play(worker):
        barrier.wait()
        return [transcript(TextArenaGame(DICE, seed), seed) for seed in range(worker, 24, 8)]

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(play, range(8)))
    assert together == [alone[worker::8] for worker in range(8)]
    assert all(one not in alone[:place] for place, one in enumerate(alone))


def test_a_slow_game_does_not_hold_up_those_of_other_threads(scripted_env):
    drawn = {}

    def draw(env):
        first = random.random()
        inside.set()
        assert go_on.wait(5)
        drawn["slow"] = [first, random.random()]
        env.state.done = True

    inside, go_on = threading.Event(), threading.Event()
    env = dataclasses.replace(scripted_env(draw, {0: 1, 1: -1}), timeout_s=10)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(lambda: TextArenaGame(env, 7).step("x"))
        assert inside.wait(5)
        transcript(TextArenaGame(DICE, 5), 1)  # a whole game, while the other one is in its step
        own = random.random()
        go_on.set()
        slow.result()
    numbers = random.Random(7)
    assert drawn["slow"] == [numbers.random(), numbers.random()]
    assert own not in drawn["slow"]


def test_no_textarena_module_keeps_functions_of_random_of_its_own():
    # The isolation replaces the functions of the module, which such a module would not see.
    for path in Path(textarena.__file__).parent.rglob("*.py"):
        assert "from random import" not in path.read_text(encoding="utf-8"), path


def test_a_view_may_be_asked_for_twice():
    game = TextArenaGame(TAK, 0)
    assert game.view() is game.view()
    assert game.view().player_id == 0
    assert TextArenaGame(EnvSpec(id="KuhnPoker-v0-short-train"), 0).view().player_id == 1


@pytest.mark.parametrize("loser", [0, 1])
@pytest.mark.parametrize("allowance", [0, 1, 2])
def test_invalid_moves_beyond_the_allowance_lose_for_whoever_made_them(loser, allowance):
    game = TextArenaGame(EnvSpec(id=TAK.id, error_allowance=allowance), 0)
    if loser == 1:
        game.step("[5]")
        assert game.accepted
    for _ in range(allowance):
        game.step("[99]")
        assert not game.accepted
        assert not game.done
        assert game.view().player_id == loser
        assert game.view().retry
    game.step("[99]")
    assert game.done
    assert not game.accepted
    result = game.result()
    assert result.end_reason == "invalid_move"
    assert result.invalid_by == loser
    assert result.rewards == {loser: -1.0, 1 - loser: 1.0}


def test_the_allowance_is_for_errors_in_a_row():
    game = TextArenaGame(TAK, 0)
    for cell in (0, 15, 1, 14):
        game.step("nonsense")
        game.step(f"[{cell}]")
        assert game.accepted
    assert not game.done


def test_a_retry_is_told_apart_from_the_first_try_and_says_why():
    game = TextArenaGame(TAK, 0)
    first = game.view()
    game.step("[77]")
    second = game.view()
    assert (first.retry, second.retry) == (False, True)
    assert second.observation.startswith(f"{first.observation}\n\nYour last action was")
    assert "not accepted" in second.observation
    assert "Invalid cell number 77" in second.observation
    game.step("[3]")
    assert not game.view().retry
    assert "not accepted" not in game.view().observation
    game = TextArenaGame(EnvSpec(id="SimpleTak-v0"), 0)
    game.step("[77]")
    assert game.view().observation.count("Invalid cell number 77") == 1


def test_three_players_and_who_of_them_made_the_invalid_move():
    game = TextArenaGame(EnvSpec(id="ThreePlayerTicTacToe-v0-train", num_players=3), 0)
    for action in ("[0]", "[1]", "[0]", "[0]"):
        assert not game.done
        game.step(action)
    assert game.result().invalid_by == 2
    assert game.result().rewards == {0: 1.0, 1: 1.0, 2: -1.0}


def test_a_player_who_is_thrown_out_does_not_end_a_game_of_four():
    game = TextArenaGame(EnvSpec(id="LiarsDice-v0-small", num_players=4, error_allowance=0), 1)
    game.step("nonsense")
    assert not game.accepted
    assert not game.done
    assert game.view().player_id == 1
    assert not game.view().retry
    _, result = transcript(game, 1)
    assert result.end_reason == "finished"
    assert result.invalid_by is None
    assert result.rewards[0] == -1.0


@pytest.mark.parametrize("players", [2, 3])
def test_who_was_thrown_out_and_is_asked_again_loses(players):
    game = TextArenaGame(EnvSpec(id="SantoriniBaseFixed-v0-train", num_players=players), 0)
    for _ in range(4):
        game.step("nonsense")
    assert (game.result().invalid_by, game.result().rewards[0]) == (0, -1.0)


@pytest.mark.parametrize(
    ("name", "players", "action"),
    [
        ("SantoriniBaseFixed-v0-train", 2, None),
        ("PublicGoodsGame-v0-train", 2, "[5]"),
        ("MarketEntryGame-v0-train", 4, "[0]"),
    ],
)
def test_a_game_ends_when_all_players_are_thrown_out(name, players, action):
    ends = set()
    for seed in range(8):
        game = TextArenaGame(EnvSpec(id=name, num_players=players, error_allowance=0), seed)
        rng = random.Random(seed)
        while not game.done:
            legal = game.view().legal_actions or [action]
            game.step(rng.choice(["nonsense", rng.choice(legal)]))
        ends.add(game.result().end_reason)
        assert min(game.result().rewards.values()) == -1
    assert "invalid_move" in ends


def test_raw_ids_show_nothing_but_news():
    game = TextArenaGame(EnvSpec(id="TicTacToe-v0-raw"), 0)
    assert game.view().observation.startswith("[GAME] You are Player 0 in Tic Tac Toe.")
    game.step("[0]")
    game.step("[1]")
    view = game.view()
    assert view.observation == view.news
    assert "You are Player 0" not in view.news
    assert TextArenaGame(EnvSpec(id="TicTacToe-v0-train"), 0).view().news is None


def test_the_turn_limit_counts_every_answer_and_is_a_draw():
    game = TextArenaGame(EnvSpec(id=TAK.id, max_turns=5, error_allowance=2), 0)
    for action in ("[0]", "bad", "[1]", "bad", "[2]"):
        assert not game.done
        game.step(action)
    assert game.result().end_reason == "turn_limit"
    assert game.result().rewards == {0: 0.0, 1: 0.0}
    with pytest.raises(ValueError, match="SimpleTak-v0-train is not over after 0 turns"):
        TextArenaGame(TAK, 0).result()


def test_a_raising_step_names_env_turn_and_cause(scripted_env):
    def fail(env):
        raise IndexError("list index out of range")

    env = scripted_env(fail)
    random.seed(42)
    before = random.getstate()
    with pytest.raises(GameError, match=f"{env.id}: step failed in turn 1: IndexError: list"):
        TextArenaGame(env, 0).step("x")
    assert random.getstate() == before
    assert random.choice.__self__ is random._inst


def test_an_environment_that_ends_the_process_is_a_failure_with_its_line(scripted_env):
    def end(env):
        raise SystemExit(1)  # sys.exit is another function once wandb was imported

    game = TextArenaGame(scripted_env(end), 0)
    said = r"step failed in turn 1: SystemExit: 1 \(.*test_textarena.py, line"
    with pytest.raises(GameError, match=said):
        game.step("[0]")


def test_a_step_that_never_returns_is_given_up(scripted_env):
    def loop(env):
        while True:
            pass

    env = scripted_env(loop)
    with pytest.raises(GameError, match=r"step failed in turn 1: TimeoutError.*0\.3 s"):
        TextArenaGame(env, 0).step("x")


@pytest.mark.parametrize(
    ("rewards", "problem"),
    [
        (None, "not one for each player"),
        ("Player 0 wins", "not one for each player"),
        ({0: 1.0}, "not one for each player"),
        ({0: 1.0, 1: "won"}, "reward 'won' of player 1"),
        ({0: float("nan"), 1: 0.0}, "reward nan of player 0"),
    ],
)
def test_rewards_that_are_not_one_number_per_player_are_a_failure(scripted_env, rewards, problem):
    with pytest.raises(GameError, match=problem):
        TextArenaGame(scripted_env(finish, rewards), 0).step("x")


@pytest.mark.parametrize(
    ("rewards", "other"),
    [
        (None, 0.0),
        ("Player 0 wins", 0.0),
        ({}, 0.0),
        ({1: 1}, 1.0),
        ({0: "won", 1: None}, 0.0),
        ({0: float("nan"), 1: np.float32(0.5)}, 0.5),
        ({0: True, 1: float("inf")}, 0.0),
        ({0: {"score": 1}, 1: np.float64(1)}, 1.0),
        ({0: np.array([1.0]), 1: -0.5}, -0.5),
        ({0: 0.25, 1: 0.75}, 0.75),
    ],
)
def test_an_invalid_move_that_ends_a_game_pays_minus_one_whatever_is_handed_over(
    scripted_env, rewards, other
):
    def forfeit(env):
        env.state.set_invalid_move("Not like this.")

    game = TextArenaGame(dataclasses.replace(scripted_env(forfeit, rewards), error_allowance=0), 0)
    game.step("x")
    assert game.result() == GameResult(
        rewards={0: -1.0, 1: other}, end_reason="invalid_move", invalid_by=0
    )


@pytest.mark.parametrize(
    ("winners", "handed", "paid"),
    [
        ("team", {0: -0.5, 1: -0.5, 2: 1, 3: 1}, {0: -1, 1: -1, 2: 1, 3: 1}),
        ("team", {0: 0, 1: 0, 2: 0, 3: 0}, {0: -1, 1: 0, 2: 0, 3: 0}),
        ("one", {0: -0.5, 1: -0.5, 2: 1, 3: 1}, {0: -1, 1: -0.5, 2: 1, 3: 1}),
        ("all", {0: 4, 1: 4, 2: 4, 3: 4}, {0: -1, 1: -1, 2: -1, 3: -1}),
    ],
)
def test_an_invalid_move_is_lost_by_the_team(scripted_env, winners, handed, paid):
    def forfeit(env):
        env.state.done = env.state.set_invalid_move("Not like this.")

    changes = {"error_allowance": 0, "num_players": 4, "winners": winners}
    game = TextArenaGame(dataclasses.replace(scripted_env(forfeit, handed), **changes), 0)
    game.step("x")
    assert game.result().rewards == paid


@pytest.mark.parametrize("name", ["Countdown", "Cryptarithm", "Slitherlink", "ThreeCardMonte"])
def test_games_that_swap_reward_and_reason_are_lost_by_a_wrong_answer(name):
    game = TextArenaGame(EnvSpec(id=f"{name}-v0-train", num_players=1), 0)
    game.step("x")
    assert "0.0 Try" not in game.view().observation
    assert re.search(r"not accepted\. (Invalid|Bad) action", game.view().observation)
    game.step("x")
    result = game.result()
    assert (result.rewards, result.invalid_by) == ({0: -1.0}, 0)


@pytest.mark.parametrize("env_id", ["Bandit-v0-train", "Bandit-v0-hard"])
def test_the_best_arm_of_a_bandit_pays_most(env_id):
    env, best = EnvSpec(id=env_id, num_players=1), []
    for seed in range(6):
        paid = []
        for arm in TextArenaGame(env, seed).view().legal_actions:
            game = TextArenaGame(env, seed)
            while not game.done:
                game.step(arm)
            paid.append(game.result().rewards[0])
        assert (max(paid), paid.count(1.0)) == (1.0, 1)
        assert min(paid) >= 0
        best.append(paid.index(1.0))
    assert len(set(best)) > 1


def test_rewards_are_given_in_order_of_players(scripted_env):
    game = TextArenaGame(scripted_env(finish, {1: 1, 0: -1}), 0)
    game.step("x")
    assert list(game.result().rewards.items()) == [(0, -1.0), (1, 1.0)]


def test_a_turn_of_an_unknown_player_is_a_failure(scripted_env):
    def give_turn_to_player_7(env):
        env.state.current_player_id = 7
        env.state.observations[7] = []
        env.state.made_invalid_move = True
        env.state.role_mapping[7] = "?"

    game = TextArenaGame(scripted_env(give_turn_to_player_7), 0)
    game.step("x")
    with pytest.raises(GameError, match="turn of player 7"):
        game.view()


def test_a_finished_game_frees_its_environment_at_once(scripted_env):
    states = []

    def remember_and_finish(env):
        states.append(weakref.ref(env.state))
        env.state.done = True

    game = TextArenaGame(scripted_env(remember_and_finish, {0: 1, 1: -1}), 0)
    gc.disable()
    try:
        game.step("x")
        assert states[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("name", "players", "lists"),
    [
        ("Hangman-v0-train", 1, "words"),
        ("SpellingBee-v0", 2, "words"),
        ("DontSayIt-v0", 2, "averaged_perceptron_tagger_eng words"),
        ("Codenames-v0-train", 4, "averaged_perceptron_tagger_eng words"),
        ("Wordle-v0-train", 1, "averaged_perceptron_tagger_eng words"),
    ],
)
def test_games_without_their_word_list_name_the_command_that_fetches_it(
    name, players, lists, capfd, monkeypatch
):
    monkeypatch.setattr("nltk.data.path", [])
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(id=name, num_players=players))
    assert str(refused.value) == (
        f"env '{name}' needs word lists that are not here; run 'python -m nltk.downloader "
        f"-d FOLDER {lists}' where there is a network, and set NLTK_DATA=FOLDER here"
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (EnvSpec(id="SimpleTok-v0-train"), "did you mean SimpleTak-v0-train"),
        (EnvSpec(id=TAK.id, num_players=3), "is for 2 players, not 3; set num_players"),
        (EnvSpec(id="Blackjack-v0"), "is for 1 player, not 2"),
        (EnvSpec(id="ThreePlayerTicTacToe-v0"), "is for 3 players, not 2"),
        (EnvSpec(id="Stratego-v0"), "its step raises once a miner that defused a bomb moves on"),
        (EnvSpec(id="ScorableGames-v0-7players"), "cannot be played here.*FileNotFoundError"),
        (EnvSpec(id=TAK.id, max_turns=0), "must be positive"),
        (EnvSpec(id=TAK.id, error_allowance=-1), "error_allowance not negative"),
        (EnvSpec(id=TAK.id, source="textareba"), "did you mean textarena"),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_reason(env, message):
    with pytest.raises(ConfigError, match=message):
        check_env(env)


def test_without_limits_a_game_is_played_to_its_end():
    env = EnvSpec(id=TAK.id, max_turns=None, timeout_s=None, error_allowance=300)
    game = TextArenaGame(env, 0)
    for _ in range(250):
        game.step("bad")
    assert not game.done
