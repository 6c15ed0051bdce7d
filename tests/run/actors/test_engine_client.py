"""One client of several engine actors: which one gets a request, and which when one dies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import ray
from tests.harness.in_process import InProcessActor

from rlforge.errors import EngineDeadError, EngineError
from rlforge.run.actors.engine import Request
from rlforge.run.actors.engine_client import RemoteEngine
from rlforge.types import Completion, PolicyRef, SamplingParams

COMPLETION = Completion(text="a")
ONE, BASE = SamplingParams(max_tokens=1), PolicyRef(uid="b", kind="checkpoint")
BROKEN = ray.exceptions.ActorUnavailableError("restarting", None)
DEAD = ray.exceptions.ActorDiedError()
FULL = ray.exceptions.OutOfMemoryError(
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: ::1, "
    "ID: 20f4) was 22.63GB used / 23.54GB limit (0.961333)\nConsidered workers: [\nSelected to "
    "kill: (Actor(ca09): task name=engine-0:EngineActor.__init__, pid=11736)\n]\n"
)


class Handle:
    """A stand-in for an engine actor, which dies when the test calls ``die``.

    The test answers calls of ``collect`` in order, through ``collects``. death: the error for calls
    that wait until the actor is back. ``alive``: set while it is there.
    """

    def __init__(self) -> None:
        self.held: list[int] = []
        self.bundles: list[int] = []
        self.submitted: asyncio.Queue[int] = asyncio.Queue()
        self.collects: asyncio.Queue[Any] = asyncio.Queue()
        self.alive = asyncio.Event()
        self.alive.set()
        self.death: Exception | None = None
        self.loaded: list[PolicyRef] = []

    async def __ray_ready__(self) -> None:
        if self.death is not None:
            raise self.death
        await self.alive.wait()

    async def submit(self, client: str, requests: Sequence[Request]) -> None:
        self.bundles.append(len(requests))
        for request in requests:
            self.held.append(request.ticket)
            self.submitted.put_nowait(request.ticket)

    async def in_hand(self, client: str) -> list[int]:
        return list(self.held)

    async def collect(self, client: str) -> Any:
        answer = await self.collects.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def load(self, policy: PolicyRef) -> None:
        self.loaded.append(policy)

    async def cancel(self, client: str, tickets: Sequence[int]) -> None:
        self.held = [ticket for ticket in self.held if ticket not in tickets]

    def die(self, error: Exception = BROKEN) -> None:
        """Forget everything; away until ``alive`` is set, unless ``death`` is."""
        self.held.clear()
        self.alive.clear()
        self.collects.put_nowait(error)


def _client(*engines: Handle, retries: int = 1, elastic: bool = False) -> RemoteEngine:
    actors = list(map(InProcessActor, engines))
    return RemoteEngine(actors, "client", timeout_s=10, retries=retries, elastic=elastic)


async def test_a_late_error_of_a_call_from_before_a_restart_is_ignored() -> None:
    engine = Handle()
    answer = asyncio.create_task(_client(engine).generate([7], ONE, BASE))
    await engine.submitted.get()
    engine.held.clear()  # with its process
    engine.collects.put_nowait(BROKEN)
    again = await engine.submitted.get()
    engine.collects.put_nowait(BROKEN)  # a call from before the restart
    engine.collects.put_nowait([(again, COMPLETION)])
    assert await answer is COMPLETION
    assert engine.submitted.empty()


async def test_each_request_goes_to_the_engine_with_the_fewest_requests() -> None:
    engines = [Handle(), Handle(), Handle()]
    client = _client(*engines)
    answers = [asyncio.create_task(client.generate([7], ONE, BASE)) for _ in range(7)]
    await asyncio.sleep(0.05)
    assert [len(engine.held) for engine in engines] == [3, 2, 2]
    second = engines[1]
    second.collects.put_nowait([(ticket, COMPLETION) for ticket in second.held])
    await asyncio.sleep(0.05)
    answers += [asyncio.create_task(client.generate([7], ONE, BASE)) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert [len(engine.held) for engine in engines] == [3, 4, 2]
    for answer in answers:
        answer.cancel()


@pytest.mark.parametrize(("games", "bundles"), [(200, [100, 100]), (40, [32, 8])])
async def test_games_go_on_in_two_halves_so_that_engine_and_games_work_at_the_same_time(
    games: int, bundles: list[int]
) -> None:
    engine = Handle()
    client = _client(engine)

    async def game() -> None:
        for _ in range(2):
            await client.generate([7], ONE, BASE)

    playing = [asyncio.create_task(game()) for _ in range(games)]
    await asyncio.sleep(0.05)
    assert engine.bundles == [games]
    engine.collects.put_nowait([(ticket, COMPLETION) for ticket in engine.held])
    await asyncio.sleep(0.05)
    assert engine.bundles == [games, *bundles]
    for task in playing:
        task.cancel()


async def test_all_turns_of_a_conversation_go_to_one_engine_while_it_lives() -> None:
    engines = [Handle(), Handle()]
    client = _client(*engines)

    def ask(number: int) -> asyncio.Task[Completion]:
        params = SamplingParams(max_tokens=1, conversation=number)
        return asyncio.create_task(client.generate([7], params, BASE))

    turns = [ask(number) for number in (0, 1, 1, 1, 2)]
    await asyncio.sleep(0.05)
    assert [len(engine.held) for engine in engines] == [2, 3]
    engines[1].die()
    await asyncio.sleep(0.05)
    turns.append(ask(1))
    await asyncio.sleep(0.05)
    assert [len(engine.held) for engine in engines] == [6, 0]
    for turn in turns:
        turn.cancel()


async def test_requests_of_a_dead_engine_go_to_another_one_at_once() -> None:
    dead, living = Handle(), Handle()
    client = _client(dead, living)
    lost = asyncio.create_task(client.generate([7], ONE, BASE))
    await dead.submitted.get()
    dead.die()
    again = await asyncio.wait_for(living.submitted.get(), 5)
    living.collects.put_nowait([(again, COMPLETION)])
    assert await lost is COMPLETION

    # It gets no requests until it is back, although it has none.
    for _ in range(2):
        answer = asyncio.create_task(client.generate([7], ONE, BASE))
        living.collects.put_nowait([(await living.submitted.get(), COMPLETION)])
        await answer
    assert dead.submitted.empty()
    dead.alive.set()
    await asyncio.sleep(0.05)
    answer = asyncio.create_task(client.generate([7], ONE, BASE))
    dead.collects.put_nowait([(await asyncio.wait_for(dead.submitted.get(), 5), COMPLETION)])
    assert await answer is COMPLETION


async def test_a_request_that_kills_engines_fails_after_its_retries() -> None:
    first, second = Handle(), Handle()
    deadly = asyncio.create_task(_client(first, second).generate([7], ONE, BASE))
    await first.submitted.get()
    first.die()
    await second.submitted.get()
    second.die()
    second.alive.set()
    with pytest.raises(EngineError, match="an engine died while answering 2 times"):
        await asyncio.wait_for(deadly, 5)


@pytest.mark.parametrize(
    ("death", "told"),
    [
        (DEAD, "an actor died: "),
        (
            FULL,
            "engine-0 was killed by Ray for want of memory: 22.6 of 23.5 GiB (Ray's limit: 95%) "
            "were in use",
        ),
        (ray.exceptions.ActorUnschedulableError("no node is left"), "an actor died: The actor"),
    ],
)
async def test_requests_fail_once_ray_has_given_up_every_engine(
    death: Exception, told: str
) -> None:
    engine = Handle()
    client = _client(engine, retries=3)
    answer = asyncio.create_task(client.generate([7], ONE, BASE))
    await engine.submitted.get()
    engine.death = death
    engine.die(death)
    with pytest.raises(EngineDeadError, match="every engine died, and none is back: ") as failed:
        await asyncio.wait_for(answer, 5)
    assert told in str(failed.value)
    assert "\n" not in str(failed.value)
    with pytest.raises(EngineDeadError, match="every engine died"):
        await client.generate([7], ONE, BASE)
    await asyncio.wait_for(client.gone(), 5)
    assert client.death is death
    with pytest.raises(EngineDeadError, match="the engine died while loading b"):
        await client.load(BASE)
    await client.close()


async def test_an_elastic_client_uses_each_engine_as_soon_as_it_is_there() -> None:
    first, second = Handle(), Handle()
    for engine in (first, second):
        engine.alive.clear()
    client = _client(first, second, elastic=True)
    answers = [asyncio.create_task(client.generate([7], ONE, BASE)) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert first.submitted.empty()
    first.alive.set()
    assert [await asyncio.wait_for(first.submitted.get(), 5) for _ in answers] == [1, 2]
    second.alive.set()
    await asyncio.sleep(0.05)
    answers.append(asyncio.create_task(client.generate([7], ONE, BASE)))
    assert await asyncio.wait_for(second.submitted.get(), 5) == 3
    for answer in answers:
        answer.cancel()


async def test_an_elastic_client_loads_where_it_can_and_is_gone_with_its_last_engine() -> None:
    first, second = Handle(), Handle()
    second.alive.clear()
    client = _client(first, second, elastic=True)
    await asyncio.wait_for(client.load(BASE), 5)
    assert (first.loaded, second.loaded) == ([BASE], [])
    gone = asyncio.create_task(client.gone())
    for engine in (first, second):
        assert not gone.done()
        engine.death = DEAD
        engine.alive.set()
        engine.die(DEAD)
        await asyncio.sleep(0.05)
    await asyncio.wait_for(gone, 5)
    await client.close()
