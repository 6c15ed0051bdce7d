"""Observers of a run of games: the sentinel, the exact measure, its objective.

    loop:      draw ─▶ update ─▶ save ─▶ publish          evaluations
    observers:           └ updated  └ saved └ published     └ evaluating, evaluated

An observer is made from the ``RunContext``; ``rlforge.config.plugins.OBSERVERS`` has them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rlforge.config.plugins import OBSERVERS
from rlforge.errors import RunError
from rlforge.record.bottleneck import BottleneckWatch
from rlforge.record.results import ExactResult
from rlforge.run.lifecycle import RunContext
from rlforge.run.policies import Trained
from rlforge.samples import UpdateResult
from rlforge.types import Checkpoint, EvalResult, value

#: Names the observer that fails in the block: an error of another package's ends the run, too.
_named = partial(OBSERVERS.trial, kind=RunError)


@value
class Updated:
    """An update of ``policy``.

    Attributes:
        figures: Figures of buffer, engines and time, as they are recorded.
        first: Whether ``policy`` is the first of the run, or the only one.
    """

    policy: Trained
    result: UpdateResult
    figures: Mapping[str, float]
    first: bool


class Observer:
    """Reacts to events of a run; each method may stay as it is.

    Example:
        >>> class Losses(Observer):
        ...     async def updated(self, update: Updated) -> None:
        ...         print(update.result.metrics["loss"])
    """

    async def updated(self, update: Updated) -> None:
        """The learner has made an update, which is not saved yet."""

    async def saved(self, checkpoint: Checkpoint) -> None:
        """A version is written."""

    async def published(self, checkpoint: Checkpoint) -> None:
        """Engines, pool and buffer have a version."""

    async def evaluating(self, checkpoint: Checkpoint) -> Sequence[ExactResult]:
        """A version that the learner still holds is about to be evaluated; further results."""
        return ()

    def evaluated(self, result: EvalResult | ExactResult) -> None:
        """An evaluation is over, or a version was measured."""

    def ended(self) -> None:
        """The last evaluation is over."""

    def needed(self) -> set[str]:
        """Uids of saved versions that have to stay."""
        return set()

    def state_dict(self) -> dict[str, Any]:
        """State for a resume, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict``; not called where it was empty, or the observer is new."""


class Observers(Observer):
    """Several observers as one, in order, by name."""

    def __init__(self, each: Mapping[str, Observer]) -> None:
        self._each = each

    async def _tell(self, event: str, what: Any) -> None:
        for name, one in self._each.items():
            with _named(name):
                await getattr(one, event)(what)

    def _ask(self, method: str, *what: Any) -> dict[str, Any]:
        answers = dict[str, Any]()
        for name, one in self._each.items():
            with _named(name):
                answers[name] = getattr(one, method)(*what)
        return answers

    async def updated(self, update: Updated) -> None:
        await self._tell("updated", update)

    async def saved(self, checkpoint: Checkpoint) -> None:
        await self._tell("saved", checkpoint)

    async def published(self, checkpoint: Checkpoint) -> None:
        await self._tell("published", checkpoint)

    async def evaluating(self, checkpoint: Checkpoint) -> Sequence[ExactResult]:
        async def found_by(name: str) -> Sequence[ExactResult]:
            with _named(name):
                return await self._each[name].evaluating(checkpoint)

        found = await asyncio.gather(*map(found_by, self._each))
        results = [result for some in found for result in some]
        for result in results:
            self.evaluated(result)
        return results

    def evaluated(self, result: EvalResult | ExactResult) -> None:
        self._ask("evaluated", result)

    def ended(self) -> None:
        self._ask("ended")

    def needed(self) -> set[str]:
        return set().union(*self._ask("needed").values())

    def state_dict(self) -> dict[str, Any]:
        state = {name: own for name, own in self._ask("state_dict").items() if own}
        for name, own in state.items():
            with _named(name):
                # A state that cannot be saved as JSON fails here, with the name of its observer.
                json.dumps(own)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, one in self._each.items():
            # An observer that was installed after the state was saved has none in it.
            if name in state:
                with _named(name):
                    one.load_state_dict(state[name])


async def stop_without_signal(context: RunContext[Any]) -> None:
    """Raise RunError where ``on_no_signal=stop`` and it is plain that nothing is to learn."""
    # Only such a run waits for the tracker, whose sinks may be slow.
    stops = context.config.on_no_signal == "stop"
    if stops and (final := await context.actors.tracker.final_signals.remote()):
        lines = ". ".join(signal.line for signal in final)
        raise RunError(f"nothing can be learned, and on_no_signal=stop: {lines}")


class Recorder(Observer):
    """Hands what happens to the tracker, and names the bottleneck in a line."""

    def __init__(self, context: RunContext[Any]) -> None:
        self._tracker, self._note = context.actors.tracker, context.note
        self._bottleneck = BottleneckWatch()
        self._context = context

    async def updated(self, update: Updated) -> None:
        of = "" if update.first else update.policy.name
        self._tracker.log_learner.remote(update.result, update.figures, policy=of)
        if update.first and (found := self._bottleneck.updated(update.figures)) is not None:
            self._note(f"update {update.result.version}, bottleneck: {found}")

        await stop_without_signal(self._context)

    def evaluated(self, result: EvalResult | ExactResult) -> None:
        add = self._tracker.add_eval if isinstance(result, EvalResult) else self._tracker.add_exact
        add.remote(result)


def observers_of(context: RunContext[Any]) -> Observers:
    """The observers of a run, by name."""
    made = dict[str, Observer]()
    for name in OBSERVERS.names():
        with _named(name):
            made[name] = OBSERVERS.find(name)(context)
    return Observers(made)
