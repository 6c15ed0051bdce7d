"""A run's policies, loaded into this process without Ray."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rlforge.config.per_policy import entries, entry_of, evaluated_at, policy_names
from rlforge.config.roots import read_any
from rlforge.config.schema import GamesConfig, HardwareConfig, PolicyConfig
from rlforge.engines.base import LocalEngine
from rlforge.engines.openai import check_api
from rlforge.engines.registry import check_playable, make_engine
from rlforge.errors import CheckpointError, ConfigError, check_type, raise_all
from rlforge.league.names import parse_opponent
from rlforge.models.files import AVERAGE
from rlforge.models.load import load_tokenizer, resolve_model, stop_token_ids
from rlforge.preflight.model import other_model_problems, other_weight_problems
from rlforge.record.files import RunPaths
from rlforge.record.results import read_evals
from rlforge.rollout.lineup import as_played_by, can_play, check_plays, eval_envs
from rlforge.rollout.policies import SeatPolicies
from rlforge.system.checkpoint import (
    LATEST,
    checkpoint_version,
    find_checkpoint,
    is_step_name,
    list_checkpoints,
    policy_in,
    step_name,
    step_number,
)
from rlforge.system.garbage import frozen_gc
from rlforge.system.hardware import detect, resolve_hardware
from rlforge.types import PolicyRef

#: Names the version with the highest win rate where a name is asked for.
BEST = "best"
#: Names the version of ``learner.result``.
RESULT = "result"


@asynccontextmanager
async def seat_policies(
    config: GamesConfig, policies: Sequence[PolicyRef], say: Callable[[str], None]
) -> AsyncIterator[SeatPolicies]:
    """The policies at the seats of ``config``'s games; if one is a model, with an engine here."""
    for one in policies:
        if one.kind == "api":
            check_api(one.path_or_name or one.uid, config.pool.api)
    tokenizer: Any = None
    stops: tuple[int, ...] = ()
    if not any(one.kind in ("checkpoint", "hf") for one in policies):
        yield SeatPolicies(config, tokenizer, tokenizer, stops)
        return
    engine = start_engine(config, policies, say)
    try:
        if any(one.kind == "checkpoint" for one in policies):
            tokenizer = load_tokenizer(config.model)
            stops = stop_token_ids(config.model, tokenizer)
        # Else garbage collections would go through all objects of the engine during games.
        with frozen_gc():
            yield SeatPolicies(config, tokenizer, engine, stops, policies)
    finally:
        await engine.close()


def start_engine(
    config: PolicyConfig, policies: Sequence[PolicyRef], say: Callable[[str], None]
) -> LocalEngine:
    """The engine of ``config`` in this process, with the run's model and others of ``policies``."""
    others = as_played_by(config, policies)
    for other in others.values():
        raise_all(other_model_problems(other))
        raise_all(other_weight_problems(other))
    # This machine may lack the run's device, so only the choice of a CPU is kept.
    here = HardwareConfig(
        device="cpu" if config.hardware.device == "cpu" else "auto", threads=config.hardware.threads
    )
    hardware = resolve_hardware(here, detect(), num_engines=1, num_learners=0)
    # Not vLLM, which takes longer to start than a few games last.
    if config.engine.name == "auto":
        config = dataclasses.replace(
            config, engine=dataclasses.replace(config.engine, name="transformers")
        )
    own = any(one.kind == "checkpoint" for one in policies)
    if own:
        resolve_model(config.model, say)
        check_playable(policies, config)
    return make_engine(
        config, device=hardware.device, threads=hardware.threads, others=others, own=own
    )


def find_policy(run_dir: Path, name: str) -> tuple[PolicyRef, int]:
    """The policy ``name`` of a run and its version; its files are checked against the manifest.

    name: ``result`` (of ``learner.result``), ``step-N`` (with ``policies`` ``NAME-N``), ``latest``
    (of the first policy), ``best`` (by win rate), or ``deploy-N``; with ``-average`` the average of
    the weights until then.
    """
    check_type(name, str, what="a version is named, as 'step-40' or 'latest'")
    config = read_any(run_dir)
    names = policy_names(config)
    if name in [step_name(0, each) for each in names]:
        # Version 0 has no files, unless the run went on from an adapter.
        start, own = config.learner.initial_adapter, run_dir / "checkpoints" / name
        start = str(own) if start is not None and own.exists() else start
        one = policy_in(name)
        return PolicyRef(uid=name, kind="checkpoint", path_or_name=start, name=one), 0
    try:
        weights = find_weights(run_dir, name)
    except CheckpointError as error:
        start = step_name(0, names[0])
        raise ConfigError(f"{error}; use {start} for the start of the run") from None
    averaged = weights.name == AVERAGE
    saved = weights.parent if averaged else weights
    version = checkpoint_version(saved, verify=True)
    one = policy_in(saved.name) if policy_in(saved.name) in names else ""
    policy = PolicyRef(
        uid=f"{saved.name}-{AVERAGE}" if averaged else saved.name,
        kind="checkpoint",
        path_or_name=str(weights),
        version=version,
        name=one,
    )
    return policy, version


def find_weights(run_dir: Path, name: str) -> Path:
    """The folder with the weights of the version ``name`` of a run, named as for ``find_policy``.

    Its files are not checked. Raises CheckpointError where there is none, ConfigError for an
    average that the run does not keep.
    """
    run = RunPaths(root=run_dir)
    if name == RESULT:
        name = read_any(run_dir).learner.result
    uid, dash, last = name.rpartition("-")
    if averaged := last == AVERAGE:
        name = uid if dash else LATEST
    if name == BEST:
        name = best_version(run)
    path = find_checkpoint(run.deployed if name.startswith("deploy-") else run.checkpoints, name)
    if not averaged:
        return path
    if not (path / AVERAGE).is_dir():
        raise ConfigError(
            f"{run_dir} keeps no average of its weights: train with learner.average=moving"
        )
    return path / AVERAGE


def result_and_latest(run_dir: Path) -> list[str]:
    """Names of a run's result and of its latest version, where these are two."""
    same = read_any(run_dir).learner.result == LATEST
    return [RESULT] if same else [RESULT, LATEST]


def about_result(run_dir: Path, option: str) -> str | None:
    """A note where a run's result is not its latest version. option: the one that names another."""
    named = read_any(run_dir).learner.result
    if named == LATEST:
        return None
    what = "the average of its weights" if named == AVERAGE else "its best version by win rate"
    how = f"learner.result={named}"
    return f"the run's result is {what} ({how}); its last version: {option} {LATEST}"


def seated_with(
    run_dir: Path, policy: PolicyRef, config: GamesConfig, seats: int
) -> list[PolicyRef]:
    """The version at each of ``seats`` seats where ``policy`` is evaluated."""
    if policy.name not in entries(config):
        return [policy] * seats
    saved = [path.name for path in list_checkpoints(RunPaths(root=run_dir).checkpoints)]
    there = []
    for seat in range(seats):
        other = evaluated_at(config, seat)
        if entry_of(config, policy.name).takes(seat) or other == policy.name:
            there.append(policy)
            continue
        # Another policy has this seat, and plays as it was after as many updates.
        own = [name for name in saved if policy_in(name) == other]
        past = [name for name in own if step_number(name) <= policy.version]
        there.append(find_policy(run_dir, past[-1] if past else step_name(0, other))[0])
    return there


def saved_versions(run_dir: Path) -> list[str]:
    """The start of a run, and its saved versions; of several policies those of the first."""
    policy = policy_names(read_any(run_dir))[0]
    saved = [path.name for path in list_checkpoints(RunPaths(root=run_dir).checkpoints)]
    own = [name for name in saved if policy_in(name) == policy]
    return list(dict.fromkeys([step_name(0, policy), *own]))


def best_version(run: RunPaths) -> str:
    """The newest saved version with the highest mean win rate; CheckpointError for none."""
    rates: dict[str, dict[tuple[str, str], float]] = {}
    for one in read_evals(run):
        rates.setdefault(one.policy_uid, {})[one.env_id, one.opponent] = one.win_rate
    saved = [path.name for path in list_checkpoints(run.checkpoints) if path.name in rates]
    if not saved:
        raise CheckpointError(f"{run.root}: no saved version was evaluated; name one, or latest")
    # Means over fewer opponents cannot be compared with the others.
    most = max(len(rates[name]) for name in saved)
    whole = [name for name in saved if len(rates[name]) == most]
    return max(reversed(whole), key=lambda name: statistics.fmean(rates[name].values()))


def find_opponent(run_dir: Path, name: str, config: GamesConfig) -> PolicyRef:
    """An opponent by its name in the config or uid in the run; ConfigError for no player here."""
    check_type(name, str, what="an opponent is named, as 'random_legal' or 'step-40'")
    if is_step_name(name.removesuffix(f"-{AVERAGE}")) or name in (RESULT, LATEST, BEST, AVERAGE):
        return find_policy(run_dir, name)[0]
    policy = parse_opponent(name)
    envs = eval_envs(config)
    # The error of the check says why the opponent knows none of the games.
    if not any(can_play(policy, env) for env in envs):
        check_plays(policy, envs[0])
    return policy
