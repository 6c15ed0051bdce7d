"""Whole training against peers: all play the same games and train on equally many turns."""

import importlib
import random
import re
import sys
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlforge.config.compose import compose
from rlforge.models.load import load_tokenizer


@pytest.fixture(scope="module")
def own_model(small_model):
    """Overrides that put the small model in the place of the tiny one."""
    model = ["model.kind=hf", f"model.name={small_model}", "model.lora.rank=4"]
    return ["+experiment=simpletak_mirror", *model]


@pytest.fixture(scope="module")
def end_to_end(on_path):
    return importlib.import_module("end_to_end")


@pytest.fixture(scope="module")
def work(end_to_end, own_model):
    return end_to_end.make_work(own_model, turns=32, games=6, updates=3)


def test_peers_are_asked_for_what_rlforge_train_is_given(end_to_end, own_model, work):
    config = compose([*end_to_end.overrides_for(work), *own_model]).config
    learner = config.learner
    assert (work.turns, work.updates) == (learner.batch_size, learner.total_updates)
    assert work.games == config.collector.num_train_workers
    assert work.max_tokens == config.engine.max_tokens
    assert (learner.epochs, learner.optimizer_steps) == (1, 1)
    assert (work.learning_rate, work.grad_clip) == (learner.learning_rate, learner.grad_clip)
    assert work.layers == (0, 1)
    assert (work.rank, work.alpha) == (config.model.lora.rank, config.model.lora.alpha)
    assert config.algorithm.loss_aggregation == "constant"  # over turns times the longest answer


def test_work_survives_its_file(work, tmp_path):
    work.write(tmp_path / "work.json")
    assert importlib.import_module("pipelines.work").read(tmp_path / "work.json") == work


def test_turns_are_those_of_games_that_ended_and_none_is_lost(own_model, work):
    tokenizer = load_tokenizer(compose(own_model).config.model)
    games = importlib.import_module("pipelines.selfplay").SelfPlay(work, tokenizer)
    draw, asked = random.Random(0), []

    def generate(prompts):
        # A random free cell: what is neither a stone nor taken stands in the board by its number.
        asked.append(len(prompts))
        boards = tokenizer.batch_decode(prompts)
        cells = [draw.choice(re.findall(r"\d+", board) or ["0"]) for board in boards]
        return [tokenizer.encode(f" [{cell}]", add_special_tokens=False) for cell in cells]

    first, second = games.play(work.turns, generate), games.play(work.turns, generate)
    assert len(first) == len(second) == work.turns
    assert set(asked) == {work.games}  # the place of a game that ended is taken at once
    assert games.turns >= 2 * work.turns
    assert {turn.reward for turn in first} <= {-1.0, 0.0, 1.0}
    assert {1.0, -1.0} <= {turn.reward for turn in first + second}
    assert games.answer_tokens == games.turns  # a move is a word of the tiny model


def test_an_answer_ends_with_its_first_stop_token():
    until_stop = importlib.import_module("pipelines.plain_loop").until_stop
    assert until_stop([5, 7, 7, 0], (7, 9)) == [5, 7]
    assert until_stop([5, 6], (7, 9)) == [5, 6]


def test_the_loss_of_the_plain_loop_does_not_see_its_padding(small_model):
    plain_loop = importlib.import_module("pipelines.plain_loop")
    turn = importlib.import_module("pipelines.selfplay").Turn
    model = AutoModelForCausalLM.from_pretrained(small_model).eval()
    turns = [turn((5, 6, 7), [8], 1.0), turn((5, 6, 7, 8, 9), [10, 11], -1.0)]
    expected = torch.zeros(())
    for each in turns:
        ids = torch.tensor([[*each.prompt_ids, *each.answer_ids]])
        logprobs = model(input_ids=ids).logits.log_softmax(-1)[0]
        for place in range(len(each.prompt_ids), ids.shape[1]):
            expected = expected - (each.reward - 0.25) * logprobs[place - 1, ids[0, place]]
    loss = plain_loop.policy_loss(model, turns, 0.25, 0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_peers_adapt_the_layers_and_show_the_prompts_of_the_experiment(end_to_end, small_model):
    model = [f"model.name={small_model}", "model.kind=hf", "model.lora.last_layers=1"]
    more = ["+experiment=smollm2_tictactoe", *model]
    work = end_to_end.make_work(more, turns=8, games=2, updates=1)
    assert work.layers == (1,)
    assert work.prompts["squares"]["user"] == "{grid}"


@pytest.mark.slow
def test_every_run_is_timed_from_its_own_updates_and_peers_without_packages_are_left_out(
    end_to_end, own_model, work, monkeypatch, capsys
):
    monkeypatch.setattr(end_to_end, "PARTS", (2,))
    rows = end_to_end.measure(
        replace(work, threads=1), sys.executable, 2, more=own_model, warm_up=1
    )
    end_to_end.show(rows)
    assert list(rows) == ["rlforge", "plain_loop"]
    assert all(row["turns"]["repeats"] == 2 for row in rows.values())
    assert all(row["turns"]["min_per_s"] > 0 for row in rows.values())
    assert all(row["turns_by_cpu_time"]["min_per_s"] > 0 for row in rows.values())
    assert rows["plain_loop"]["turns_at_a_time"] == 16
    shown = capsys.readouterr().out
    assert "absent: TRL GRPO; to install: benchmarks/requirements-peers.txt" in shown


def test_other_versions_of_torch_end_the_comparison(end_to_end):
    ours = {"torch": "2.1", "transformers": "5"}
    with pytest.raises(SystemExit, match="differ between rlforge's environment and the peers'"):
        end_to_end.check_versions({"rlforge": ours, "trl_grpo": ours | {"torch": "2.2"}})


@pytest.mark.parametrize(("with_small_parts", "chosen"), [(30.0, (2, 4)), (5.0, (2, 16))])
def test_peers_get_the_fastest_threads_and_then_the_fastest_parts(
    end_to_end, work, monkeypatch, with_small_parts, chosen
):
    speeds = {(1, 16): 10.0, (2, 16): 20.0, (2, 4): with_small_parts}
    slowed_down = set(speeds)  # by other work, once

    def run_peer(name, python, asked, warm_up):
        setting = asked.threads, asked.turns_at_a_time
        speed = speeds[setting] / (4 if setting in slowed_down else 1)
        slowed_down.discard(setting)
        return end_to_end.Rate(speed, speed, 1.0, 14.0, 0.0, {})

    monkeypatch.setattr(end_to_end, "run_peer", run_peer)
    best, tried = end_to_end.tuned("plain_loop", sys.executable, replace(work, threads=2))
    assert (best.threads, best.turns_at_a_time) == chosen
    assert list(tried.values()) == list(speeds.values())


def test_ratios_are_by_cpu_time_and_by_the_clock(end_to_end):
    def row(by_clock, by_cpu_time):
        spreads = {"turns": by_clock, "turns_by_cpu_time": by_cpu_time}
        return {key: {"median_per_s": number} for key, number in spreads.items()}

    rows = {"rlforge": row(300.0, 150.0), "trl_grpo": row(200.0, 75.0)}
    assert end_to_end.ratios(rows) == {"trl_grpo": {"by_cpu_time": 2.0, "by_wall_time": 1.5}}
