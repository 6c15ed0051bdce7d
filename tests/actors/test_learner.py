"""The learner's ranks seen as one: all are called, rank 0 answers, a failure is everybody's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import ray.exceptions

from rlforge.actors import learner as learning
from rlforge.actors.learner import LearnerGroup


class Rank:
    """An actor handle whose only method is ``update``."""

    def __init__(self, update: Callable[[Any], Any]) -> None:
        self._update = update

    @property
    def update(self) -> Rank:
        return self

    async def remote(self, batch: Any) -> Any:
        return await self._update(batch)


def failing(error: Exception, after: float = 0.0) -> Rank:
    async def update(batch: Any) -> Any:
        await asyncio.sleep(after)
        raise error

    return Rank(update)


def lost_connection() -> Exception:
    return ray.exceptions.RayTaskError("update", "gloo: closed by peer", RuntimeError("closed"))


async def waiting(batch: Any) -> Any:
    """As a rank does in a collective that another one never enters."""
    await asyncio.sleep(3600)


async def test_every_rank_gets_the_batch_and_the_first_answers() -> None:
    seen = []

    def rank(number: int) -> Rank:
        async def update(batch: Any) -> Any:
            seen.append((number, batch))
            return number

        return Rank(update)

    assert await LearnerGroup([rank(0), rank(1), rank(2)]).update("batch") == 0
    assert seen == [(0, "batch"), (1, "batch"), (2, "batch")]


async def test_a_failure_ends_the_call_though_the_other_rank_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learning, "DEATH_TOLD_S", 0.01)
    error = ray.exceptions.RayTaskError("update", "no memory", MemoryError("no memory"))
    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        await LearnerGroup([Rank(waiting), failing(error)]).update("batch")
    assert caught.value is error


@pytest.mark.parametrize("deaf", [0, 1])
async def test_a_death_is_the_cause_of_a_lost_connection(deaf: int) -> None:
    death = ray.exceptions.ActorDiedError()
    ranks = [failing(death, after=0.05), failing(death, after=0.05)]
    ranks[deaf] = failing(lost_connection())
    with pytest.raises(ray.exceptions.ActorDiedError) as caught:
        await LearnerGroup(ranks).update("batch")
    assert caught.value is death
