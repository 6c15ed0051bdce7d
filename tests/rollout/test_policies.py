"""Who answers at a seat."""

from __future__ import annotations

import asyncio

import pytest

from rlforge.config.compose import compose
from rlforge.games.registry import make_game
from rlforge.models.load import load_tokenizer
from rlforge.rollout.policies import SeatPolicies
from rlforge.rollout.schedule import line_up
from rlforge.types import Completion, EnvSpec, GameSpec, PolicyRef

ENV = EnvSpec(id="TicTacToe-v0-train", prompt_template="board", action_extraction="bracket")


def version(number):
    uid = f"step-{number}"
    return PolicyRef(uid=uid, kind="checkpoint", path_or_name=f"/{uid}", version=number)


class Asked:
    """An engine that notes which policies it was asked for."""

    def __init__(self):
        self.versions = []

    async def generate(self, prompt_token_ids, params, policy):
        self.versions.append(policy.version)
        return Completion(text="[0]", policy_uid=policy.uid, policy_version=policy.version)


@pytest.fixture
def answers(small_model):
    model = ["model=hf", f"model.name={small_model}", "model.prompt_template=board"]
    config = compose(["+experiment=tictactoe_mirror", *model]).config
    engine = Asked()
    return engine, SeatPolicies(config, load_tokenizer(config.model), engine, [0])


def ask(answers, spec, player):
    view = make_game(ENV, 0).view()
    return asyncio.run(answers.for_game(spec)(spec.seats[player], view, 0))


def spec_of(policies, trained_uid):
    return GameSpec(
        game_id="g",
        env=ENV,
        seed=0,
        purpose="train",
        seats=line_up(ENV, policies, trained_uid=trained_uid),
    )


def test_a_game_under_way_goes_on_with_the_newer_version_and_says_so(answers):
    engine, seats = answers
    spec = spec_of([version(3), version(3)], "step-3")
    ask(seats, spec, 0)
    seats.use_version(version(4))
    assert ask(seats, spec, 1).policy_version == 4
    assert engine.versions == [3, 4]


def test_a_game_ahead_of_the_news_is_played_with_the_version_it_was_given(answers):
    """Else a game that counts as version 4 would go stale with a first turn of version 3."""
    engine, seats = answers
    seats.use_version(version(3))
    ask(seats, spec_of([version(4), version(4)], "step-4"), 0)
    assert engine.versions == [4]


def test_opponents_and_evaluated_versions_stay_what_they_are(answers):
    engine, seats = answers
    seats.use_version(version(4))
    ask(seats, spec_of([version(3), version(1)], "step-3"), 1)
    ask(seats, spec_of([version(3), version(1)], None), 0)
    assert engine.versions == [1, 3]
