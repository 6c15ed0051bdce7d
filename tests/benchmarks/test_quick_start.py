"""The projection of the quick start: what runs on a GPU, tried on a small model."""

import asyncio
import importlib
import subprocess
import sys

import pytest
from tests.factories import completion

from rlforge.config.compose import compose
from rlforge.errors import EngineError


def test_it_measures_the_preset(on_path):
    quick_start = importlib.import_module("quick_start")
    shapes = importlib.import_module("shapes")
    config = compose(["+experiment=qwen3_1p7b_simpletak"]).config
    assert config.learner.total_updates == quick_start.UPDATES
    assert config.learner.batch_size == quick_start.BATCH
    assert config.collector.num_train_workers == quick_start.WORKERS
    assert config.model.lora.rank == shapes.SHAPES["qwen3-1.7b"][1]


@pytest.mark.slow  # a whole round of the benchmark
def test_a_round_is_the_sum_of_its_parts_and_needs_neither_ray_nor_games(on_path, bare_environment):
    small = ["--shape", "tiny", "--device", "cpu", "--workers", "8", "--median-answer", "2"]
    short = ["--seconds", "1", "--repeats", "2"]
    command = [sys.executable, str(on_path / "quick_start.py"), *small, *short]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    shown = dict(line.split(": ") for line in run.stdout.splitlines())
    numbers = {name: float(text.split()[0]) for name, text in shown.items()}
    total, tuned = (numbers.pop(f"200 updates{kind}") for kind in ("", ", tuned"))
    assert len(numbers) == 4
    # Medians of a few numbers add up but roughly.
    assert 200 / 3600 * sum(numbers.values()) == pytest.approx(tuned, rel=0.2, abs=0.01)
    assert total == pytest.approx(tuned + 200 / 3600 * numbers["playing"], rel=0.2, abs=0.01)


def test_an_engine_that_runs_out_of_memory_gives_no_rate(on_path):
    quick_start = importlib.import_module("quick_start")
    shapes = importlib.import_module("shapes")
    steps = shapes.make_steps(512, number=8, median=2)
    asked = 0

    class Full:
        async def load(self, policy):
            pass

        async def generate(self, prompt, params, policy):
            nonlocal asked
            asked = number = asked + 1
            await asyncio.sleep(0.001)
            if number == 5:
                raise EngineError("generation failed: OutOfMemoryError")
            return completion("", prompt_token_ids=prompt, token_ids=(1,), logprobs=(0.0,))

    with pytest.raises(EngineError, match="OutOfMemoryError"):
        asyncio.run(quick_start.play(Full(), steps, [None, None], workers=4, length=0.1))
    assert asked > 5  # the others went on
