"""Supervised fine-tuning as a user starts it, with the actors in this process."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.harness.in_process import rlforge_here, use_actors_in_process
from tests.harness.live_run import RUN, rows, train_arguments
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import rlforge
from rlforge.errors import ConfigError, RunError
from rlforge.local.evaluate import evaluate_run
from rlforge.local.policies import find_policy
from rlforge.record.game_files import read_games
from rlforge.rollout.demonstrations import load_samples
from rlforge.run.actors.learner import LearnerActor
from rlforge.samples import TrainBatch
from rlforge.show.batches import find_batch

LEARNING = {"players": ["random_legal"], "games": 100, "epochs": 2.0, "validation": 0.1}


@pytest.fixture(scope="module", autouse=True)
def in_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_actors_in_process(patch.setattr)
        yield


@pytest.fixture(scope="module")
def untrained(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows neither rules nor format: a tokenizer and random weights."""
    folder = tmp_path_factory.mktemp("models") / "untrained"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(small_model))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(small_model).save_pretrained(folder)
    GenerationConfig.from_pretrained(small_model).save_pretrained(folder)
    return folder


def learn(model: Path, run_dir: Path, data: dict[str, Any], **learner: Any) -> rlforge.Run:
    return rlforge.sft(
        "tictactoe_mirror",
        "model=hf",
        run_dir=run_dir,
        data=data,
        learner={"learning_rate": 1e-2, "warmup_updates": 2, "save_every": 8, **learner},
        model={"name": model, "prompt_template": "board", "action_extraction": "bracket"},
        tracker={"progress": "plain"},
        hardware={"threads": 1},
    )


@pytest.fixture(scope="module")
def adapted(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> rlforge.Run:
    """A run of a few updates of an adapter."""
    return learn(small_model, tmp_path_factory.mktemp("runs") / "adapted", LEARNING)


def test_an_untrained_model_learns_to_move_legally(untrained: Path, tmp_path: Path) -> None:
    data = {**LEARNING, "games": 200, "epochs": 4.0}
    run = learn(untrained, tmp_path / "run", data, train="full", save_every=1000)
    before, after = (
        asyncio.run(evaluate_run(run.path, version, ["random_legal"], 40)).results[0].invalid_rate
        for version in ("step-0", "latest")
    )
    assert before > 0.9
    assert after < 0.6


def test_the_samples_of_an_update_can_be_read(adapted: rlforge.Run) -> None:
    first = find_batch(adapted.path, 1)
    assert len(first.samples) == adapted.config.learner.batch_size
    assert all(shown.sample.action in shown.answer for shown in first.samples)
    assert {sample.advantage for sample in first.samples} == {None}
    assert find_batch(adapted.path).number == adapted.summary["updates"]


def test_the_held_out_loss_falls_and_is_in_the_files_of_the_run(adapted: rlforge.Run) -> None:
    summary = adapted.summary
    assert summary["status"] == "done"
    assert summary["updates"] == summary["total_updates"] == round(2 * summary["samples"] / 64)
    before, after = summary["before"], summary["after"]
    assert after["validation_loss"] < before["validation_loss"]
    assert after["validation_answer_prob"] > before["validation_answer_prob"]
    rows = list(rlforge.RunPaths(root=adapted.path).metrics.read_text().splitlines())
    assert len(rows) == summary["updates"]
    assert '"validation_loss"' in rows[7]  # learner.save_every=8
    assert '"validation_loss"' not in rows[6]
    assert not any(name in rows[0] for name in ("reward_mean", "lag_mean", '"entropy"'))
    assert adapted.versions[:2] == ["step-8", "step-16"]
    assert len(list(read_games(adapted.path))) == LEARNING["games"]
    assert "held-out loss" in adapted.report().read_text()


def test_a_killed_run_ends_with_the_weights_of_an_uninterrupted_one(
    adapted: rlforge.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "killed"
    shutil.copytree(adapted.path, copy)
    for version in adapted.versions[1:]:  # killed after update 8 was saved
        shutil.rmtree(copy / "checkpoints" / version)
    for name in ("summary.json", "report.html"):
        (copy / name).unlink()
    resumed = rlforge.resume(copy)
    assert f"resumed at update 8/{adapted.summary['total_updates']}" in capsys.readouterr().err
    assert resumed.versions == adapted.versions
    weights = Path("checkpoints", adapted.versions[-1], "adapter_model.safetensors")
    ours, theirs = load_file(copy / weights), load_file(adapted.path / weights)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert resumed.summary["after"] == adapted.summary["after"]
    assert resumed.summary["before"] == adapted.summary["before"]
    with pytest.raises(RunError, match="already finished"):
        rlforge.resume(copy)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("measurement", [0, 1, 2])
def test_a_signal_ends_a_measurement_that_the_resumed_run_makes(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measurement: int
) -> None:
    """Of the start, of a version on the way, and of the last one."""
    data = {**LEARNING, "games": 40, "epochs": 1.0, "validation": 0.3}
    small = {"batch_size": 16, "save_every": 4}
    calls = signals = 0
    measure = LearnerActor.measure

    def counted(self: LearnerActor, batch: TrainBatch) -> list[float]:
        nonlocal calls
        calls += 1
        if calls == signals:
            signal.raise_signal(signal.SIGINT)
        return measure(self, batch)

    monkeypatch.setattr(LearnerActor, "measure", counted)
    whole = learn(small_model, tmp_path / "whole", data, **small)
    pieces = -(-len(load_samples(whole.path).validation) // 16)
    assert pieces > 2
    at = [0, 1, calls // pieces - 1][measurement]
    calls, signals = 0, at * pieces + 2  # in its second piece
    run = learn(small_model, tmp_path / "run", data, **small)
    assert run.summary["status"] == "interrupted"
    assert calls == signals
    assert run.versions == whole.versions[:at]
    resumed = rlforge.resume(run.path)
    assert resumed.summary["status"] == "done"
    assert resumed.summary["before"] == whole.summary["before"]
    assert resumed.summary["after"] == whole.summary["after"]
    lines = [
        [(row["step"], row.get("validation_loss")) for row in rows(each.path / "metrics.jsonl")]
        for each in (resumed, whole)
    ]
    assert lines[0] == lines[1]


def test_a_run_starts_from_the_newest_version_of_the_run_that_it_names(
    adapted: rlforge.Run, small_model: Path, tmp_path: Path
) -> None:
    data = {**LEARNING, "epochs": 0.1}
    second = learn(small_model, tmp_path / "second", data, initial_adapter=adapted.path)
    newest = adapted.path / "checkpoints" / adapted.versions[-1]
    assert second.config.learner.initial_adapter == str(adapted.path)
    own = second.path / "checkpoints" / "step-0" / "adapter_model.safetensors"
    assert own.read_bytes() == (newest / "adapter_model.safetensors").read_bytes()
    # The same seed plays the same games, and holds out the same.
    assert second.summary["before"] == pytest.approx(adapted.summary["after"], rel=1e-4)


def test_training_on_games_goes_on_from_the_newest_version_and_needs_it_no_more_when_moved(
    adapted: rlforge.Run, small_model: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(adapted.path, tmp_path / "sft")
    few = ("learner.total_updates=1", "learner.batch_size=8", "learner.learning_rate=1e-9")
    few += ("env.train.0.error_allowance=1",)
    code = rlforge_here(
        *train_arguments(small_model, *few, "algorithm.kl.coef=0.1", "algorithm.kl.to=base"),
        f"model.lora.rank={adapted.config.model.lora.rank}",
        f"learner.initial_adapter={source.name}",
        "hardware=cpu",
    )
    assert code == 0
    weights = Path("checkpoints", adapted.versions[-1], "adapter_model.safetensors")
    start = load_file(adapted.path / weights)
    end = load_file(RUN / "checkpoints/step-1" / weights.name)
    assert start.keys() == end.keys()
    assert all(torch.allclose(end[name], start[name], atol=1e-6) for name in start)
    # The engine plays the first games with the adapter, too.
    gaps = [row["logprob_gap_mean"] for row in rows("metrics.jsonl")]
    assert 0 < max(gaps) < 1e-5
    shutil.rmtree(source)
    moved = RUN.rename("moved").absolute()
    assert rlforge_here("train", "--resume", str(moved), "--more", "1") == 0
    own = moved / "checkpoints" / "step-0"
    assert (own / weights.name).read_bytes() == (adapted.path / weights).read_bytes()
    assert find_policy(moved, "step-0")[0].path_or_name == str(own)
    assert rlforge.load_run(moved).versions == ["step-0", "step-1", "step-2"]


def test_a_run_without_a_version_is_no_start(small_model: Path, tmp_path: Path) -> None:
    run = tmp_path / "empty"
    run.mkdir()
    (run / "config.yaml").write_text("name: empty\n")
    with pytest.raises(ConfigError, match=r"initial_adapter=.*holds no checkpoint yet"):
        learn(small_model, tmp_path / "run", LEARNING, initial_adapter=run)


def test_actions_that_no_answer_has_room_for_are_refused(small_model: Path, tmp_path: Path) -> None:
    """What is longer is left out: of Leduc's actions the model would learn only to call."""
    with pytest.raises(ConfigError, match=r"max_tokens=4: .* \[raise\] of leduc_poker has 7"):
        rlforge.sft(
            "kuhn_nash",
            "env.train=[{id: leduc_poker, source: openspiel, max_turns: 30}]",
            "model=hf",
            run_dir=tmp_path / "run",
            data=LEARNING,
            engine={"max_tokens": 4},
            model={"name": small_model, "prompt_template": "board", "action_extraction": "bracket"},
        )
    assert not (tmp_path / "run").exists()


def test_a_run_without_samples_says_what_was_left_out(small_model: Path, tmp_path: Path) -> None:
    data = {**LEARNING, "games": 4, "min_reward": 2.0}
    with pytest.raises(RunError, match=r"no sample is left .*by outcome"):
        learn(small_model, tmp_path / "run", data)
