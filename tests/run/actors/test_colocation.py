"""The order of calls in a learner's turn, and its end when the update fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.harness.in_process import InProcessActor

from rlforge.errors import RunError
from rlforge.run.actors.cluster import RunActors
from rlforge.run.actors.colocation import update_in_turn
from rlforge.samples import UpdateResult

SPAN = (100.0, 130.0)
UPDATED = UpdateResult(version=1, samples=8, tokens=9, metrics={"loss": 0.5})


class Noting:
    """Notes each call; ``update`` raises ``error``."""

    def __init__(self, name: str, diary: list[str], error: Exception | None = None) -> None:
        self.name, self.diary, self.error = name, diary, error

    def __getattr__(self, method: str) -> Any:
        async def called(*arguments: Any) -> Any:
            self.diary.append(" ".join([self.name, method, *arguments]))
            if method == "update" and self.error is not None:
                raise self.error
            return (UPDATED, SPAN) if method == "update" else None

        return called


def make_actors(diary: list[str], error: Exception | None = None) -> RunActors:
    names = ("engine-0", "engine-1", "collector-0", "learner")
    return RunActors({name: InProcessActor(Noting(name, diary, error)) for name in names})


async def update_of(actors: RunActors) -> Any:
    async def call(name: str, method: str) -> None:
        await getattr(actors.named[name], method).remote()

    done = await update_in_turn(actors, call, "batch")
    await asyncio.sleep(0)  # for the calls that nobody waits for
    return done


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
