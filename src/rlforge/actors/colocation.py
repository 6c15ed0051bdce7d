"""Engines and learner on one card, one after the other (``hardware.alternate``).

    play     engines awake, learner resting
    learn    engines drain ─▶ sleep, learner wakes ─▶ update ─▶ rest, engines wake

What games ask for meanwhile waits in the sleeping engines, and their clocks stand still.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from rlforge.actors.cluster import RunActors
from rlforge.actors.process import turn_file
from rlforge.system.utilisation import Span
from rlforge.types import UpdateResult

Surviving = Callable[..., Awaitable[Any]]
"""Calls an actor's method by the actor's name, again when its process died meanwhile."""


async def update_in_turn(
    cast: RunActors, surviving: Surviving, run_dir: Path, batch: Any
) -> tuple[UpdateResult, Span]:
    """The learner's update, with every engine asleep until it is over.

    ``seconds_switch`` among the metrics is the time around it: engines drain and sleep, weights
    move, engines wake. A failed update wakes nobody: it ends the run, and with it every process.
    """
    started = time.time()
    for collector in cast.collectors:
        collector.engines_sleep.remote()
    with _learners_turn(run_dir):
        await _engines(cast, surviving, "sleep")
        result, span = await cast.learner.update(batch)
    await _engines(cast, surviving, "wake")
    for collector in cast.collectors:
        collector.engines_wake.remote()
    switch = time.time() - started - (span[1] - span[0])
    metrics = {**result.metrics, "seconds_switch": switch}
    return dataclasses.replace(result, metrics=metrics), span


@contextlib.contextmanager
def _learners_turn(run_dir: Path) -> Iterator[None]:
    file = turn_file(run_dir)
    file.touch()
    try:
        yield
    finally:
        file.unlink()


async def _engines(cast: RunActors, surviving: Surviving, method: str) -> None:
    await asyncio.gather(
        *(
            surviving(f"engine-{index}", getattr(engine, method))
            for index, engine in enumerate(cast.engines)
        )
    )
