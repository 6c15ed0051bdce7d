"""The order of a turn, and what is left of it when the update fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlforge.actors.cluster import RunActors
from rlforge.actors.colocation import update_in_turn
from rlforge.actors.process import turn_file
from rlforge.types import UpdateResult

SPAN = (100.0, 130.0)


class Actor:
    """An actor handle that writes down what it is told, and whose turn it was then."""

    def __init__(self, name: str, diary: list[str], run_dir: Path) -> None:
        self._name, self._diary, self._run_dir = name, diary, run_dir

    def __getattr__(self, method: str) -> Any:
        return Method(self, method)

    def told(self, method: str) -> None:
        turn = "learner" if turn_file(self._run_dir).exists() else "engines"
        self._diary.append(f"{turn}: {self._name} {method}")


class Method:
    def __init__(self, actor: Actor, name: str) -> None:
        self._actor, self._name = actor, name

    def remote(self) -> Any:
        self._actor.told(self._name)
        return asyncio.sleep(0)


class Learner:
    def __init__(self, actor: Actor, error: Exception | None) -> None:
        self._actor, self._error = actor, error

    async def update(self, batch: Any) -> tuple[UpdateResult, tuple[float, float]]:
        self._actor.told(f"update {batch}")
        if self._error is not None:
            raise self._error
        return UpdateResult(version=1, samples=8, tokens=9, metrics={"loss": 0.5}), SPAN


async def surviving(name: str, method: Any) -> None:
    await method.remote()


def make_cast(diary: list[str], run_dir: Path, error: Exception | None = None) -> RunActors:
    def actor(name: str) -> Actor:
        return Actor(name, diary, run_dir)

    learner: Any = Learner(actor("learner"), error)
    return RunActors(
        tracker=None,
        pool=None,
        buffer=None,
        engines=(actor("engine-0"), actor("engine-1")),
        collectors=(actor("collector-0"),),
        learner=learner,
    )


@pytest.mark.filterwarnings("ignore:coroutine 'sleep' was never awaited")
async def test_engines_sleep_from_before_the_update_until_after_it(tmp_path: Path) -> None:
    diary: list[str] = []
    result, span = await update_in_turn(make_cast(diary, tmp_path), surviving, tmp_path, "batch")
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


@pytest.mark.filterwarnings("ignore:coroutine 'sleep' was never awaited")
async def test_a_failed_update_is_raised_and_leaves_no_turn_behind(tmp_path: Path) -> None:
    diary: list[str] = []
    cast = make_cast(diary, tmp_path, error=RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        await update_in_turn(cast, surviving, tmp_path, "batch")
    assert not any("wake" in line for line in diary)
    assert not turn_file(tmp_path).exists()
