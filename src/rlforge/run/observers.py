"""Observers of a run of games: the sentinel, the exact measure, its objective.

    loop:      draw ─▶ update ─▶ save ─▶ publish          evaluations
    observers:           └ updated  └ saved └ published     └ evaluating, evaluated

An observer is made from the ``RunContext``; ``rlforge.config.plugins.OBSERVERS`` has them, those of
other packages included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rlforge.config.plugins import OBSERVERS
from rlforge.record.bottleneck import BottleneckWatch
from rlforge.record.results import ExactResult
from rlforge.run.lifecycle import RunContext
from rlforge.run.policies import Trained
from rlforge.samples import UpdateResult
from rlforge.types import Checkpoint, EvalResult, value


@value
class Updated:
    """An update of ``policy``; figures: of buffer, engines and time, as they are recorded.

    first: whether ``policy`` is the first of the run, or the only one.
    """

    policy: Trained
    result: UpdateResult
    figures: Mapping[str, float]
    first: bool


class Observer:
    """Reacts to events of a run; each method may stay as it is.

    name: key of its state in that of the run; empty where it has none.

    Example:
        >>> class Losses(Observer):
        ...     async def updated(self, update: Updated) -> None:
        ...         print(update.result.metrics["loss"])
    """

    name = ""

    async def updated(self, update: Updated) -> None:
        """The learner has made an update, which is not saved yet."""

    async def saved(self, checkpoint: Checkpoint) -> None:
        """A version is written."""

    async def published(self, checkpoint: Checkpoint) -> None:
        """Engines, pool and buffer have a version."""

    async def evaluating(self, checkpoint: Checkpoint) -> Sequence[ExactResult]:
        """A version is about to be evaluated, which the learner still holds; further results."""
        return ()

    def evaluated(self, result: EvalResult | ExactResult) -> None:
        """An evaluation is over, or a version was measured."""

    def ended(self) -> None:
        """The last evaluation is over."""

    def needed(self) -> set[str]:
        """Uids of saved versions that have to stay."""
        return set()

    def state_dict(self) -> dict[str, Any]:
        """State of the observer for a resume, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict``."""


class Observers(Observer):
    """Several observers as one, in order."""

    def __init__(self, each: Sequence[Observer]) -> None:
        self._each = each

    async def updated(self, update: Updated) -> None:
        for one in self._each:
            await one.updated(update)

    async def saved(self, checkpoint: Checkpoint) -> None:
        for one in self._each:
            await one.saved(checkpoint)

    async def published(self, checkpoint: Checkpoint) -> None:
        for one in self._each:
            await one.published(checkpoint)

    async def evaluating(self, checkpoint: Checkpoint) -> Sequence[ExactResult]:
        found = await asyncio.gather(*(one.evaluating(checkpoint) for one in self._each))
        results = [result for some in found for result in some]
        for result in results:
            self.evaluated(result)
        return results

    def evaluated(self, result: EvalResult | ExactResult) -> None:
        for one in self._each:
            one.evaluated(result)

    def ended(self) -> None:
        for one in self._each:
            one.ended()

    def needed(self) -> set[str]:
        return set().union(*(one.needed() for one in self._each))

    def state_dict(self) -> dict[str, Any]:
        return {one.name: one.state_dict() for one in self._each if one.name}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for one in self._each:
            if one.name:
                one.load_state_dict(state[one.name])


class Recorder(Observer):
    """Hands what happens to the tracker, and names the bottleneck in a line."""

    def __init__(self, context: RunContext[Any]) -> None:
        self._tracker, self._note = context.actors.tracker, context.note
        self._bottleneck = BottleneckWatch()

    async def updated(self, update: Updated) -> None:
        of = "" if update.first else update.policy.name
        self._tracker.log_learner.remote(update.result, update.figures, policy=of)
        if update.first and (found := self._bottleneck.updated(update.figures)) is not None:
            self._note(f"update {update.result.version}, bottleneck: {found}")

    def evaluated(self, result: EvalResult | ExactResult) -> None:
        add = self._tracker.add_eval if isinstance(result, EvalResult) else self._tracker.add_exact
        add.remote(result)


def observers_of(context: RunContext[Any]) -> Observers:
    """The recorder, and the observers that the run's configuration asks for."""
    made = [OBSERVERS.find(name)(context) for name in OBSERVERS.names()]
    return Observers([Recorder(context), *(one for one in made if one is not None)])
