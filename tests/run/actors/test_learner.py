"""The client of the learner's ranks: it calls all, returns rank 0's answer, raises any failure."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions
from tests.harness.in_process import InProcessActor, start_in_process

from rlforge.config.compose import compose
from rlforge.errors import CheckpointError
from rlforge.preflight.plan import make_plan
from rlforge.run.actors import learner as learning
from rlforge.run.actors.ends import reason
from rlforge.run.actors.learner import LearnerGroup
from rlforge.system.checkpoint import read_manifest
from rlforge.system.hardware import Machine


def ranked(update: Callable[[Any], Any]) -> InProcessActor:
    """An actor handle whose only method is ``update``."""
    return InProcessActor(SimpleNamespace(update=update))


def failing(error: Exception, after: float = 0.0) -> InProcessActor:
    async def update(batch: Any) -> Any:
        await asyncio.sleep(after)
        raise error

    return ranked(update)


async def waiting(batch: Any) -> Any:
    """Like a rank in a collective that another rank never enters."""
    await asyncio.sleep(3600)


async def test_every_rank_gets_the_batch_and_rank_0_answers() -> None:
    seen = []

    def rank(number: int) -> InProcessActor:
        async def update(batch: Any) -> Any:
            seen.append((number, batch))
            return number

        return ranked(update)

    assert await LearnerGroup([rank(0), rank(1), rank(2)]).update("batch") == 0
    assert seen == [(0, "batch"), (1, "batch"), (2, "batch")]


@pytest.mark.parametrize("deaf", [0, 1])
async def test_a_dead_rank_is_reported_instead_of_the_lost_connection(deaf: int) -> None:
    death = ray.exceptions.ActorDiedError()
    ranks = [failing(death, after=0.05), failing(death, after=0.05)]
    lost = ray.exceptions.RayTaskError("update", "closed by peer", RuntimeError("closed"))
    ranks[deaf] = failing(lost)
    with pytest.raises(ray.exceptions.ActorDiedError) as caught:
        await LearnerGroup(ranks).update("batch")
    assert caught.value is death


async def test_errors_meant_for_the_user_arrive_without_ray_around_them() -> None:
    error = ray.exceptions.RayTaskError("update", "…", CheckpointError("the disk is full"))
    with pytest.raises(CheckpointError, match="the disk is full") as caught:
        await LearnerGroup([failing(error)]).update("batch")
    assert type(caught.value) is CheckpointError


@pytest.mark.parametrize("cause", [MemoryError("no memory"), CheckpointError("the disk is full")])
@pytest.mark.parametrize("place", [0, 1])
async def test_an_error_ends_the_run_while_another_rank_waits_for_the_failed_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cause: Exception, place: int
) -> None:
    monkeypatch.setattr(learning, "DEATH_REPORTED_S", 0.01)
    error = ray.exceptions.RayTaskError("update", "…", cause)
    ranks = [ranked(waiting)]
    ranks.insert(place, failing(error))
    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        await LearnerGroup(ranks).update("batch")
    assert caught.value is error
    assert str(cause) in reason(caught.value, tmp_path)


async def test_weights_state_and_facts_can_be_saved_as_one_checkpoint(
    small_model: Path, tmp_path: Path
) -> None:
    given = ["+experiment=tictactoe_mirror", "model=hf", f"model.name={small_model}"]
    config = compose(given).config
    whole = make_plan(config, Machine(cpus=1, gpus=0))
    plan = dataclasses.replace(whole, nodes=(whole.node("learner"),))
    learner = (await start_in_process(plan, tmp_path)).learner
    saved = await learner.save(1, "step-0", meta={"window_id": "w"}, state={"others": 1})
    manifest = read_manifest(Path(saved.path or ""))
    assert manifest.has_state
    assert (manifest.meta["window_id"], manifest.meta["parent_uid"]) == ("w", "step-0")
    assert await learner.load_state("step-1", version=4) == {"others": 1}
    with pytest.raises(CheckpointError, match="exists already"):
        await learner.save(1, "step-0")
    with pytest.raises(CheckpointError, match="to resume from"):
        await learner.load_state("step-9")
