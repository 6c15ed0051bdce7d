"""Contradictions are found before anything starts, and the message says the mend."""

import json
import shutil
from pathlib import Path

import pytest
from tests.harness.composed import composed

from rlforge.errors import ConfigError
from rlforge.launch import check
from rlforge.preflight.games import validate
from rlforge.rollout.lineup import eval_envs, eval_pairings, train_envs
from rlforge.types import Form

TINY = "+experiment=simpletak_mirror"


@pytest.mark.parametrize("algorithm", ["gspo", "cispo", "rloo", "maxrl", "dapo"])
def test_the_relatives_of_grpo_are_chosen_by_their_names(algorithm):
    found = composed(TINY, f"algorithm={algorithm}", "rewards=wins")
    validate(found)
    assert found.config.algorithm.name == "grpo"


def test_envs_take_template_and_extraction_of_the_model():
    config = composed(TINY).config
    assert train_envs(config)[0].form == Form(template="board", extraction="bracket")
    assert eval_envs(config) == train_envs(config)


@pytest.mark.parametrize(
    ("base", "met"), [("true", ["base", "win_block"]), ("false", ["win_block"])]
)
def test_the_untrained_model_is_an_evaluation_opponent_unless_it_is_left_out(base, met):
    config = composed(TINY, "eval.opponents=[win_block]", f"eval.base={base}").config
    (pairing,) = eval_pairings(config)
    assert [policy.uid for policy in pairing.opponents] == met


@pytest.mark.parametrize("temperature", ["0", "null", "0.5"])
def test_vllm_evaluates_greedily_or_at_a_usual_temperature(temperature):
    validate(composed(TINY, "engine=vllm", f"eval.temperature={temperature}"), keys=False)


def test_a_run_needs_the_package_of_its_engine_and_a_look_at_it_does_not(monkeypatch):
    monkeypatch.setattr("rlforge.engines.vllm_settings.version_of", lambda name: None)
    found = composed(TINY, "engine=vllm")
    validate(found, keys=False)
    with pytest.raises(ConfigError, match=r"vLLM is not installed; pip install 'rlforge\[vllm\]'"):
        validate(found)


def test_an_evaluation_environment_may_have_opponents_of_its_own():
    config = composed(
        "+experiment=multi_game",
        "eval.opponents=[random_legal]",
        "env.eval=[{id: TicTacToe-v0-train, opponents: [minimax, base]},"
        "{id: SimpleTak-v0-train}, {id: kuhn_poker, source: openspiel, opponents: null}]",
    )
    validate(config)
    met = [
        (pairing.env.id, [policy.uid for policy in pairing.opponents], pairing.key)
        for pairing in eval_pairings(config.config)
    ]
    assert met == [
        ("TicTacToe-v0-train", ["base", "minimax"], "env.eval.0.opponents"),
        ("SimpleTak-v0-train", ["base", "random_legal"], "eval.opponents"),
        ("kuhn_poker", ["base", "random_legal"], "eval.opponents"),
    ]


def test_a_template_of_one_turn_is_refused_in_conversations(tmp_path, monkeypatch):
    (tmp_path / "words.py").write_text(
        "from rlforge.games.markup import Markup\n"
        "from rlforge.games.originals import OneTurn\n"
        "SHORT = OneTurn(markup=Markup(user='{content}', assistant='{content}'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    chosen = ["model=smollm2_135m", "env.train.0.prompt_template=words:SHORT"]
    check(composed(*chosen))
    with pytest.raises(ConfigError, match=r"env\.context=conversation .*words:SHORT.*context=turn"):
        check(composed(*chosen, "env.context=conversation"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["engine.max_model_len=40"],
            r"^engine\.max_model_len=40: the first prompt of Simple.* has \d+ tokens, an action "
            r"\d+; raise it to \d+, and",
        ),
        (["engine.max_tokens=1"], r"^engine\.max_tokens=1: an answer with .* raise it to"),
    ],
)
def test_first_prompts_and_actions_must_fit(small_model, overrides, message):
    given = ["model=hf", f"model.name={small_model}", "model.prompt_template=default"]
    sizes = ["engine.max_tokens=64", "engine.max_model_len=100000"]
    with pytest.raises(ConfigError, match=message):
        validate(composed(*given, *sizes, *overrides))
    validate(composed(*given, *sizes, *overrides), keys=False)  # only looked at


def test_first_prompts_must_fit_the_positions_of_the_model(small_model, tmp_path):
    shutil.copytree(small_model, "short")
    described = json.loads(Path("short/config.json").read_text())
    Path("short/config.json").write_text(json.dumps({**described, "max_position_embeddings": 40}))
    given = ["model=hf", "model.name=short", "model.prompt_template=default"]
    with pytest.raises(ConfigError, match=r"^model short has positions for 40 tokens: .*; choose"):
        validate(composed(*given))
