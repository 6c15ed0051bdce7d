"""Real engines over the small model, real adapters, and a service in a folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import factories
from tests.harness.composed import composed

from rlforge.config.engine import EngineConfig
from rlforge.config.games import EnvConfig, EnvEntry
from rlforge.config.model import LoraConfig, ModelConfig
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.config.serving import DeploymentConfig, ServeConfig, ServingConfig
from rlforge.continuous.loop.policy_side import checks_of_run
from rlforge.continuous.serving.game_checks import game_probes
from rlforge.continuous.serving.records import Probe
from rlforge.continuous.serving.service import DeploymentService
from rlforge.continuous.serving.validation import copy_files, fingerprint
from rlforge.engines.registry import make_engine
from rlforge.models.load import load_tokenizer, stop_token_ids
from rlforge.system.checkpoint import write_checkpoint
from rlforge.types import Checkpoint

LORA = LoraConfig(rank=4, alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    function = {"name": name, "parameters": {**parameters, "additionalProperties": False}}
    return {"type": "function", "function": function}


ADDING = tool("add", a={"type": "integer", "minimum": 0, "maximum": 99})
WAIT = tool("wait")

#: Random adapters of a barely warmed model: their answers need not be readable.
SETTINGS = {"min_format": 0.0, "holdout_games": 0, "timeout_s": 60.0}


def small_config(small_model: Path) -> ServingConfig:
    return ServingConfig(
        name="small",
        model=ModelConfig(
            kind="hf",
            name=str(small_model),
            dtype="float32",
            prompt_template="board",
            action_extraction="bracket",
            lora=LORA,
        ),
        env=EnvConfig(train=[EnvEntry(id="TicTacToe-v0-train", max_turns=20)]),
        engine=EngineConfig(max_tokens=16, max_model_len=128, max_loras=4),
        deployment=DeploymentConfig(**SETTINGS),
        serve=ServeConfig(port=0),
    )


@pytest.fixture
def config(small_model):
    return small_config(small_model)


@pytest.fixture(scope="session")
def tokenizer(small_model):
    return load_tokenizer(small_config(small_model).model)


@pytest.fixture(scope="session")
def probes(small_model, tokenizer):
    config = small_config(small_model)
    return game_probes(config, tokenizer, stop_token_ids(config.model, tokenizer))


@pytest.fixture
async def engine(config):
    engine = make_engine(config, device="cpu", threads=1)
    yield engine
    await engine.close()


@pytest.fixture(scope="session")
def stock(small_model, tmp_path_factory):
    """Checkpoints as the learner writes them, made once; greedy answers differ by their seeds."""
    import torch

    from rlforge.learner.weights import attach_lora
    from rlforge.models.devices import resolve_device
    from rlforge.models.load import load_base_model

    @functools.cache
    def made(seed: int, rank: int, modules: tuple[str, ...]) -> Path:
        base = load_base_model(
            small_config(small_model).model, resolve_device("cpu"), torch.float32
        )
        wrapped = attach_lora(base, LoraConfig(rank=rank, alpha=8, target_modules=[*modules]), seed)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(0, 0.5, generator=generator)
        root = tmp_path_factory.mktemp("adapters")
        return write_checkpoint(root, f"step-{seed}", wrapped.save_pretrained, {"version": seed})

    return made


@pytest.fixture
def make_adapter(stock, tmp_path):
    """A checkpoint that the test may change."""

    def make(seed: int, lora: LoraConfig = LORA) -> Path:
        made = stock(seed, lora.rank, tuple(lora.target_modules))
        return Path(shutil.copytree(made, tmp_path / f"adapters-{lora.rank}" / made.name))

    return make


@pytest.fixture
def adapter(make_adapter):
    path = make_adapter(1)
    return Checkpoint(uid=path.name, version=1, path=str(path))


@pytest.fixture
def opened(config, engine, probes, tmp_path):
    """``async with opened(…) as service``; settings of group deployment by name."""

    @contextlib.asynccontextmanager
    async def open_service(
        folder: Path = tmp_path / "state",
        holdout: Any = None,
        on_phase: Any = None,
        asked: tuple[Probe, ...] = probes,
        rewards: tuple[float, float] = (-1.0, 1.0),
        **settings: Any,
    ) -> AsyncIterator[DeploymentService]:
        service = await DeploymentService.open(
            folder,
            engine,
            DeploymentConfig(**SETTINGS | settings),
            config.model,
            asked,
            holdout=holdout,
            on_phase=on_phase,
            rewards=rewards,
        )
        try:
            yield service
        finally:
            await service.close()

    return open_service


def without_manifest(checkpoint: Path, target: Path) -> Path:
    target.mkdir()
    copy_files(checkpoint, fingerprint(checkpoint), target)
    return target


@contextlib.contextmanager
def weights_of(adapter: Path) -> Iterator[dict[str, Any]]:
    from safetensors.torch import load_file, save_file

    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    yield weights
    save_file(weights, file)


async def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a change made by another task."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110  # what holds has no event
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------- the service of a recorded run


@pytest.fixture(scope="session")
def market(small_market):
    return composed(*small_market, root=ContinuousConfig).config


@pytest.fixture
async def market_engine(market):
    engine = make_engine(market, device="cpu", threads=1)
    yield engine
    await engine.close()


@pytest.fixture
def run(golden_market, tmp_path):
    return Path(shutil.copytree(golden_market, tmp_path / "run"))


@pytest.fixture
def serving(market, market_engine):
    """The service of a run; settings of group deployment by name."""

    @contextlib.asynccontextmanager
    async def serve(run, **settings):
        config = factories.changed(market, deployment=settings)
        checks = checks_of_run(run, config, market_engine, load_tokenizer(config.model))
        service = await DeploymentService.open(
            run / "deployments", market_engine, config.deployment, config.model, checks.probes
        )
        try:
            yield service
        finally:
            await service.close()

    return serve
