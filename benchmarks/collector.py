"""How much of an engine's speed reaches the games: 256 of them, one collector, one engine actor.

    python benchmarks/collector.py [--seconds S] [--repeats N] [--experiment NAME] [--layers L …]
                                   [--rates R …]

The engine computes the tiny model, whose answers have one token, on one of these cores:

``layers``: with its two layers, and the same player made slower: layers that hand on what they get
are laid on top, so that its games are the same and each answer costs more. It shares the machine
with the games that it answers.
``rates``: the two layers, and each step lasts as long as on a device that gives R answers a second;
meanwhile the core is free, as with a GPU.

``games``: answers a second in real games, asked by a collector in this process and answered by an
engine actor in another, as in a run, without learner, buffer and pool. ``working``: share of the
time in which that engine computed. ``alone``: the engine's own answers a second to what these games
asked, in this process, with 256 requests always waiting. Both take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from common import record, shown, spread
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rlforge.config.compose import compose
from rlforge.config.games import CollectorConfig
from rlforge.config.schema import HardwareConfig, RunConfig
from rlforge.engines.base import Answer, Engine
from rlforge.engines.registry import make_engine
from rlforge.models.load import load_tokenizer, resolve_model, stop_token_ids
from rlforge.preflight.plan import make_plan
from rlforge.rollout.collector import Collector
from rlforge.rollout.lineup import train_envs
from rlforge.rollout.policies import SeatPolicies
from rlforge.rollout.schedule import line_up
from rlforge.run.actors.engine import EngineActor
from rlforge.run.actors.engine_client import RemoteEngine
from rlforge.run.actors.folder import RunFolder
from rlforge.run.actors.session import ray_started
from rlforge.system.hardware import detect, prepare_ray, resolve_hardware
from rlforge.types import GameRecord, GameSpec, PolicyRef, SamplingParams

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
        #: What was asked in games that ended.
        self.prompts: list[tuple[int, ...]] = []

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

    async def deliver(self, records: Sequence[GameRecord]) -> None:
        self.failed += sum(game.error is not None for game in records)
        turns = (turn for game in records for turn in game.turns)
        self.prompts += (turn.completion.prompt_token_ids for turn in turns)


async def in_games(
    config: RunConfig, actor: Any, client: str, length: float
) -> tuple[float, float, list[tuple[int, ...]]]:
    """Answers a second, the share of ``length`` seconds in which the engine worked, the prompts."""
    tokenizer = load_tokenizer(config.model)
    remote = RemoteEngine([actor], client, timeout_s=60.0, retries=0)
    answers = SeatPolicies(config, tokenizer, remote, stop_token_ids(config.model, tokenizer))
    games = EndlessGames(config)
    collector = Collector(CollectorConfig(num_train_workers=CONCURRENT), games, answers.for_game)
    playing = asyncio.create_task(collector.train())

    async def look() -> tuple[int, float]:
        stats = (await actor.report.remote()).stats
        return stats.requests, stats.busy_s

    answered, worked, took = await between_steps(look, length)
    games.stopped = True
    await playing
    assert games.failed == 0
    return answered / took, worked / took, games.prompts


async def between_steps(
    look: Callable[[], Awaitable[tuple[int, float]]], length: float
) -> tuple[int, float, float]:
    """What ``look`` counts (answers, and another thing) in some ``length`` seconds, and how many.

    Answers come by the step, hundreds at once: from the end of one to the end of another.
    """

    async def next_step() -> tuple[int, float, float]:
        known, _ = await look()
        while True:
            answers, other = await look()
            if answers > known:
                return answers, other, time.perf_counter()
            await asyncio.sleep(0.01)

    await asyncio.sleep(WARM_UP_S)
    first = await next_step()
    await asyncio.sleep(length)
    answers, other, ended = await next_step()
    return answers - first[0], other - first[1], ended - first[2]


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

    async def look() -> tuple[int, float]:
        return ended, 0.0

    answered, _, took = await between_steps(look, length)
    deadline = 0.0
    await asyncio.gather(*asking)
    return answered / took


def deepen(source: str, layers: int, folder: Path) -> None:
    """Save the Llama of ``source`` with ``layers`` layers; those added leave its answers alone."""
    shallow = AutoModelForCausalLM.from_pretrained(source)
    depth = shallow.config.num_hidden_layers
    deep = type(shallow)(AutoConfig.from_pretrained(source, num_hidden_layers=layers))
    deep.load_state_dict(shallow.state_dict(), strict=False)
    with torch.no_grad():
        for layer in deep.model.layers[depth:]:
            # What a layer adds to its input comes out of these two.
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    deep.generation_config = shallow.generation_config  # where an answer ends
    deep.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)


def pace(engine: Any, rate: float | None) -> None:
    """Let steps of ``engine`` last as if it gave ``rate`` answers a second; None: as they do."""
    if rate is None:
        return
    core, step = engine._core, engine._core.step

    def paced() -> list[Answer]:
        started = time.perf_counter()
        answers: list[Answer] = step()
        time.sleep(max(0.0, started + len(answers) / rate - time.perf_counter()))
        return answers

    core.step = paced


class PacedActor(EngineActor):
    """The engine actor of a run, at a pace."""

    def __init__(
        self,
        config: RunConfig,
        hardware: HardwareConfig,
        name: str,
        folder: RunFolder,
        rate: float | None,
    ) -> None:
        super().__init__(config, hardware, name, folder)
        pace(self._engine, rate)


def measure(
    config: RunConfig, seconds: float, repeats: int, rate: float | None = None
) -> dict[str, Any]:
    """``alone``, ``games`` and ``working``, each of ``repeats`` by turns, and their ``share``."""
    graph = make_plan(config, detect())
    hardware = resolve_hardware(config.hardware, detect(), config.engine.num_engines)
    engine = make_engine(config, device=hardware.device, threads=hardware.threads)
    pace(engine, rate)
    figures: dict[str, list[float]] = {"alone": [], "games": [], "working": []}
    prepare_ray(hardware)
    with tempfile.TemporaryDirectory() as folder, ray_started(hardware, graph.num_cpus):
        made: Any = ray.remote(PacedActor)
        actor = made.options(num_cpus=1, max_concurrency=1000).remote(
            config, hardware, "engine-0", RunFolder(run_dir=folder), rate
        )
        for repeat in range(repeats):
            client = f"client-{repeat}"
            games, working, prompts = asyncio.run(in_games(config, actor, client, seconds))
            figures["games"].append(games)
            figures["working"].append(working)
            figures["alone"].append(asyncio.run(alone(config, engine, prompts, seconds)))
        asyncio.run(engine.close())
    row: dict[str, Any] = {name: spread(values, "per_s") for name, values in figures.items()}
    row["share"] = row["games"]["median_per_s"] / row["alone"]["median_per_s"]
    return row


def tell(engine: str, row: dict[str, Any]) -> None:
    print(
        f"{engine}: alone {shown(row['alone'], 'per_s', digits=0)} answers/s, "
        f"in games {shown(row['games'], 'per_s', digits=0)}, share {row['share']:.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Share of an engine's speed that reaches games.")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--experiment", default="simpletak_mirror")
    parser.add_argument("--layers", type=int, nargs="*", default=[2, 8, 32, 128])
    parser.add_argument("--rates", type=float, nargs="*", default=[250, 500, 1000, 2000, 4000])
    arguments = parser.parse_args()
    lengths = arguments.seconds, arguments.repeats
    by_layers: dict[str, dict[str, Any]] = {}
    by_rate: dict[str, dict[str, Any]] = {}
    for layers in arguments.layers:
        config = compose([f"+experiment={arguments.experiment}"]).config
        with tempfile.TemporaryDirectory() as folder:
            deepen(resolve_model(config.model), layers, Path(folder))
            config.model.kind, config.model.name = "hf", folder
            row = by_layers[str(layers)] = measure(config, *lengths)
        tell(f"{layers} layers", row)
    for rate in arguments.rates:
        config = compose([f"+experiment={arguments.experiment}"]).config
        row = by_rate[f"{rate:g}"] = measure(config, *lengths, rate)
        tell(f"a device of {rate:g} answers/s", row)
    record(
        "collector",
        {
            "experiment": arguments.experiment,
            "concurrent_games": CONCURRENT,
            "layers": by_layers,
            "rates": by_rate,
        },
    )
    rows = [*by_layers.values(), *by_rate.values()]
    if not any(row["share"] >= FLOOR for row in rows):
        raise SystemExit(f"less than {FLOOR:.0%} of every engine's speed reaches the games")


if __name__ == "__main__":
    main()
