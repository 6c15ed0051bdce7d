"""Probes are positions of the run's games; both versions play the same held-out games."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from tests.factories import causal_folder

from rlforge.config.games import EnvEntry
from rlforge.config.rules import changed
from rlforge.continuous.serving.game_checks import GameHoldout, game_probes
from rlforge.errors import DeploymentError, EngineError
from rlforge.models.load import stop_token_ids
from rlforge.types import Completion, PolicyRef

BASE = PolicyRef(uid="deploy-0", kind="checkpoint")


@pytest.fixture
def small_holdout(config, engine, tokenizer):
    config = changed(config, ["deployment.holdout_games=24"])
    return GameHoldout(config, engine, tokenizer, stop_token_ids(config.model, tokenizer))


async def test_two_versions_play_the_same_games_and_equal_ones_get_equal_rewards(
    small_holdout, adapter
):
    alone = await small_holdout(dataclasses.replace(BASE, uid="candidate-1"), BASE)
    assert len(alone.candidate) == 24
    assert alone.candidate == alone.current
    assert set(alone.current) <= {-1.0, 0.0, 1.0}
    outcomes = await small_holdout(adapter.policy(), BASE)
    assert outcomes.current == alone.current
    assert np.any(np.array(outcomes.candidate) != np.array(outcomes.current))


async def test_versions_are_compared_against_another_model(config, tokenizer, tmp_path):
    rival = f"hf:{causal_folder(tmp_path / 'gpt2', 'gpt2')}"
    asked = Counter()

    class Counting:
        async def generate(self, prompt, params, policy):
            asked[policy.uid] += 1
            return Completion(text="no action")

    games = ["deployment.holdout_games=4", f"deployment.holdout_opponent={rival}"]
    config = changed(config, games)
    outcomes = await GameHoldout(config, Counting(), tokenizer, ())(BASE, BASE)
    assert len(outcomes.current) == 4
    assert asked[rival] > 0 < asked[BASE.uid]


async def test_failed_games_are_an_error_with_their_cause(config, engine, tokenizer):
    class Failing:
        async def generate(self, *_):
            raise EngineError("no answer today")

    config = changed(config, ["deployment.holdout_games=4"])
    holdout = GameHoldout(config, Failing(), tokenizer, ())
    with pytest.raises(DeploymentError, match=r"4 of 4 held-out games failed.*no answer today"):
        await holdout(BASE, BASE)


def test_probes_are_positions_that_games_can_read(config, tokenizer):
    kuhn = EnvEntry(id="kuhn_poker", source="openspiel", max_turns=20)
    env = dataclasses.replace(config.env, train=[*config.env.train, kuhn])
    config = dataclasses.replace(changed(config, ["engine.max_tokens=5"]), env=env)
    probes = game_probes(config, tokenizer, (3,))
    texts = [tokenizer.decode(probe.prompt_token_ids) for probe in probes]
    assert len(set(texts)) > 2
    assert sum("kuhn" in text for text in texts) == 4
    assert all(probe.params.max_tokens == 5 for probe in probes)
    assert all(probe.params.stop_token_ids == (3,) for probe in probes)
    assert probes[0].well_formed("my move: [4]")
    assert not probes[0].well_formed("no idea")
    again = game_probes(config, tokenizer, (3,))
    assert [probe.prompt_token_ids for probe in again] == [p.prompt_token_ids for p in probes]
