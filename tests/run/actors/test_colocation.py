"""The order of calls in a learner's turn, and its end when the update fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlforge.errors import RunError
from rlforge.run.actors.cluster import RunActors
from rlforge.run.actors.colocation import update_in_turn
from rlforge.samples import UpdateResult

SPAN = (100.0, 130.0)
UPDATED = UpdateResult(version=1, samples=8, tokens=9, metrics={"loss": 0.5})


class Actor:
    """An actor handle that records each call; ``update`` raises ``error``."""

    def __init__(self, name: str, diary: list[str], error: Exception | None = None) -> None:
        self.name, self.diary, self.error = name, diary, error

    def __getattr__(self, method: str) -> Any:
        return Method(self, method)


class Method:
    def __init__(self, actor: Actor, name: str) -> None:
        self._actor, self._name = actor, name

    def remote(self, *arguments: Any) -> Any:
        actor = self._actor
        actor.diary.append(" ".join([actor.name, self._name, *arguments]))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if actor.error is not None and self._name == "update":
            answer.set_exception(actor.error)
        elif self._name == "update":
            answer.set_result((UPDATED, SPAN))
        else:
            answer.set_result(None)
        return answer


def make_actors(diary: list[str], error: Exception | None = None) -> RunActors:
    names = ("engine-0", "engine-1", "collector-0")
    actors = {name: Actor(name, diary) for name in names}
    return RunActors({**actors, "learner": Actor("learner", diary, error)})


async def update_of(actors: RunActors) -> Any:
    async def call(name: str, method: str) -> None:
        await getattr(actors.named[name], method).remote()

    return await update_in_turn(actors, call, "batch")


async def test_engines_sleep_from_before_the_update_until_after_it() -> None:
    diary: list[str] = []
    actors = make_actors(diary)
    result, span = await update_of(actors)
    assert diary == [
        "collector-0 engines_sleep",
        "learner begin_turn",
        "engine-0 sleep",
        "engine-1 sleep",
        "learner update batch",
        "learner end_turn",
        "engine-0 wake",
        "engine-1 wake",
        "collector-0 engines_wake",
    ]
    assert span == SPAN
    assert result.metrics.keys() == {"loss", "seconds_switch"}
    assert result.version == 1


async def test_engines_stay_asleep_after_an_update_that_failed() -> None:
    diary: list[str] = []
    actors = make_actors(diary, error=RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        await update_of(actors)
    assert not any("wake" in line for line in diary)


async def test_engines_wake_after_an_update_that_a_run_can_recover_from() -> None:
    diary: list[str] = []
    actors = make_actors(diary, error=RunError("the loss is not finite"))
    with pytest.raises(RunError, match="not finite"):
        await update_of(actors)
    assert diary[-3:] == ["learner end_turn", "engine-0 wake", "engine-1 wake"]
