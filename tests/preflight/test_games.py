"""Contradictions are found before anything starts, and the message says the mend."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.harness.composed import composed

from rlforge import AlgorithmConfig, Count, Reinforce
from rlforge.errors import ConfigError
from rlforge.launch import check
from rlforge.preflight.games import validate
from rlforge.rollout.lineup import eval_envs, eval_pairings, train_envs


@dataclass
class RankedConfig(AlgorithmConfig):
    """Settings of an algorithm of another package that compares games of a group."""

    group_size: Count = 4


class Ranked(Reinforce):
    """It would compare them; here the settings alone count."""

    config_class = RankedConfig


RANKED = f"{__name__}:Ranked"
TINY = "+experiment=simpletak_mirror"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [
                "algorithm=reinforce",
                "buffer=step",
                "learner.batch_size=10",
                "learner.optimizer_steps=1",
                "learner.mini_batch_size=4",
            ],
            r"mini_batch_size=4 .*does not divide learner\.batch_size=10",
        ),
        (["env.train=[{id: SimpelTak-v0-train}]"], r"env\.train\.0\.id=SimpelTak.*SimpleTak-v0"),
        (["env.train=[{id: kuhn_pokr, source: openspiel}]"], r"did you mean kuhn_poker"),
        (["env.train=[{id: x, source: nowhere}]"], r"textarena, openspiel, market"),
        (
            ["env=kuhn", "env.train.0.action_extraction=number"],
            r"env\.train\.0\.action_extraction=number.*cannot read the action \[check\]",
        ),
        (["env.train=[{id: Nim-v0-train}]"], r"env\.train\.0\.id=Nim.*no compact board"),
        (["pool=fixed", "pool.fixed_opponents=[random_leagl]"], r"did you mean random_legal"),
        (["env=kuhn", "pool=fixed", "pool.fixed_opponents=[minimax]"], r"minimax.*KuhnPoker"),
        (["learner.batch_delay_buffer=100"], r"buffer\.max_size.*raise it"),
        (["learner.save_every=3"], r"save_every=3 .*never published.*max_staleness=1.*keep_every"),
        (
            ["pool=nash", "env.train=[{id: kuhn_poker, source: openspiel, num_players: 3}]"],
            r"pool\.mode=nash .*games of two, and kuhn_poker has 3.*mode=prioritized",
        ),
        (["learner.shard_weights=true"], r"several ranks; raise learner\.num_learners"),
        (["engine=vllm", "learner.train=full"], r"learner\.train=full.*swaps adapters.*use"),
        (["hardware.engine_gpus=2"], r"hardware\.engine_gpus=2.*only engine=vllm divides"),
        (["engine=vllm", "model.lora.rank=600"], r"model\.lora\.rank=600.*up to rank 512"),
        (["engine=vllm", "engine.temperature=2.5"], r"from 0\.01 to 2"),
        (["engine=vllm", "eval.temperature=0.001"], r"eval\.temperature=0\.001.*from 0\.01"),
        (
            ["engine=vllm", "engine.vllm.max_num_batched_tokens=64"],
            r"max_num_batched_tokens=64.*max_parallel_seq=256",
        ),
        (["eval.games=3"], r"both seats"),
        (
            ["env=multi", "eval.opponents=[base,minimax]"],
            r"eval\.opponents=.*minimax.*cannot play kuhn_poker.*an entry of env\.eval may have",
        ),
        (
            [
                "env.eval=[{id: TicTacToe-v0-train},"
                "{id: kuhn_poker, source: openspiel, opponents: [minimax]}]"
            ],
            r"env\.eval\.1\.opponents=.*minimax.*cannot play kuhn_poker",
        ),
        (
            ["env.eval=[{id: SimpleTak-v0-train, opponents: [win_blok]}]"],
            r"env\.eval\.0\.opponents=.*did you mean win_block",
        ),
        (["env.train.0.opponents=[minimax]"], r"env\.train\.0\.opponents.*no such key"),
        (
            [
                "env.eval=[{id: SimpleTak-v0-train, opponents: [win_block, random_legal]}]",
                "eval.max_games_per_checkpoint=5",
            ],
            r"max_games_per_checkpoint=5 .*SimpleTak.* at least 6, one game per seat",
        ),
        (["eval.opponents=[openrouter:some/model]"], r"OPENROUTER_API_KEY"),
        (["algorithm=grpo", "buffer=step"], r"buffer=episode"),
        (["algorithm=ppo", "buffer=step"], r"buffer=episode"),
        (["algorithm=grpo", "learner.batch_size=100"], r"multiple of 16"),
        (["algorithm=maxrl", "rewards=none"], r"algorithm\.advantage=max_rl.*use rewards=wins"),
        (["algorithm=maxrl"], r"a lost game of SimpleTak-v0-train pays -1"),
        *(
            (
                [f"algorithm={name}", "rewards=role_advantage"],
                rf"rewards\.final=.*as rewards=none does: .*baseline of algorithm={kind}$",
            )
            for name, kind in (("dapo", "grpo"), ("rloo", "grpo"), (RANKED, RANKED))
        ),
        (
            ["model.prompt_template=chat"],
            r"model\.prompt_template=chat .*reads compact boards only; use model\.prompt_template=",
        ),
        (
            ["env.train.0.action_extraction=boxed"],
            r"env\.train\.0\.action_extraction=boxed .*asks for .boxed.* answers \[0\]; use .*=br",
        ),
        (
            ["+experiment=smollm2_kuhn", "env=tictactoe"],
            r"env\.train\.0\.id=TicTacToe.*prompt_template=cards is about kuhn_poker",
        ),
        (["rewards.final=[{name: scale, alhpa: 2}]"], r"rewards\.final\[0\].*alpha"),
    ],
)
def test_contradictions_name_key_value_and_mend(overrides, message, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=message) as caught:
        validate(composed(*([] if "+" in overrides[0] else [TINY]), *overrides))
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize("algorithm", ["gspo", "cispo", "rloo", "maxrl", "dapo"])
def test_the_relatives_of_grpo_are_chosen_by_their_names(algorithm):
    found = composed(TINY, f"algorithm={algorithm}", "rewards=wins")
    validate(found)
    assert found.config.algorithm.name == "grpo"


def test_envs_take_template_and_extraction_of_the_model():
    config = composed(TINY).config
    assert train_envs(config)[0].prompt_template == "board"
    assert train_envs(config)[0].action_extraction == "bracket"
    assert eval_envs(config) == train_envs(config)


def test_the_untrained_model_is_always_an_evaluation_opponent():
    config = composed(TINY, "eval.opponents=[win_block]").config
    (pairing,) = eval_pairings(config)
    assert [policy.uid for policy in pairing.opponents] == ["base", "win_block"]


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
