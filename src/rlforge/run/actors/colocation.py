"""Engines and learner on one card, one after the other (``hardware.alternate``).

    play     engines awake, learner resting
    learn    engines drain ─▶ sleep, learner wakes ─▶ update ─▶ rest, engines wake

Requests of games wait in the sleeping engines, and their time limits are paused.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rlforge.errors import RlforgeError
from rlforge.run.actors.cluster import RunActors
from rlforge.samples import UpdateResult
from rlforge.system.utilisation import Span


async def update_in_turn(
    actors: RunActors, call: Callable[[str, str], Awaitable[Any]], *update: Any
) -> tuple[UpdateResult, Span]:
    """Let the learner make an update while every engine sleeps; as ``LearnerActor.update``.

    The metric ``seconds_switch`` is the time around it: engines drain and sleep, weights move,
    engines wake.

    Args:
        call: Calls a method of an actor, both by name; again when its process died meanwhile.
        update: Arguments of ``LearnerActor.update``.
    """

    async def all_engines(method: str) -> None:
        await asyncio.gather(*(call(name, method) for name in actors.replicas("engine")))

    started = time.time()
    for collector in actors.collectors:
        collector.engines_sleep.remote()
    await actors.learner.begin_turn()
    try:
        await all_engines("sleep")
        result, span = await actors.learner.update(*update)
    except RlforgeError:
        # A continuous run goes on from the previous version, and needs its engines. Any other error
        # ends the run.
        await actors.learner.end_turn()
        await all_engines("wake")
        raise
    await actors.learner.end_turn()
    await all_engines("wake")
    for collector in actors.collectors:
        collector.engines_wake.remote()
    switch = time.time() - started - (span[1] - span[0])
    metrics = {**result.metrics, "seconds_switch": switch}
    return dataclasses.replace(result, metrics=metrics), span
