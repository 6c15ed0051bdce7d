"""What the processes around the engines cost: CPU time a turn of each, in real games.

    python benchmarks/control_plane.py [--seconds S] [--engines 1 8 32] [--collectors 1 2]
                                       [--prompts short long] [--games N]

Tracker, pool, buffer and collectors are those of a run. The engines answer by the clock: each
request after ``latency_s``, with a legal move, so that they cost next to nothing and games go
on as with a fast device. A learner that takes no time draws every batch and publishes a version for
it. ``short``: the tiny model's prompts of SimpleTak, answers of one token. ``long``: SmolLM2's
tokenizer on TextArena's own texts of TicTacToe, 250 tokens, and answers of 200.

``us_turn``: CPU time of a process for one turn, in microseconds, over all its threads. Its inverse
is how many turns a second the process can sustain on a core of its own. ``turns_s``: turns a second
in this run, in which all processes share the cores of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import random
import re
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from common import record

from rlforge.config.compose import compose
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.engines.base import Caller, EngineStats, Question
from rlforge.models.load import load_tokenizer, resolve_model
from rlforge.preflight.plan import RunPlan, make_plan
from rlforge.record.files import create_run
from rlforge.run.actors.cluster import RunActors, start_actors
from rlforge.run.actors.engine import EngineActor
from rlforge.run.actors.session import ray_started
from rlforge.system.hardware import detect, prepare_ray
from rlforge.system.utilisation import Span
from rlforge.types import Checkpoint, Completion, PolicyRef

WARM_UP_S = 5.0
LONG_ANSWER = 200

SETTINGS = {
    "short": ["+experiment=simpletak_mirror"],
    "long": [
        "+experiment=smollm2_tictactoe",
        "model.prompt_template=qwen3-zs",
        "model.action_extraction=boxed",
        "engine.max_model_len=1024",
        "engine.max_tokens=256",
        "learner.initial_adapter=null",
        "hardware.alternate=false",
    ],
}


class ClockEngine:
    """A ``LocalEngine`` without a model."""

    def __init__(self, config: PolicyConfig, latency_s: float) -> None:
        self._tokenizer = load_tokenizer(config.model)
        self._latency_s = latency_s
        self._long = config.model.prompt_template == "qwen3-zs"
        self._answered = 0
        self._answers: dict[str, Completion] = {}

    def ask(self, questions: Iterable[Question]) -> None:
        asked = list(questions)
        if asked:
            loop = asyncio.get_running_loop()
            loop.call_later(self._latency_s, partial(self._answer, asked))

    def _answer(self, asked: list[Question]) -> None:
        for prompt, _, policy, caller in asked:
            if caller.gone:
                continue
            self._answered += 1
            text = self._move(self._tokenizer.decode(prompt))
            if text not in self._answers:
                self._answers[text] = self._completion(text)
            asked_of = {"policy_uid": policy.uid, "policy_version": policy.version}
            answer = dataclasses.replace(self._answers[text], prompt_token_ids=prompt, **asked_of)
            caller.on_end(answer, None)

    def _move(self, prompt: str) -> str:
        if self._long:
            offered = prompt.rpartition("Available Moves")[2]
            move = random.choice(re.findall(r"\[\d\]", offered))
            return f"\\boxed{{{move}}}"
        cells = "".join(re.findall(r"\b[a-d]([^ ]{4})\b", prompt))
        return f"[{random.choice([at for at, cell in enumerate(cells) if cell == '_'])}]"

    def _completion(self, text: str) -> Completion:
        ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
        if self._long:
            ids = (self._tokenizer.eos_token_id,) * (LONG_ANSWER - len(ids)) + ids
        return Completion(text=text, token_ids=ids, logprobs=(-1.0,) * len(ids))

    def forget(self, callers: Iterable[Caller]) -> None:
        for caller in callers:
            caller.gone = True

    async def load(self, policy: PolicyRef) -> None:
        pass

    def stats(self) -> EngineStats:
        return EngineStats(
            queued=0,
            running=0,
            requests=self._answered,
            prompt_tokens=0,
            cached_tokens=0,
            generated_tokens=0,
            busy_s=0.0,
            resident=(),
        )

    def take_busy_spans(self) -> list[Span]:
        return []

    async def close(self) -> None:
        pass


class ClockActor(EngineActor):
    """The engine actor of a run with such an engine."""

    latency_s = 0.1

    def _load_model(self) -> None:
        self._engine = ClockEngine(self._config, self.latency_s)
        self._loaded.set()


class SlowClockActor(ClockActor):
    """Answers that take as long as some hundred tokens of a large model."""

    latency_s = 2.0


def _pid(actor: object) -> int:
    return os.getpid()


async def learn(actors: RunActors, versions: list[int]) -> None:
    """Draw batches and publish a version for each, like a learner that takes no time."""
    version = 0
    while True:
        _, drawn = actors.buffer.next_batch.options(num_returns=2).remote(version, version + 1)
        if not await drawn:
            return
        version += 1
        versions.append(version)
        checkpoint = Checkpoint(uid=f"step-{version}", version=version, path=None)
        for collector in actors.collectors:
            collector.use_version.remote(checkpoint.policy())
        await actors.pool.add_checkpoint.remote(checkpoint)
        await actors.buffer.set_version.remote(version)


async def measure(plan: RunPlan[RunConfig], folder: Path, seconds: float) -> dict[str, Any]:
    """CPU time a turn of each process, and turns a second."""
    create_run(folder)
    actors = await start_actors(plan, folder)
    names = [name for name in actors.named if not name.startswith("engine")]
    pids = await asyncio.gather(*(actors.named[name].__ray_call__.remote(_pid) for name in names))
    processes = dict(zip(names, map(psutil.Process, pids), strict=True))
    await actors.pool.add_checkpoint.remote(Checkpoint(uid="step-0", version=0, path=None))
    versions: list[int] = []
    tasks = [asyncio.create_task(learn(actors, versions))]
    tasks += [asyncio.ensure_future(each.train.remote()) for each in actors.collectors]

    async def look() -> tuple[float, int, dict[str, float]]:
        reports = await asyncio.gather(*(each.report.remote() for each in actors.engines))
        used = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
        return time.perf_counter(), sum(each.stats.requests for each in reports), used

    await asyncio.sleep(WARM_UP_S)
    began, turns, used = await look()
    updates = len(versions)
    await asyncio.sleep(seconds)
    ended, more, then = await look()
    await actors.buffer.stop.remote()
    await asyncio.gather(*tasks)
    played = more - turns
    return {
        "turns_s": played / (ended - began),
        "updates": len(versions) - updates,
        "us_turn": {name: 1e6 * (then[name] - used[name]) / played for name in names},
    }


def run(
    prompts: str, engines: int, collectors: int, games: int, clock: type[ClockActor], seconds: float
) -> dict[str, Any]:
    """One row: the settings, and what ``measure`` finds."""
    settings = [
        *(f"engine.num_engines={engines}", f"collector.num_collectors={collectors}"),
        *(f"collector.num_train_workers={games // collectors}", "tracker.report=false"),
    ]
    config = compose([*SETTINGS[prompts], *settings]).config
    resolve_model(config.model)
    plan = make_plan(config, detect())
    idle = {"actor": f"control_plane:{clock.__name__}", "num_cpus": 0.01, "loads_alone": False}
    nodes = tuple(
        dataclasses.replace(node, **idle) if node.name == "engine" else node
        for node in plan.nodes
        if node.name != "learner"
    )
    plan = dataclasses.replace(plan, nodes=nodes)
    prepare_ray(plan.hardware)
    with tempfile.TemporaryDirectory() as folder, ray_started(plan.hardware, plan.num_cpus):
        found = asyncio.run(measure(plan, Path(folder), seconds))
    row = {"prompts": prompts, "engines": engines, "collectors": collectors, "games": games}
    return {**row, "latency_s": clock.latency_s, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--collectors", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompts", nargs="+", default=["short", "long"])
    parser.add_argument("--games", type=int, default=512)
    given = parser.parse_args()
    rows = []
    for prompts in given.prompts:
        one, most = given.collectors[0], given.engines[-1]
        plan: list[tuple[int, int, type[ClockActor]]] = [
            *((engines, one, ClockActor) for engines in given.engines),
            *((most, number, ClockActor) for number in given.collectors[1:]),
            (most, one, SlowClockActor),
        ]
        for engines, collectors, clock in plan:
            row = run(prompts, engines, collectors, given.games, clock, given.seconds)
            rows.append(row)
            shares = ", ".join(f"{name} {us:.0f}" for name, us in row["us_turn"].items())
            print(
                f"{prompts}, {engines} engines, {collectors} collectors, {row['latency_s']:g} s: "
                f"{row['turns_s']:.0f} turns/s; CPU µs a turn: {shares}",
                flush=True,
            )
    record("control_plane", {"rows": rows})


if __name__ == "__main__":
    main()
