"""A run's policies, loaded into this process without Ray."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rlforge.config.roots import read_any
from rlforge.config.schema import GamesConfig, HardwareConfig, PolicyConfig
from rlforge.engines.base import LocalEngine
from rlforge.engines.registry import check_playable, make_engine
from rlforge.errors import CheckpointError, ConfigError
from rlforge.games.players import check_player
from rlforge.league.names import parse_opponent
from rlforge.models.files import AVERAGE
from rlforge.models.load import load_tokenizer, resolve_model, stop_token_ids
from rlforge.rollout.lineup import eval_envs
from rlforge.rollout.policies import SeatPolicies
from rlforge.system.checkpoint import (
    checkpoint_version,
    find_checkpoint,
    is_step_name,
    list_checkpoints,
    step_name,
)
from rlforge.system.hardware import detect, resolve_hardware
from rlforge.tracking.files import RunPaths, read_jsonl
from rlforge.types import EnvSpec, PolicyRef

#: Names the version with the highest win rate where a name is asked for.
BEST = "best"


@asynccontextmanager
async def seat_policies(
    config: GamesConfig, policies: Sequence[PolicyRef], say: Callable[[str], None]
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
    hardware = resolve_hardware(here, detect(), num_engines=1, num_learners=0)
    resolve_model(config.model, say)
    check_playable(policies, config)
    return make_engine(config, device=hardware.device, threads=hardware.threads)


def find_policy(run_dir: Path, name: str) -> tuple[PolicyRef, int]:
    """The policy ``name`` of a run and its version; its files are checked against the manifest.

    name: ``step-N``, ``latest``, ``best`` (by win rate in the evaluations), or ``deploy-N`` of a
    continuous run. With ``-average`` behind it: the average of the weights until then; ``average``
    alone is that of the newest version. Raises ConfigError where there is no such version,
    CheckpointError where its files are damaged.
    """
    run = RunPaths(root=run_dir)
    name, averaged = name.removesuffix(f"-{AVERAGE}"), name.endswith(AVERAGE)
    if name == AVERAGE:
        name = "latest"
    if name == BEST:
        name = best_version(run)
    if name == step_name(0) and not averaged:
        start, own = read_any(run_dir).learner.initial_adapter, run.checkpoints / name
        start = str(own) if start is not None and own.exists() else start
        return PolicyRef(uid=name, kind="checkpoint", path_or_name=start), 0
    try:
        path = find_checkpoint(
            run.deployed if name.startswith("deploy-") else run.checkpoints, name
        )
    except CheckpointError as error:
        raise ConfigError(f"{error}; use {step_name(0)} for the start of the run") from None
    version = checkpoint_version(path, verify=True)
    uid = path.name
    if averaged:
        path, uid = path / AVERAGE, f"{path.name}-{AVERAGE}"
        if not path.is_dir():
            raise ConfigError(
                f"{run_dir} keeps no average of its weights: train with learner.average=moving"
            )
    policy = PolicyRef(uid=uid, kind="checkpoint", path_or_name=str(path), version=version)
    return policy, version


def best_version(run: RunPaths) -> str:
    """The saved version with the highest mean win rate over all that the run evaluates against.

    Of equal ones, the newest. Raises CheckpointError where no saved version was evaluated.
    """
    rates: dict[str, dict[tuple[str, str], float]] = {}
    for row in read_jsonl(run.evals):
        rates.setdefault(row["policy_uid"], {})[row["env_id"], row["opponent"]] = row["win_rate"]
    saved = [path.name for path in list_checkpoints(run.checkpoints) if path.name in rates]
    if not saved:
        raise CheckpointError(f"{run.root}: no saved version was evaluated; name one, or latest")
    most = max(len(rates[name]) for name in saved)
    whole = [name for name in saved if len(rates[name]) == most]
    return max(reversed(whole), key=lambda name: statistics.fmean(rates[name].values()))


def find_opponent(run_dir: Path, name: str, config: GamesConfig) -> PolicyRef:
    """An opponent by its name in the config, or by its uid in the run.

    Raises ConfigError for an unknown name, or a player that knows none of the games.
    """
    if is_step_name(name.removesuffix(f"-{AVERAGE}")) or name == AVERAGE:
        return find_policy(run_dir, name)[0]
    policy = parse_opponent(name)
    envs = eval_envs(config)
    if not any(can_play(policy, env) for env in envs):
        check_player(policy.path_or_name or name, envs[0])
    return policy


def can_play(policy: PolicyRef, env: EnvSpec) -> bool:
    """Whether ``policy`` knows the game; only scripted players may not."""
    try:
        if policy.kind == "scripted":
            check_player(policy.path_or_name or policy.uid, env)
    except ConfigError:
        return False
    return True
