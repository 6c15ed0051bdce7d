"""Evaluation outside training: one process, the same engine, the same games, no Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rlforge.checkpoint import latest_checkpoint, list_checkpoints, read_manifest
from rlforge.collector import Collector, Delivery
from rlforge.config.compose import from_yaml
from rlforge.config.schema import RunConfig
from rlforge.engines.registry import make_engine
from rlforge.errors import CheckpointError, ConfigError, nearest
from rlforge.evaluation import plan_evaluation, summarise
from rlforge.games.players import check_player
from rlforge.hardware import detect, resolve_hardware
from rlforge.models.load import load_tokenizer, stop_token_ids
from rlforge.pool.names import parse_opponent
from rlforge.seats import SeatAnswers
from rlforge.types import EvalResult, GameSpec, PolicyRef
from rlforge.validate import eval_envs, eval_opponents


class _NoTraining:
    """Ports of a collector that only evaluates."""

    async def next_games(self, wanted: int) -> list[GameSpec] | None:
        return None

    async def deliver(self, delivery: Delivery) -> None:
        raise AssertionError("an evaluation delivers nothing")


async def evaluate_run(
    run_dir: Path, checkpoint: str, opponents: Sequence[str] | None, games: int | None
) -> list[EvalResult]:
    """Play ``checkpoint`` (``latest`` or a uid) of a run against ``opponents``, seats swapped.

    opponents: names as in the config, or uids of the same run; None takes those of the run.
    Raises ConfigError for unknown names, CheckpointError for missing or damaged versions.
    """
    config = from_yaml(run_dir / "config.yaml")
    if games is not None:
        if games < 2 or games % 2:
            raise ConfigError(f"--games {games}: must be even and at least 2; seats are swapped")
        config = dataclasses.replace(
            config, eval=dataclasses.replace(config.eval, games=games, final_games=None)
        )
    policy, step = find_policy(run_dir, checkpoint)
    against = [_opponent(run_dir, name, config) for name in opponents or []]
    specs = plan_evaluation(
        eval_envs(config),
        against or eval_opponents(config),
        policy,
        config.eval.final_games or config.eval.games,
        step=step,
        seed=config.seed,
    )
    hardware = resolve_hardware(config.hardware, detect(), 1)
    engine = make_engine(config, device=hardware.device, threads=hardware.threads)
    tokenizer = load_tokenizer(config.model)
    answers = SeatAnswers(config, tokenizer, engine, stop_token_ids(config.model, tokenizer))
    try:
        collector = Collector(config.collector, _NoTraining(), answers.for_game)
        return summarise(await collector.evaluate(specs), step)
    finally:
        await engine.close()


def find_policy(run_dir: Path, name: str) -> tuple[PolicyRef, int]:
    """The policy ``name`` of a run and its version; its files are checked against the manifest."""
    checkpoints = run_dir / "checkpoints"
    if name == "step-0":
        return PolicyRef(uid="step-0", kind="checkpoint"), 0
    if name == "latest":
        path = latest_checkpoint(checkpoints)
        if path is None:
            raise CheckpointError(
                f"{checkpoints}: holds no checkpoint yet; use --checkpoint step-0"
            )
    elif not (checkpoints / name).is_dir():
        known = [entry.name for entry in list_checkpoints(checkpoints)]
        raise CheckpointError(f"{checkpoints / name}: no such checkpoint{nearest(name, known)}")
    else:
        path = checkpoints / name
    version = int(read_manifest(path).meta["version"])
    policy = PolicyRef(uid=path.name, kind="checkpoint", path_or_name=str(path), version=version)
    return policy, version


def _opponent(run_dir: Path, name: str, config: RunConfig) -> PolicyRef:
    if name.startswith("step-"):
        return find_policy(run_dir, name)[0]
    policy = parse_opponent(name)
    if policy.kind == "scripted":
        for spec in eval_envs(config):
            check_player(policy.path_or_name or name, spec)
    return policy
