import re
import time

import pytest

import rlforge.games.trial as games_trial
from rlforge.errors import ConfigError, GameError
from rlforge.games.base import GameResult, View
from rlforge.games.registry import check_env, make_game, tried
from rlforge.games.trial import trial
from rlforge.types import EnvSpec, Form


class Toy:
    """Three turns; ``fail`` gets seed, turn and answer. Starting it computes for ``start_s``."""

    accepted = True

    def __init__(self, seed, fail=None, start_s=0.0, turns=3):
        self.seed, self.fail, self.turns, self.turn = seed, fail, turns, 0
        end = time.thread_time() + start_s
        while time.thread_time() < end:
            pass

    @property
    def done(self):
        return self.turn >= self.turns

    def view(self):
        return View(player_id=0, observation="[go] or not", legal_actions=("[go]",))

    def step(self, action):
        self.turn += 1
        if self.fail is not None and self.fail(self.seed, self.turn, action):
            raise GameError(f"toy: step failed in turn {self.turn}")

    def result(self):
        return GameResult(rewards={0: 0.0}, end_reason="finished")


@pytest.mark.parametrize(
    ("fail", "seed"),
    [
        (lambda seed, turn, action: True, 0),
        (lambda seed, turn, action: seed == 2 and turn == 3, 2),
        (lambda seed, turn, action: action != "[go]", 1),
    ],
    ids=["always", "on one seed", "with senseless answers"],
)
def test_what_fails_in_the_first_turns_is_a_problem(fail, seed):
    found = trial(lambda seed: Toy(seed, fail), max_turns=9)
    assert f"(seed {seed}, " in found.problem
    assert "toy: step failed in turn" in found.problem


@pytest.fixture
def in_a_tenth_of_the_time(monkeypatch):
    for name in ("ENOUGH_S", "TOO_SLOW_S", "SLOW_S"):
        monkeypatch.setattr(f"rlforge.games.trial.{name}", getattr(games_trial, name) / 10)


@pytest.mark.usefixtures("in_a_tenth_of_the_time")
def test_a_game_that_takes_long_to_start_is_a_problem_and_a_slow_one_a_note():
    found = trial(lambda seed: Toy(seed, start_s=0.25 if seed == 1 else 0.0), max_turns=9)
    assert re.fullmatch(r"starting a game takes 0\.\d s \(seed 1\)", found.problem)
    assert trial(Toy, max_turns=9).notes == ()
    found = trial(lambda seed: Toy(seed, start_s=0.03), max_turns=9)
    assert found.problem is None
    assert re.match(r"starting a game takes up to 0\.\d s of computing", found.notes[0])


@pytest.mark.usefixtures("in_a_tenth_of_the_time")
def test_the_trial_of_a_slow_game_ends_soon():
    made = []

    def make(seed):
        made.append(seed)
        return Toy(seed, start_s=0.02)

    found = trial(make, max_turns=9)
    assert (found.problem, made) == (None, [0, 1, 2, 3])


def test_a_limit_that_no_game_reaches_its_end_in_is_noted():
    env = EnvSpec(id="Bandit-v0-train", num_players=1, max_turns=20)
    assert tried(env).notes == ("each of 4 games of random legal moves was cut at max_turns=20",)
    assert tried(EnvSpec(id="Bandit-v0-train", num_players=1, max_turns=21)).notes == ()


@pytest.mark.parametrize("variant", ["", "-long", "-extreme"])
def test_a_game_whose_first_step_raises_is_refused(variant):
    env = EnvSpec(id=f"CharacterConclave-v0{variant}-train", num_players=3)
    with pytest.raises(ConfigError, match=r"seed 0.*add_observation\(\) missing 1 required"):
        check_env(env)


def test_the_trial_is_played_once_for_seats_that_are_asked_in_several_ways(monkeypatch):
    check_env(EnvSpec(id="Nim-v0-train"))
    monkeypatch.setattr("rlforge.games.registry.trial", None)
    check_env(EnvSpec(id="Nim-v0-train", form=Form(template="chat"), weight=2))
    assert make_game(EnvSpec(id="Nim-v0-train"), 0).view().legal_actions
