"""Runs that learn from games (``rlforge train``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlforge.config.per_policy import entry_of, of_policy, policy_names
from rlforge.config.schema import HardwareConfig, RunConfig
from rlforge.errors import ConfigError, command_line
from rlforge.kinds import Controller, RunKind
from rlforge.specs import ActorSpec, engine_node, learner_node, tracker_node
from rlforge.types import PolicyRef

if TYPE_CHECKING:
    from rlforge.config.compose import Composed


class Games(RunKind[RunConfig]):
    """Self-play, and play against a pool."""

    root = RunConfig
    recorded = "rlforge.lab.verify.check:VerifiedGames"

    def check(self, composed: Composed[RunConfig], *, keys: bool = True) -> None:
        from rlforge.preflight.games import validate

        validate(composed, keys=keys)

    def check_prompts(self, config: RunConfig) -> None:
        from rlforge.preflight.games import check_history, check_room

        check_history(config)
        check_room(config)

    def opponents(self, config: RunConfig) -> Mapping[str, Sequence[PolicyRef]]:
        from rlforge.rollout.lineup import eval_pairings, fixed_opponents

        met = {pairing.key: pairing.opponents for pairing in eval_pairings(config)}
        for name in policy_names(config):
            key = f"policies.{name}.pool.fixed_opponents" if name else "pool.fixed_opponents"
            met[key] = fixed_opponents(of_policy(config, name))
        return met

    def notes(self, composed: Composed[RunConfig]) -> Iterator[str]:
        config = composed.config
        every, bound = config.learner.save_every, config.buffer.max_staleness
        if 1 < every >= bound > 0:
            yield (
                f"{composed.said('buffer.max_staleness')} is no more than "
                f"{composed.said('learner.save_every')}: games of a version become too old before "
                "the next one is published, so that up to a tenth of the samples is thrown away "
                f"and the learner waits; {every + 1} is enough"
            )

    def forecast(self, config: RunConfig) -> str:
        from rlforge.rollout.expected import forecast

        return forecast(config)

    def nodes(self, config: RunConfig, hardware: HardwareConfig) -> tuple[ActorSpec, ...]:
        return (
            tracker_node(),
            ActorSpec(
                name="pool",
                actor="rlforge.run.actors.state:PoolActor",
                reads=("pool", "env"),
                # Pool and buffer write into the run directory, which is on the driver's node.
                on_driver_node=True,
                sends=(("collector", "GameSpec"), ("tracker", "ratings")),
            ),
            ActorSpec(
                name="buffer",
                actor="rlforge.run.actors.state:BufferActor",
                reads=("buffer", "rewards"),
                on_driver_node=True,
                sends=(("learner", "TrainBatch"),),
            ),
            learner_node(
                config,
                hardware,
                ("engine", "adapter version"),
                ("pool", "Checkpoint"),
                ("tracker", "UpdateResult"),
            ),
            engine_node(config, hardware, ("collector", "Completion"), ("tracker", "throughput")),
            ActorSpec(
                name="collector",
                actor="rlforge.run.actors.collector:CollectorActor",
                reads=("collector", "eval"),
                num_cpus=1.0,
                replicas=config.collector.num_collectors,
                least=config.collector.min_collectors if hardware.elastic else None,
                replicas_key="collector.num_collectors",
                restarts=config.collector.max_restarts,
                # Each game of ``eval.continuous`` is a call, which must not wait for others.
                concurrency=1000,
                placement_group="rollout",
                sends=(
                    ("engine", "prompt ids, sampling parameters, policy"),
                    ("buffer", "GameRecord"),
                    ("pool", "outcomes"),
                    ("tracker", "games"),
                ),
            ),
        )

    def controller(self, config: RunConfig) -> Callable[[Any], Controller]:
        from rlforge.run.controller import GameController

        return GameController

    def check_resumable(self, config: RunConfig, run_dir: Path) -> None:
        from rlforge.run.resume import check_resumable

        check_resumable(run_dir, config.learner.total_updates)

    def longer(self, config: RunConfig, more: int) -> RunConfig:
        total = config.learner.total_updates + more
        learner = dataclasses.replace(config.learner, total_updates=total)
        return dataclasses.replace(config, learner=learner)

    def next_steps(self, config: RunConfig, run_dir: Path) -> list[str]:
        play = command_line("play", "--run", run_dir)
        # Whole weights work everywhere; an adapter needs a base model that others have.
        return [play, command_line("export", run_dir, "my-model", "--merge")]

    def learned(self, config: RunConfig, policy: str) -> str:
        pool = of_policy(config, policy).pool
        met = entry_of(config, policy).meets(policy) if policy else ()
        against = [f"versions of `{one}`" for one in met]
        against += [f"`pool.mode={pool.mode}`", *(f"`{one}`" for one in pool.fixed_opponents)]
        return f"its own games, against opponents by {', '.join(against)}"

    def samples(
        self, config: RunConfig, run_dir: Path, update: int | None
    ) -> tuple[int, Sequence[Any]]:
        from rlforge.buffer.batches import read_samples
        from rlforge.record.files import numbered
        from rlforge.show.batches import among

        # Of a batch in both formats the file that comes last here is read: Parquet, the faster one.
        files = {
            number: path
            for suffix in ("csv", "parquet")
            for number, path in numbered((run_dir / "batches").glob(f"batch-*.{suffix}"))
        }
        if not files and not config.buffer.save_batches:
            raise ConfigError(f"{run_dir} keeps no batches (buffer.save_batches=false)")
        number = among(run_dir, sorted(files), update)
        return number, read_samples(files[number])


GAMES = Games()
