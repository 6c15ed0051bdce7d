"""Values cross from process to process as they are."""

from __future__ import annotations

import dataclasses
import importlib

import pytest
from tests.factories import completion, game_record, game_spec, turn

from rlforge.types import EnvSpec, PolicyRef, value


@value
class One:
    """A value of a single field, whose content could be taken for all contents."""

    names: tuple[str, ...]


TURN = turn(
    completion=completion(logprobs=(-0.1, -1e-300)), legal=False, info={"retry": True, "note": None}
)


@pytest.mark.parametrize(
    "content", [TURN, One(names=()), One(names=("a", "b")), PolicyRef(uid="base", kind="api")]
)
@pytest.mark.parametrize("name", ["pickle", "ray.cloudpickle"])
def test_a_value_arrives_as_it_left_and_stays_frozen(name, content):
    module = importlib.import_module(name)
    arrived = module.loads(module.dumps(content))

    assert arrived == content
    assert type(arrived) is type(content)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(arrived, dataclasses.fields(arrived)[0].name, None)


def test_a_value_of_a_class_made_in_a_function_crosses_too():
    from ray import cloudpickle

    @value
    class Local:
        left: int
        right: int = 2

    arrived = cloudpickle.loads(cloudpickle.dumps(Local(left=1)))
    assert (arrived.left, arrived.right) == (1, 2)


def test_contents_of_another_number_of_fields_are_refused():
    contents = PolicyRef(uid="base", kind="api").__getstate__()
    with pytest.raises(ValueError, match="shorter"):
        PolicyRef.__new__(PolicyRef).__setstate__(contents[:-1])


def test_a_record_is_one_line_without_its_turns():
    won = game_record(game_spec("train-1", "TicTacToe-v0-train"), turns=[TURN])
    assert repr(won) == (
        "GameRecord(train-1: TicTacToe-v0-train, 1 turns, finished, player 0 +1, player 1 -1)"
    )
    broken = dataclasses.replace(won, rewards={}, error="the game hangs")
    assert repr(broken).endswith("1 turns, failed: the game hangs)")


LOW = {"win_score": 0.25}
HANABI = {"id": "tiny_hanabi", "source": "openspiel", "win_score": 8}
OWN = {"id": "own", "source": "mine", "winners": "all", "win_score": 8}
KNOWN = {"id": "Codenames-v0"}


@pytest.mark.parametrize(
    ("env", "rewards", "player", "expected"),
    [
        ({}, {0: 1.0, 1: -1.0}, 0, "win"),
        ({}, {0: 1.0, 1: -1.0}, 1, "loss"),
        ({}, {0: 0.0, 1: 0.0}, 1, "draw"),
        ({}, {0: 0.5, 1: 0.5, 2: -1.0}, 0, "draw"),
        ({}, {0: 0.5, 1: 1.0, 2: -1.0}, 0, "loss"),
        ({}, {0: 1.0}, 0, "win"),
        ({}, {0: 0.9}, 0, "loss"),
        ({}, {0: 0.0}, 0, "loss"),
        (LOW, {0: 0.2}, 0, "loss"),
        (LOW, {0: 0.25}, 0, "win"),
        (LOW, {0: 0.3, 1: 0.5}, 0, "loss"),  # it counts in games of one player only
        (HANABI, {0: 10, 1: 10}, 1, "win"),
        (HANABI, {0: 4, 1: 4}, 0, "loss"),
        (OWN, {0: 10, 1: 10}, 1, "win"),
        (OWN, {0: 4, 1: 4}, 0, "loss"),
        # Known teams may be overruled, and are known by source.
        (KNOWN | {"winners": "one"}, {0: 1, 1: 1, 2: -1, 3: -1}, 0, "draw"),
        (KNOWN | {"source": "mine"}, {0: 1, 1: 1, 2: -1, 3: -1}, 0, "draw"),
    ],
)
def test_the_outcome_follows_from_the_rewards(env, rewards, player, expected):
    assert EnvSpec(**{"id": "Game-v0", **env}).outcome(rewards, player) == expected


@pytest.mark.parametrize(
    ("rewards", "won"),
    [
        ({0: 1, 1: -1, 2: 1, 3: 1, 4: -1, 5: 1}, {0, 2, 3, 5}),
        ({0: 0, 1: 0, 2: 0, 3: 0}, set()),
        ({0: -2, 1: 1, 2: 1}, {1, 2}),
        ({0: 2, 1: -1, 2: -1}, {0}),
    ],
)
@pytest.mark.parametrize(
    "env",
    [
        EnvSpec(id="SecretMafia-v0-train", num_players=6),
        EnvSpec(id="Codenames-v0-hardcore", num_players=4),
        EnvSpec(id="dou_dizhu", source="openspiel", num_players=3),
        EnvSpec(id="bridge(use_double_dummy_result=false)", source="openspiel", num_players=4),
        EnvSpec(id="own", source="mine", winners="team"),
    ],
    ids=lambda env: env.id,
)
def test_a_team_wins_with_all_of_its_members(env, rewards, won):
    for player in rewards:
        result = "win" if player in won else "loss" if won else "draw"
        assert env.outcome(rewards, player) == result
