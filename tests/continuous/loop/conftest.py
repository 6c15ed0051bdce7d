"""A small run of the simulated market, in this process or in one that may be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.harness.composed import composed

from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.loop.run import ContinuousRun
from rlforge.preflight.plan import make_plan
from rlforge.run.lifecycle import execute as execute_run
from rlforge.system.checkpoint import write_checkpoint
from rlforge.system.hardware import detect


@pytest.fixture
def make_config(small_market: Sequence[str]) -> Callable[..., ContinuousConfig]:
    return lambda *overrides: composed(*small_market, *overrides, root=ContinuousConfig).config


@pytest.fixture
def execute(in_process):
    """Runs a configuration in a directory to its end, or goes on there; returns the directory."""

    def run(config: ContinuousConfig, name: str = "run", controller: Any = ContinuousRun) -> Path:
        run_dir = Path(name).absolute()
        resume = run_dir.exists()
        run_dir.mkdir(exist_ok=True)
        (run_dir / "command.txt").write_text("rlforge continuous\n")
        plan = make_plan(config, detect(), run_dir)
        execute_run(plan, run_dir, controller=controller, resume=resume)
        return run_dir

    return run


@pytest.fixture(scope="session")
def adapter(market_model, tmp_path_factory):
    import torch

    from rlforge.config.model import LoraConfig, ModelConfig
    from rlforge.learner.weights import attach_lora
    from rlforge.models.devices import resolve_device
    from rlforge.models.load import load_base_model

    lora = LoraConfig(rank=4)
    model = ModelConfig(kind="hf", name=str(market_model), dtype="float32", lora=lora)
    wrapped = attach_lora(load_base_model(model, resolve_device("cpu"), torch.float32), lora, 1)
    folder = tmp_path_factory.mktemp("adapters")
    return write_checkpoint(folder, "step-1", wrapped.save_pretrained, {"version": 1})


class Runs:
    """Calls ``rlforge continuous`` in forked processes, which may be killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(
        self, *arguments: str | Path, kill: tuple[int, str, str] | None = None, log: str = "log"
    ) -> int:
        """Exit code; kill: window, phase, and ``before`` or ``after`` its entry."""
        order = {"arguments": [str(a) for a in arguments], "log": str(Path(log).absolute())}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**order, "kill": kill}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@pytest.fixture(scope="session")
def run_continuous() -> Iterator[Runs]:
    pipe = subprocess.PIPE
    paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.harness.killed_runs"],
        stdin=pipe,
        stdout=pipe,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Runs(process)
        assert process.stdin is not None
        process.stdin.close()
