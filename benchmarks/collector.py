"""How much of an engine's speed reaches the games: 256 of them, one collector, one engine actor.

    python benchmarks/collector.py [--seconds S] [--repeats N] [--experiment NAME]

``alone``: the engine's own answers a second, in this process, with 256 requests always waiting (the
prompts of random games). ``games``: answers a second in real games, asked by a collector in this
process and answered by an engine actor in another, as in a run, without learner, buffer and pool.
``working``: share of the time in which that engine computed. Both take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import ray
from common import record, shown, spread
from engine import positions

from rlforge.actors.cast import ray_started
from rlforge.actors.generation import EngineActor, RemoteEngine
from rlforge.collector import Collector, Delivery
from rlforge.config.compose import compose
from rlforge.config.schema import CollectorConfig, RunConfig
from rlforge.engines.base import Engine
from rlforge.engines.registry import make_engine
from rlforge.graph import build_graph
from rlforge.hardware import detect, resolve_hardware
from rlforge.models.load import load_tokenizer, stop_token_ids
from rlforge.schedule import line_up
from rlforge.seats import SeatAnswers
from rlforge.types import GameSpec, PolicyRef, SamplingParams
from rlforge.validate import train_envs

CONCURRENT = 256
WARM_UP_S = 3.0
FLOOR = 0.95
BASE = PolicyRef(uid="base", kind="checkpoint")


class EndlessGames:
    """Mirror games until ``stopped``; counts the answers of those that ended."""

    def __init__(self, config: RunConfig) -> None:
        [self._env] = train_envs(config)
        self._started = 0
        self.stopped = False
        self.failed = 0

    async def next_games(self, wanted: int) -> list[GameSpec] | None:
        if self.stopped:
            return None
        self._started += wanted
        return [
            GameSpec(
                game_id=f"game-{number}",
                env=self._env,
                seed=number,
                purpose="train",
                seats=line_up(self._env, [BASE, BASE], trained_uid=BASE.uid),
            )
            for number in range(self._started - wanted, self._started)
        ]

    async def deliver(self, delivery: Delivery) -> None:
        self.failed += sum(game.error is not None for game in delivery.records)


async def in_games(
    config: RunConfig, actor: Any, client: str, length: float
) -> tuple[float, float]:
    """Answers a second and the share of ``length`` seconds in which the engine worked."""
    tokenizer = load_tokenizer(config.model)
    remote = RemoteEngine([actor], client, timeout_s=60.0, retries=0)
    answers = SeatAnswers(config, tokenizer, remote, stop_token_ids(config.model, tokenizer))
    games = EndlessGames(config)
    collector = Collector(CollectorConfig(num_train_workers=CONCURRENT), games, answers.for_game)
    playing = asyncio.create_task(collector.train())
    await asyncio.sleep(WARM_UP_S)
    before, _ = await actor.stats.remote()
    started = time.perf_counter()
    await asyncio.sleep(length)
    after, _ = await actor.stats.remote()
    took = time.perf_counter() - started
    games.stopped = True
    await playing
    assert games.failed == 0
    return (after.requests - before.requests) / took, (after.busy_s - before.busy_s) / took


async def alone(
    config: RunConfig, engine: Engine, prompts: Sequence[tuple[int, ...]], length: float
) -> float:
    """Answers a second with ``CONCURRENT`` requests always under way."""
    tokenizer = load_tokenizer(config.model)
    stop = stop_token_ids(config.model, tokenizer)
    ended = 0
    deadline = float("inf")

    async def ask_again(first: int) -> None:
        nonlocal ended
        index = first
        while time.perf_counter() < deadline:
            params = SamplingParams(
                max_tokens=config.engine.max_tokens, stop_token_ids=stop, seed=index
            )
            await engine.generate(prompts[index % len(prompts)], params, BASE)
            index += CONCURRENT
            ended += 1

    asking = [asyncio.create_task(ask_again(first)) for first in range(CONCURRENT)]
    await asyncio.sleep(WARM_UP_S)
    before, started = ended, time.perf_counter()
    await asyncio.sleep(length)
    speed = (ended - before) / (time.perf_counter() - started)
    deadline = 0.0
    await asyncio.gather(*asking)
    return speed


def main() -> None:
    parser = argparse.ArgumentParser(description="Share of an engine's speed that reaches games.")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--experiment", default="simpletak_mirror")
    arguments = parser.parse_args()
    config = compose([f"+experiment={arguments.experiment}"]).config
    graph = build_graph(config, detect())
    hardware = resolve_hardware(config.hardware, detect(), config.engine.num_engines)
    engine = make_engine(config, device=hardware.device, threads=hardware.threads)
    prompts = positions(load_tokenizer(config.model), 2048)
    figures: dict[str, list[float]] = {"alone": [], "games": [], "working": []}
    with tempfile.TemporaryDirectory() as folder, ray_started(hardware, graph):
        made: Any = ray.remote(EngineActor)
        actor = made.options(num_cpus=1, max_concurrency=1000).remote(
            config, hardware, "engine-0", folder
        )
        for repeat in range(arguments.repeats):
            figures["alone"].append(asyncio.run(alone(config, engine, prompts, arguments.seconds)))
            games, working = asyncio.run(
                in_games(config, actor, f"client-{repeat}", arguments.seconds)
            )
            figures["games"].append(games)
            figures["working"].append(working)
        asyncio.run(engine.close())
    results = {name: spread(values, "per_s") for name, values in figures.items()}
    for name in ("alone", "games"):
        print(f"{name:8} {shown(results[name], 'per_s', digits=0)} answers/s")
    share = results["games"]["median_per_s"] / results["alone"]["median_per_s"]
    print(f"share of the engine's own speed: {share:.3f}; engine working {figures['working']}")
    record(
        "collector",
        {
            "experiment": arguments.experiment,
            "concurrent_games": CONCURRENT,
            "results": results,
            "share": share,
        },
    )
    if share < FLOOR:
        raise SystemExit(f"less than {FLOOR:.0%} of the engine's speed reaches the games")


if __name__ == "__main__":
    main()
