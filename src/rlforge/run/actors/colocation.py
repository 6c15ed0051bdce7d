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

CallActor = Callable[[str, str], Awaitable[Any]]
"""Calls a method of an actor, both by name; again when its process died meanwhile."""


async def update_in_turn(
    actors: RunActors, call: CallActor, *update: Any
) -> tuple[UpdateResult, Span]:
    """The learner's update, with every engine asleep until it is over.

    update: arguments of ``LearnerActor.update``.

    The metric ``seconds_switch`` is the time around it: engines drain and sleep, weights move,
    engines wake. After a RlforgeError the engines wake, because a continuous run goes on from the
    previous version; after any other error they stay asleep, and the run ends.
    """
    started = time.time()
    for collector in actors.collectors:
        collector.engines_sleep.remote()
    await actors.learner.begin_turn()
    try:
        await _all_engines(actors, call, "sleep")
        result, span = await actors.learner.update(*update)
    except RlforgeError:
        await actors.learner.end_turn()
        await _all_engines(actors, call, "wake")
        raise
    await actors.learner.end_turn()
    await _all_engines(actors, call, "wake")
    for collector in actors.collectors:
        collector.engines_wake.remote()
    switch = time.time() - started - (span[1] - span[0])
    metrics = {**result.metrics, "seconds_switch": switch}
    return dataclasses.replace(result, metrics=metrics), span


async def _all_engines(actors: RunActors, call: CallActor, method: str) -> None:
    await asyncio.gather(*(call(name, method) for name in actors.replicas("engine")))
