"""rlforge from Python: configurations, games, runs on disk, and one whole run over Ray."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.harness.live_run import train_arguments

import rlforge
from rlforge.config.compose import to_yaml
from rlforge.games.board import grid_text
from rlforge.games.grids import Grid
from rlforge.record.files import read_jsonl
from rlforge.system.loops import wait_for

# ---------------------------------------------------------------- compose


def test_compose_takes_lines_of_the_command_line_and_values():
    config = rlforge.compose("kuhn_grpo", "learner.batch_size=64", seed=3, learner={"epochs": 2})
    assert (config.name, config.seed) == ("kuhn_grpo", 3)
    assert (config.learner.batch_size, config.learner.epochs) == (64, 2)
    assert rlforge.compose(experiment="kuhn_grpo").name == "kuhn_grpo"
    assert rlforge.compose().name == "run"


def test_the_grpo_of_the_document_is_configured_in_its_own_terms():
    rates = {"learning_rate": 1e-4, "kl_penalty": 0.125, "reward_threshold": 0.75}
    sizes = {"batch_size": 3, "gradient_accumulation_steps": 5, "iterations_per_window": 2}
    given = rlforge.GRPOConfig(model_name="tiny_market", max_length=99, **rates, **sizes)
    config = rlforge.compose("market_continuous", *given.overrides())
    learner = config.learner
    assert config.model.kind == "tiny_market"
    assert (learner.mini_batch_size, learner.gradient_accumulation_steps) == (3, 5)
    assert (learner.learning_rate, learner.epochs, learner.max_train_len) == (1e-4, 2, 99)
    assert (config.algorithm.kl.coef, config.continuous.threshold) == (0.125, 0.75)
    defaults = rlforge.compose("smollm2_market", *rlforge.GRPOConfig().overrides())
    assert (defaults.model.kind, defaults.model.name) == ("hf", "Qwen/Qwen2.5-0.5B-Instruct")
    assert (defaults.engine.max_model_len, defaults.engine.max_tokens) == (2048, 512)
    assert (config.engine.max_model_len, config.engine.max_tokens) == (128, 4)


def test_values_may_be_nested_lists_none_bools_and_numbers_of_numpy():
    config = rlforge.compose(
        env={"train": [{"id": "kuhn_poker", "source": "openspiel"}, {"id": "TicTacToe-v0-train"}]},
        model={"lora": {"rank": 4, "target_modules": ["q_proj"]}},
        learner={
            "learning_rate": np.float64(1e-7),
            "batch_size": np.int64(8),
            "max_train_len": None,
            "share_prefixes": False,
        },
        rewards={"step": [{"name": "scale", "alpha": 0.5}]},
    )
    assert [entry.id for entry in config.env.train] == ["kuhn_poker", "TicTacToe-v0-train"]
    assert (config.model.lora.rank, config.model.lora.target_modules) == (4, ["q_proj"])
    assert (config.learner.learning_rate, config.learner.batch_size) == (1e-7, 8)
    assert config.learner.max_train_len is None
    assert config.learner.share_prefixes is False
    assert config.rewards.step == [{"name": "scale", "alpha": 0.5}]


def test_templates_of_prompts_are_values_like_others():
    roles = {"user": 'it\'s "{content}"\n', "assistant": "{content}"}
    prompts = {
        "terse": {"user": "{grid}\n\n{request}", "roles": roles},
        "v1.2": {"user": "{board}", "later": None},
    }
    config = rlforge.compose("tictactoe_mirror", model={"prompt_template": "v1.2"}, prompts=prompts)
    assert list(config.prompts) == ["terse", "v1.2"]
    terse, second = config.prompts.values()
    assert (terse.user, terse.roles) == ("{grid}\n\n{request}", roles)
    assert (second.user, second.later) == ("{board}", None)


LOOK_ALIKES = ["null", "True", "aé", "3", "1e3", "nan", "-inf", "a b", "it's"]
LOOK_ALIKES += ['"', "\\", "\\'", "a\\\\'"]
TEXTS = st.text(st.sampled_from("\\'\"[]{}=,: $#~+@.ab1é\n"), min_size=1, max_size=8)
TEXTS = TEXTS.filter(lambda text: "${" not in text and text.strip())  # "${" is interpolation


@settings(max_examples=5)
@given(texts=st.lists(TEXTS, min_size=10, max_size=20))
@example(texts=LOOK_ALIKES)
def test_texts_are_read_back_as_they_were_given(texts):
    config = rlforge.compose(run_dir=texts[0], model={"lora": {"target_modules": texts}})
    assert (config.run_dir, config.model.lora.target_modules) == (texts[0], texts)


@pytest.mark.parametrize(
    ("overrides", "values", "message"),
    [
        (["kuhn_grpo", "seed"], {}, "cannot read override 'seed': write key=value"),
        (["kuhn_grpo"], {"learner": {"epoch": 2}}, r"learner\.epoch .*did you mean.*epochs"),
        ([], {"env": 5}, r"env=5 .*give the name of an option of this group"),
        ([], {"learner": {"epochs": 0}}, r"learner\.epochs=0 .*must be 1 or more"),
    ],
)
def test_errors_of_a_configuration_say_what_to_write(overrides, values, message):
    with pytest.raises(rlforge.ConfigError, match=message):
        rlforge.compose(*overrides, **values)


def test_compose_finds_the_users_own_folder(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nname: mine\n")
    assert rlforge.compose("mine", config_dir=tmp_path).name == "mine"
    assert rlforge.compose("mine", config_dir=str(tmp_path)).name == "mine"


# ---------------------------------------------------------------- play_game


def first(view):
    assert view.legal_actions is not None
    return view.legal_actions[0]


def test_names_and_functions_play():
    record = rlforge.play_game("tictactoe", "minimax", first, seed=1)
    assert record.rewards == {0: 1.0, 1: -1.0}
    assert [seat.policy.uid for seat in record.spec.seats] == ["minimax", "first"]
    assert record.turns[1].action in ("[0]", "[1]")


def test_the_last_player_takes_the_remaining_seats():
    record = rlforge.play_game("tictactoe", "minimax")
    assert record.rewards == {0: 0.0, 1: 0.0}
    assert {seat.policy.uid for seat in record.spec.seats} == {"minimax"}


def test_the_seed_decides_the_game():
    games = [rlforge.play_game("kuhn", "random_legal", seed=seed) for seed in (1, 1, 2, 3, 4)]
    played = [tuple(turn.observation for turn in game.turns) for game in games]
    assert played[0] == played[1]
    assert len(set(played)) > 1


def test_an_environment_may_be_given_as_a_value():
    env = rlforge.EnvSpec(id="kuhn_poker", source="openspiel")
    record = rlforge.play_game(env, "random_legal")
    assert (record.spec.env, record.end_reason) == (env, "finished")
    with pytest.raises(rlforge.ConfigError, match="no_such_game"):
        rlforge.play_game(rlforge.EnvSpec(id="no_such_game", source="openspiel"), first)


@pytest.mark.parametrize(
    ("env", "players", "message"),
    [
        ("nosuch", ["minimax"], "env=nosuch: no such option"),
        ("tictactoe", [], "0 players: TicTacToe-v0-train has 2 seats"),
        ("tictactoe", ["minimax"] * 3, "3 players: TicTacToe-v0-train has 2 seats"),
        ("tictactoe", ["minmax"], "opponent 'minmax' is unknown; did you mean minimax"),
        ("kuhn", ["minimax"], "minimax"),
        ("tictactoe", ["base"], r"player 'base' needs a model: take load_run\(\.\.\.\)"),
        ("tictactoe", ["openai:gpt"], "needs a key: set the environment variable OPENAI_API_KEY"),
        ("tictactoe", [3], "player 3 is no name, Policy or function from View to action"),
    ],
)
def test_errors_of_games_and_players(env, players, message, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(rlforge.ConfigError, match=message):
        rlforge.play_game(env, *players)


@pytest.mark.parametrize("wrong", [{"id": "tictactoe"}, 5, None])
@pytest.mark.parametrize(
    ("call", "taken"),
    [
        (lambda wrong: rlforge.play_game(wrong, "random_legal"), "name of a game.* or an EnvSpec"),
        (rlforge.transcript, "one GameRecord, as play_game returns it"),
        (rlforge.compose, "an override is a text"),
        (rlforge.train, "an override is a text"),
        (rlforge.sft, "an override is a text"),
        (rlforge.load_run, "a run is named by its directory"),
        (rlforge.resume, "a run is named by its directory"),
        (lambda wrong: rlforge.log_scalar(wrong, 1.0), "a scalar has a name"),
    ],
)
def test_an_argument_of_another_type_is_a_type_error_that_names_what_is_taken(call, taken, wrong):
    with pytest.raises(TypeError, match=f"{taken}.*; this is a {type(wrong).__name__}: "):
        call(wrong)


def test_a_run_takes_names_of_its_versions_games_and_opponents(golden_run):
    run = rlforge.load_run(golden_run)
    for call, taken in (
        (lambda: run.policy(2), "a version is named"),
        (lambda: run.evaluate(2), "an opponent is named"),
        (lambda: run.fork(next(run.games()), 1), "a game is named by its id"),
    ):
        with pytest.raises(TypeError, match=taken):
            call()


def test_an_error_of_the_users_function_is_raised():
    def broken(view):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        rlforge.play_game("tictactoe", broken)
    with pytest.raises(TypeError, match="player <lambda> answered 4; an action is text"):
        rlforge.play_game("tictactoe", lambda view: 4)  # type: ignore[arg-type,return-value]


def test_an_illegal_action_ends_a_game_without_an_error():
    record = rlforge.play_game("tictactoe", lambda view: "[99]", "random_legal")
    assert (record.end_reason, record.invalid_by, record.error) == ("invalid_move", 0, None)


# ---------------------------------------------------------------- runs on disk


def test_a_run_is_read_as_tables(run_copy):
    run = rlforge.load_run(str(run_copy))
    assert repr(run) == f"Run({os.path.relpath(run_copy)!r}, done)"
    assert (run.path, run.config.seed, run.summary["updates"]) == (run_copy, 0, 5)
    metrics, evals, ratings = run.metrics(), run.evals(), run.ratings()
    assert isinstance(metrics, pandas.DataFrame)
    assert list(metrics["step"]) == [1, 2, 3, 4, 5]
    wins = [row["wins"] for row in read_jsonl(run_copy / "evals.jsonl")]
    assert (list(evals["step"]), list(evals["wins"])) == ([0, 0, 2, 2, 4, 4, 5, 5], wins)
    assert list(ratings.columns) == ["step", "policy", "mu", "sigma"]
    assert set(ratings[ratings["step"] == 5]["policy"]) >= {"step-4", "step-5"}
    assert len(run.windows()) == 0
    assert run.versions == ["step-1", "step-2", "step-3", "step-4", "step-5"]


def test_without_pandas_tables_are_lists_of_dictionaries(golden_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    run = rlforge.load_run(golden_run)
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4, 5]
    assert run.ratings()[0].keys() == {"step", "policy", "mu", "sigma"}


def test_games_of_a_run_are_records(golden_run):
    run = rlforge.load_run(golden_run)
    trained, evaluated = list(run.games("train")), list(run.games("eval"))
    assert all(isinstance(game, rlforge.GameRecord) for game in trained)
    assert len(evaluated) == 4 * len(run.evals())
    assert len(list(run.games())) == len(trained) + len(evaluated) > 30


def test_a_run_writes_its_report(run_copy):
    assert rlforge.load_run(run_copy).report() == run_copy / "report.html"
    assert "tictactoe_mirror" in (run_copy / "report.html").read_text()


def test_a_version_acts_in_this_process(golden_run):
    run = rlforge.load_run(golden_run)
    legal = [f"[{cell}]" for cell in range(9)]
    with run.policy("step-0") as policy:
        assert repr(policy) == "Policy(step-0)"
        greedy = {policy.act("Available Moves: [0], [4]", legal, temperature=0) for _ in range(2)}
        assert len(greedy) == 1
        drawn = [policy.act("Available Moves: [0], [4]", legal, seed=5) for _ in range(2)]
        assert drawn[0] == drawn[1]
        record = rlforge.play_game("tictactoe", policy, "random_legal", seed=2)
        assert record.error is None
        own = [turn.completion for turn in record.turns if turn.player_id == 0]
        assert all(len(one.logprobs) == len(one.token_ids) > 0 for one in own)
    with pytest.raises(rlforge.ConfigError, match="step-7: no such checkpoint"):
        run.policy("step-7")


GRID = Grid(game="tictactoe", rows=3, cols=3, me=0b1, op=0b10000)


def test_a_policy_is_asked_as_its_run_asked_it(small_model, tmp_path):
    """Games may have templates and extractions of their own, and the model one for the others."""
    from rlforge.models.load import load_tokenizer

    games = [
        {"id": "TicTacToe-v0-train", "prompt_template": "squares", "action_extraction": "raw"},
        {"id": "kuhn_poker", "source": "openspiel", "prompt_template": "cards"},
    ]
    prompts = {"squares": {"user": "{grid}"}, "cards": {"user": "{board}", "markup": "none"}}
    config = rlforge.compose(
        *("tictactoe_mirror", *train_arguments(small_model)[2:]),
        env={"train": games},
        prompts=prompts,
        model={"prompt_template": "default", "action_extraction": "bracket"},
        eval={"opponents": ["random_legal"]},
    )
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    with rlforge.load_run(tmp_path).policy("step-0") as policy:
        for env, template, extraction in (
            ("tictactoe", "squares", "raw"),
            ("openspiel_kuhn", "cards", "bracket"),
            ("connectfour", "squares", "raw"),  # not of the run: as its first game
        ):
            record = rlforge.play_game(env, policy, "random_legal", seed=2)
            seat, other = record.spec.seats
            assert seat.form == rlforge.Form(template=template, extraction=extraction)
            assert other.form.template != "squares"
        view = rlforge.View(player_id=0, observation="Your move.", board="K", grid=GRID)
        asked = {
            env: wait_for(policy.answer(view, env=env, seed=1)).prompt_token_ids
            for env in (None, "kuhn_poker")
        }
        tokenizer = load_tokenizer(config.model)
        assert tokenizer.decode(asked["kuhn_poker"]) == "K"
        assert grid_text(GRID) in tokenizer.decode(asked[None])
        assert policy.act(view, seed=1) == wait_for(policy.answer(view, seed=1)).text.strip()


# ---------------------------------------------------------------- a whole run

WHOLE_RUN = '''
import asyncio, doctest, json, pathlib, rlforge, sys
PUBLIC = {name: getattr(rlforge, name) for name in rlforge.__all__}
RUN = "runs/tictactoe_mirror/2026-01-01_12-00-00"

def train(*overrides, **values):
    """As the example says, of the small model of the tests."""
    return rlforge.train(*overrides, *sys.argv[1:], f"run_dir={RUN}", **values)

def run(name):
    text = getattr(rlforge, name).__doc__.replace("# doctest: +SKIP", "")
    test = doctest.DocTestParser().get_doctest(text, {**PUBLIC, "train": train}, name, None, 0)
    said = []
    result = doctest.DocTestRunner().run(test, out=said.append)
    print(json.dumps([name, result.failed, result.attempted, "".join(said)]), flush=True)

async def main():
    for name in ("train", "load_run", "Run", "Policy"):
        run(name)
    run("resume")
    try:
        rlforge.resume(RUN)
    except rlforge.RunError as error:
        print(json.dumps(["complete", 0, 1, str(error)]))

asyncio.run(main())
'''


@pytest.mark.slow
def test_the_examples_that_need_a_run_work_in_a_running_event_loop(small_model):
    command = [sys.executable, "-c", WHOLE_RUN, *train_arguments(small_model)[2:]]
    given = {"env": os.environ | {"CUDA_VISIBLE_DEVICES": ""}, "timeout": 800}
    done = subprocess.run(command, capture_output=True, text=True, **given)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    names = ["train", "load_run", "Run", "Policy", "resume", "complete"]
    assert [one[0] for one in found] == names, done.stderr
    assert [(name, said) for name, failed, _, said in found[:-1] if failed] == []
    assert all(attempted > 0 for _, _, attempted, _ in found)
    assert "already finished its 3 updates" in found[-1][-1]
