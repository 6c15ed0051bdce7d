"""Evaluations of a run directory: real games, a small real Llama, adapters the learner wrote."""

import asyncio
import dataclasses
import json
import random
import re
import shutil
from pathlib import Path

import pytest
import torch
from tests.factories import batch, changed, evaluation, sample
from tests.harness.in_process import rlforge_here

from rlforge.config.compose import compose, from_yaml, to_yaml
from rlforge.config.games import EvalEnvEntry
from rlforge.continuous.serving.validation import checkpoint_of, find_source
from rlforge.errors import CheckpointError, ConfigError
from rlforge.games.prompts import Prompter
from rlforge.games.registry import make_game
from rlforge.learner import make_learner
from rlforge.learner.ranks import Ranks
from rlforge.local import evaluate
from rlforge.local.evaluate import evaluate_run
from rlforge.local.policies import find_opponent, find_policy, result_and_latest
from rlforge.models.load import load_tokenizer
from rlforge.models.tiny.create import create_tiny
from rlforge.models.tiny.recipe import TINY
from rlforge.rollout.lineup import train_envs
from rlforge.system.checkpoint import write_checkpoint
from rlforge.types import Form


@pytest.fixture(scope="session")
def random_model(tmp_path_factory):
    """A Llama of a few thousand random weights that answers with any of its tokens."""
    folder = tmp_path_factory.mktemp("models") / "random"
    folder.mkdir()
    [game] = (game for game in TINY.games if game.env.id == "TicTacToe-v0-train")
    games = (dataclasses.replace(game, games=20),)
    sizes = {"hidden": 32, "heads": 2, "ffn": 64, "steps": 0, "initializer_range": 0.5}
    recipe = dataclasses.replace(TINY, games=games, **sizes)
    create_tiny(folder, recipe, progress=lambda text: None)
    return folder


@pytest.fixture(scope="session")
def config(random_model):
    model = ["model=hf", f"model.name={random_model}", "model.prompt_template=board"]
    given = [
        *("env=tictactoe", "env.train.0.error_allowance=0", *model, "model.lora.rank=4"),
        *("model.action_extraction=bracket", "engine.max_tokens=4", "engine.max_model_len=128"),
        *("algorithm.importance_cap=null", "learner.mini_batch_size=64", "learner.batch_size=64"),
        *("learner.learning_rate=0.05", "learner.grad_clip=1.0", "eval.opponents=[random_legal]"),
        *("eval.games=8", "eval.final_games=4", "pool.api.openai_base_url=http://127.0.0.1:9/v1"),
    ]
    return compose(given).config


@pytest.fixture(scope="session")
def one_idea(config, tmp_path_factory):
    """A run whose version 1 has learned to answer every board with the first corner."""
    run_dir = tmp_path_factory.mktemp("runs") / "one-idea"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text(to_yaml(config))
    tokenizer = load_tokenizer(config.model)
    [env] = train_envs(config)
    answer = tuple(tokenizer.encode(" [0]", add_special_tokens=False))
    logprobs = (-2.0,) * len(answer)
    prompter, steps = Prompter(tokenizer), []
    for seed in range(5):
        game, rng = make_game(env, seed), random.Random(seed)
        while not game.done:
            view = game.view()
            _, prompt = prompter.encode(Form(template="board", extraction="bracket"), view)
            steps.append(sample(prompt_token_ids=prompt, token_ids=answer, logprobs=logprobs))
            game.step(rng.choice(view.legal_actions or ("",)))
    learner = make_learner(config, torch.device("cpu"), Ranks())
    for _ in range(80):
        learner.update(batch(steps))
    write_checkpoint(run_dir / "checkpoints", "step-1", learner.save, {"version": 1})
    return run_dir


@pytest.fixture
def run_dir(one_idea, tmp_path):
    """A copy of the run, to be damaged."""
    return Path(shutil.copytree(one_idea, tmp_path / "run"))


def change(run_dir, **groups):
    """Rewrite the run's configuration with values of its groups changed."""
    config = from_yaml(run_dir / "config.yaml")
    (run_dir / "config.yaml").write_text(to_yaml(changed(config, **groups)))


async def test_versions_play_with_their_adapters_against_each_other_and_themselves(one_idea):
    trained = await evaluate_run(one_idea, "latest", ["step-0", "step-1", "step-0"], 4)
    untrained = await evaluate_run(one_idea, "step-0", ["step-0"], 4)
    assert (trained.policy.uid, untrained.policy.path_or_name) == ("step-1", None)
    [after, itself], [before] = trained.results, untrained.results
    assert (after.opponent, itself.opponent) == ("step-0", "step-1")
    # Version 1 knows one legal move and wins against policies that know none.
    assert (after.step, after.wins, after.invalid_rate) == (1, 4, 0.0)
    # The second player finds the corner taken, whichever seat the policy has.
    assert (itself.wins, itself.losses, itself.invalid_rate) == (2, 2, 0.5)
    # Two policies that know none: the one that begins loses, half of the games with swapped seats.
    assert (before.step, before.wins, before.losses, before.invalid_rate) == (0, 2, 2, 0.5)


async def test_games_in_which_the_context_ends_an_answer_are_drawn(run_dir):
    """The untrained model says anything; there is room for a token of the four it may use."""
    config = from_yaml(run_dir / "config.yaml")
    tokenizer, [env] = load_tokenizer(config.model), train_envs(config)
    _, prompt = Prompter(tokenizer).encode(env.form, make_game(env, 0).view())
    change(run_dir, engine={"max_model_len": len(prompt) + 1})
    [without] = (await evaluate_run(run_dir, "step-0", ["random_legal"], 20)).results
    assert without.draws > 10
    assert without.losses == 20 * without.invalid_rate == 20 - without.draws


async def test_results_so_far_are_said_and_kept_and_are_the_same_again(one_idea, monkeypatch):
    """Opponents and games are those of the run."""
    messages: list[str] = []
    kept: list[int] = []
    first = await evaluate_run(one_idea, "step-1", None, None)
    monkeypatch.setattr(evaluate, "SAY_EVERY_S", 0.0)

    def keep(results):
        kept.append(sum(result.games for result in results))

    again = await evaluate_run(one_idea, "latest", None, None, messages.append, keep)
    assert messages[0] == "step-1 plays 8 games"
    said = [message.partition(":")[0] for message in messages[1:]]
    assert said == [f"{games} of 8 games" for games in range(1, 8)]
    assert re.search(r"% won of \d against random_legal", messages[-1])
    assert kept == [*range(1, 8)]
    assert [(each.opponent, each.games) for each in again.results] == [
        ("base", 4),
        ("random_legal", 4),
    ]
    assert (again.complete, again.failures) == (True, ())
    assert first.results == again.results


async def test_an_evaluation_that_is_cancelled_keeps_what_it_has(one_idea):
    messages: list[str] = []
    kept: list[int] = []

    def say(message):
        messages.append(message)
        task.get_loop().call_later(0.05, task.cancel)

    def keep(results):
        kept.append(sum(result.games for result in results))

    task = asyncio.create_task(evaluate_run(one_idea, "latest", ["random_legal"], 4000, say, keep))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(kept) == 1
    assert messages[-1].startswith(f"{kept[0]} of 4000 games")


async def test_failed_games_do_not_count_as_lost(one_idea):
    measured = await evaluate_run(one_idea, "latest", ["openai:absent", "random_legal"], 2)
    unreachable, reachable = measured.results
    assert (unreachable.games, unreachable.failed, unreachable.losses) == (0, 2, 0)
    assert (reachable.games, reachable.failed) == (2, 0)
    assert not measured.complete
    [failure] = measured.failures
    assert failure.startswith("2 of 2 games in TicTacToe-v0-train against openai:absent failed")
    assert "http://127.0.0.1:9/v1" in failure


async def test_an_api_opponent_without_a_key_is_refused_before_anything_is_loaded(
    run_dir, monkeypatch
):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    change(run_dir, eval={"opponents": ["openrouter:some/model"]})
    messages: list[str] = []
    with pytest.raises(ConfigError, match="OPENROUTER_API_KEY"):
        await evaluate_run(run_dir, "latest", None, 2, messages.append)
    assert messages == []


async def test_an_opponent_that_cannot_be_played_is_refused(one_idea, run_dir):
    torn = run_dir / "checkpoints" / "step-1"
    weights = torn / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=rf"'checkpoint:{torn}' cannot be played: .* truncated"):
        await evaluate_run(one_idea, "latest", [f"checkpoint:{torn}"], 2)


async def test_players_that_do_not_know_the_game_are_refused(run_dir):
    env = vars(from_yaml(run_dir / "config.yaml").env.train[0])
    other = EvalEnvEntry(**{**env, "id": "KuhnPoker-v0-short-train"})
    change(run_dir, env={"eval": [other]})
    with pytest.raises(ConfigError, match=r"minimax.*cannot play KuhnPoker"):
        await evaluate_run(run_dir, "latest", ["minimax"], 2)


async def test_each_environment_is_played_against_opponents_of_its_own(run_dir):
    """Also of a run of another machine, which is measured on this one."""
    settings = vars(from_yaml(run_dir / "config.yaml").env.train[0])
    tictactoe = EvalEnvEntry(**settings, opponents=["minimax"])
    simpletak = EvalEnvEntry(**{**settings, "id": "SimpleTak-v0-train"})
    elsewhere = {"name": "multi_gpu", "device": "cuda", "learner_gpus": 8.0}
    change(run_dir, env={"eval": [tictactoe, simpletak]}, hardware=elsewhere)

    def met(measured):
        return [(result.env_id, result.opponent) for result in measured.results]

    own = await evaluate_run(run_dir, "step-0", None, 2)
    assert met(own) == [
        *(("TicTacToe-v0-train", "base"), ("TicTacToe-v0-train", "minimax")),
        *(("SimpleTak-v0-train", "base"), ("SimpleTak-v0-train", "random_legal")),
    ]
    assert own.complete
    asked = await evaluate_run(run_dir, "step-0", ["random_legal", "win_block"], 2)
    games = ("TicTacToe-v0-train", "SimpleTak-v0-train")
    assert met(asked) == [(game, name) for game in games for name in ("random_legal", "win_block")]


@pytest.mark.parametrize(("games", "wrong"), [(3, "be even"), (0, "be 1 or more")])
async def test_games_that_cannot_be_played_from_both_seats_are_refused(one_idea, games, wrong):
    with pytest.raises(ConfigError, match=f"--games {games}: must {wrong}"):
        await evaluate_run(one_idea, "latest", ["random_legal"], games)


def test_a_truncated_file_is_named(run_dir):
    adapter = run_dir / "checkpoints" / "step-1" / "adapter_model.safetensors"
    adapter.write_bytes(adapter.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors is truncated, 100 of"):
        find_policy(run_dir, "latest")


@pytest.mark.parametrize("name", ["step-7", "step-7average"])
def test_the_error_of_an_unknown_version_names_the_newest(one_idea, name):
    with pytest.raises(ConfigError, match=rf"{name}: no such checkpoint; the newest are step-1"):
        find_policy(one_idea, name)


def test_the_result_of_a_run_is_the_version_that_its_configuration_names(run_dir, tmp_path):
    newest = run_dir / "checkpoints" / "step-1"
    for number, won in ((2, 25), (1, 50)):
        folder = run_dir / "checkpoints" / f"step-{number}"
        if number > 1:
            shutil.copytree(newest, folder)
            manifest = json.loads((folder / "manifest.json").read_text())
            manifest["meta"]["version"] = number
            (folder / "manifest.json").write_text(json.dumps(manifest))
        shutil.copytree(newest, folder / "average", ignore=shutil.ignore_patterns("manifest.json"))
        row = evaluation(number, won)
        with (run_dir / "evals.jsonl").open("a") as file:
            file.write(json.dumps({**dataclasses.asdict(row), "time_s": 1.0}) + "\n")
    for result, uid, named in (
        ("latest", "step-2", ["result"]),
        ("best", "step-1", ["result", "latest"]),
        ("average", "step-2-average", ["result", "latest"]),
    ):
        change(run_dir, learner={"average": "moving", "result": result})
        policy, version = find_policy(run_dir, "result")
        assert (policy.uid, version) == (uid, int(uid.split("-")[1]))
        assert Path(policy.path_or_name) == find_source(run_dir)
        assert checkpoint_of(run_dir).uid == uid
        assert checkpoint_of(run_dir).version == version
        assert result_and_latest(run_dir) == named
        assert find_opponent(run_dir, "result", from_yaml(run_dir / "config.yaml")) == policy


@pytest.mark.parametrize("result", ["latest", "average"])
def test_eval_plays_the_result_and_the_latest_version_beside_it(run_dir, capsys, tmp_path, result):
    newest = run_dir / "checkpoints" / "step-1"
    shutil.copytree(newest, newest / "average", ignore=shutil.ignore_patterns("manifest.json"))
    change(run_dir, learner={"average": "moving", "result": result})
    file = tmp_path / "found.json"
    options = ("--opponent", "random_legal", "--games", "4", "--json", str(file))
    assert rlforge_here("eval", str(run_dir), *options) == 0
    found = [row["policy_uid"] for row in json.loads(file.read_text())]
    shown = capsys.readouterr().out
    assert found == (["step-1"] if result == "latest" else ["step-1-average", "step-1"])
    headings = ["step-1-average, the run's result:", "step-1, the run's latest:"]
    assert [line for line in headings if line in shown] == headings * (result == "average")


def test_a_run_without_versions_has_its_start(run_dir, one_idea):
    shutil.rmtree(run_dir / "checkpoints")
    with pytest.raises(ConfigError, match="holds no checkpoint yet; use step-0"):
        find_policy(run_dir, "latest")
    with pytest.raises(ConfigError, match="there is none yet; use step-0"):
        find_policy(run_dir, "step-1")
    start = str(one_idea / "checkpoints" / "step-1")
    change(run_dir, learner={"initial_adapter": start})
    policy, version = find_policy(run_dir, "step-0")
    assert (policy.path_or_name, version) == (start, 0)
