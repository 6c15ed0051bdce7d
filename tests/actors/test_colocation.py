"""The order of calls in a learner's turn, and its end when the update fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlforge.actors.cluster import RunActors
from rlforge.actors.colocation import CallActor, update_in_turn
from rlforge.actors.process import turn_file
from rlforge.errors import RunError
from rlforge.types import UpdateResult

SPAN = (100.0, 130.0)
UPDATED = UpdateResult(version=1, samples=8, tokens=9, metrics={"loss": 0.5})


class Actor:
    """An actor handle that records each call, with the turn (learner or engines) it came in."""

    def __init__(
        self, name: str, diary: list[str], run_dir: Path, error: Exception | None = None
    ) -> None:
        self.name, self.diary, self.run_dir, self.error = name, diary, run_dir, error

    def __getattr__(self, method: str) -> Any:
        return Method(self, method)


class Method:
    def __init__(self, actor: Actor, name: str) -> None:
        self._actor, self._name = actor, name

    def remote(self, *arguments: Any) -> Any:
        actor = self._actor
        turn = "learner" if turn_file(actor.run_dir).exists() else "engines"
        actor.diary.append(" ".join([f"{turn}:", actor.name, self._name, *arguments]))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if actor.error is not None:
            answer.set_exception(actor.error)
        elif self._name == "update":
            answer.set_result((UPDATED, SPAN))
        else:
            answer.set_result(None)
        return answer


def make_actors(diary: list[str], run_dir: Path, error: Exception | None = None) -> RunActors:
    names = ("engine-0", "engine-1", "collector-0")
    actors = {name: Actor(name, diary, run_dir) for name in names}
    return RunActors({**actors, "learner": Actor("learner", diary, run_dir, error)})


def calling(actors: RunActors) -> CallActor:
    async def call(name: str, method: str) -> None:
        await getattr(actors.named[name], method).remote()

    return call


async def test_engines_sleep_from_before_the_update_until_after_it(tmp_path: Path) -> None:
    diary: list[str] = []
    actors = make_actors(diary, tmp_path)
    result, span = await update_in_turn(actors, calling(actors), tmp_path, "batch")
    assert diary == [
        "engines: collector-0 engines_sleep",
        "learner: engine-0 sleep",
        "learner: engine-1 sleep",
        "learner: learner update batch",
        "engines: engine-0 wake",
        "engines: engine-1 wake",
        "engines: collector-0 engines_wake",
    ]
    assert span == SPAN
    assert result.metrics.keys() == {"loss", "seconds_switch"}
    assert result.version == 1


async def test_a_failed_update_is_raised_and_ends_the_turn(tmp_path: Path) -> None:
    diary: list[str] = []
    actors = make_actors(diary, tmp_path, error=RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        await update_in_turn(actors, calling(actors), tmp_path, "batch")
    assert not any("wake" in line for line in diary)
    assert not turn_file(tmp_path).exists()


async def test_engines_wake_after_an_update_that_a_run_can_recover_from(tmp_path: Path) -> None:
    diary: list[str] = []
    actors = make_actors(diary, tmp_path, error=RunError("the loss is not finite"))
    with pytest.raises(RunError, match="not finite"):
        await update_in_turn(actors, calling(actors), tmp_path, "batch")
    assert diary[-2:] == ["engines: engine-0 wake", "engines: engine-1 wake"]
    assert not turn_file(tmp_path).exists()
