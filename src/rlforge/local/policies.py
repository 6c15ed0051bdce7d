"""A run's policies, loaded into this process without Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rlforge.config.compose import from_yaml
from rlforge.config.schema import HardwareConfig, PolicyConfig, RunConfig
from rlforge.engines.base import LocalEngine
from rlforge.engines.registry import check_playable, make_engine
from rlforge.errors import CheckpointError
from rlforge.games.players import check_player
from rlforge.league.names import parse_opponent
from rlforge.models.load import load_tokenizer, resolve_model, stop_token_ids
from rlforge.rollout.lineup import eval_envs
from rlforge.rollout.policies import SeatPolicies
from rlforge.system.checkpoint import (
    checkpoint_version,
    find_checkpoint,
    is_step_name,
    step_name,
)
from rlforge.system.hardware import detect, resolve_hardware
from rlforge.types import PolicyRef


@asynccontextmanager
async def seat_policies(
    config: RunConfig, policies: Sequence[PolicyRef], say: Callable[[str], None]
) -> AsyncIterator[SeatPolicies]:
    """The policies at the seats of ``config``'s games, with an engine in this process.

    policies: those of the seats. say: called with progress messages. Runs of a CPU stay on the CPU,
    others use the device that this machine has. Raises ConfigError for a model or an engine that is
    not available, and for saved policies that the engine cannot play.
    """
    engine = start_engine(config, policies, say)
    tokenizer = load_tokenizer(config.model)
    try:
        yield SeatPolicies(config, tokenizer, engine, stop_token_ids(config.model, tokenizer))
    finally:
        await engine.close()


def start_engine(
    config: PolicyConfig, policies: Sequence[PolicyRef], say: Callable[[str], None]
) -> LocalEngine:
    """The engine of ``config`` in this process, as ``seat_policies`` describes it."""
    here = HardwareConfig(
        device="cpu" if config.hardware.device == "cpu" else "auto",
        threads=config.hardware.threads,
    )
    hardware = resolve_hardware(here, detect(), 1)
    resolve_model(config.model, say)
    check_playable(policies, config)
    return make_engine(config, device=hardware.device, threads=hardware.threads)


def find_policy(run_dir: Path, name: str) -> tuple[PolicyRef, int]:
    """The policy ``name`` of a run and its version; its files are checked against the manifest."""
    if name == step_name(0):
        start = from_yaml(run_dir / "config.yaml").learner.initial_adapter
        return PolicyRef(uid=name, kind="checkpoint", path_or_name=start), 0
    try:
        path = find_checkpoint(run_dir / "checkpoints", name)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; use {step_name(0)} for the start of the run") from None
    version = checkpoint_version(path, verify=True)
    policy = PolicyRef(uid=path.name, kind="checkpoint", path_or_name=str(path), version=version)
    return policy, version


def find_opponent(run_dir: Path, name: str, config: RunConfig) -> PolicyRef:
    """An opponent by its name in the config, or by its uid in the run.

    Raises ConfigError for an unknown name, or a player that does not know the games.
    """
    if is_step_name(name):
        return find_policy(run_dir, name)[0]
    policy = parse_opponent(name)
    if policy.kind == "scripted":
        for spec in eval_envs(config):
            check_player(policy.path_or_name or name, spec)
    return policy
