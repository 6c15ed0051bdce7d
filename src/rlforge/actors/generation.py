"""Engines as actors, and the client through which collectors see them as one engine.

Requests and answers travel in bundles: one remote call for all games that ask at the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

import ray

from rlforge.actors.process import end, enter, restarted, turn_file
from rlforge.clock import TimeLimit
from rlforge.config.schema import HardwareConfig, RunConfig
from rlforge.engines.base import Caller, EngineStats, LocalEngine, OnTokens
from rlforge.engines.registry import make_engine
from rlforge.errors import EngineDeadError, EngineError
from rlforge.types import Completion, PolicyRef, SamplingParams, value
from rlforge.utilisation import Span

log = logging.getLogger(__name__)

HANDED_OUT_AT_ONCE = 32
"""Answers that reach their games in one turn of the event loop: these games ask again while the
others' moves are made, so that an engine that answered everybody at once is not left waiting."""


@value
class Request:
    """One generation on its way to an engine actor; ``ticket`` is unique for its client.

    stream: its tokens are to be sent as they are drawn.
    """

    ticket: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    policy: PolicyRef
    stream: bool = False


#: A ticket with what came of it, or with the next of its tokens.
Answered = tuple[int, Completion | EngineError | tuple[int, ...]]


class EngineActor:
    """A generator behind a mailbox: requests come in bundles, answers leave in bundles.

    Restarted in the learner's turn (``hardware.alternate``) it is as good as asleep, and loads its
    model at ``wake``.
    """

    _engine: LocalEngine

    def __init__(
        self, config: RunConfig, hardware: HardwareConfig, name: str, run_dir: str
    ) -> None:
        enter(name, run_dir)
        self._config, self._hardware = config, hardware
        self._loaded = asyncio.Event()
        if not turn_file(run_dir).exists():
            self._load_model()
        self._outbox: dict[str, list[Answered]] = {}
        self._filled: dict[str, asyncio.Event] = {}
        self._callers: dict[str, dict[int, Caller]] = {}

    def _load_model(self) -> None:
        hardware = self._hardware
        self._engine = make_engine(
            self._config,
            device=hardware.device,
            threads=hardware.threads,
            gpus=hardware.engine_gpus,
        )
        log.info("the engine is loaded")
        self._loaded.set()

    async def submit(self, client: str, requests: Sequence[Request]) -> None:
        """Begin to answer ``requests``: see ``collect``."""
        loop = asyncio.get_running_loop()
        callers = self._callers.setdefault(client, {})
        for request in requests:
            ticket = request.ticket
            callers[ticket] = Caller(
                loop,
                partial(self._end, client, ticket),
                partial(self._put, client, ticket) if request.stream else None,
            )
        await self._loaded.wait()
        self._engine.ask(
            (request.prompt_token_ids, request.params, request.policy, callers[request.ticket])
            for request in requests
            if request.ticket in callers  # nobody gave it up while the model was loaded
        )

    async def cancel(self, client: str, tickets: Sequence[int]) -> None:
        """Nobody waits for these any more."""
        callers = self._callers.get(client, {})
        left = [callers.pop(ticket) for ticket in tickets if ticket in callers]
        if left and self._loaded.is_set():
            self._engine.forget(left)

    def _end(
        self, client: str, ticket: int, completion: Completion | None, error: EngineError | None
    ) -> None:
        if isinstance(error, EngineDeadError):  # Ray starts the process anew, and clients ask again
            end(error)
        del self._callers[client][ticket]
        answer = completion if error is None else error
        assert answer is not None
        self._put(client, ticket, answer)

    def _put(
        self, client: str, ticket: int, news: Completion | EngineError | Sequence[int]
    ) -> None:
        answer = news if isinstance(news, Completion | EngineError) else tuple(news)
        self._outbox.setdefault(client, []).append((ticket, answer))
        self._event(client).set()

    async def collect(self, client: str) -> list[Answered]:
        """Answers and tokens for ``client``, as soon as there are some."""
        event = self._event(client)
        await event.wait()
        if self._filled[client] is not event:  # nobody hears this answer: see ``in_hand``
            return []
        event.clear()
        return self._outbox.pop(client, [])

    async def in_hand(self, client: str) -> list[int]:
        """Tickets of ``client`` that this process works on or has answers to.

        Asked by a client that lost its connection: calls of ``collect`` from before are void.
        """
        self._event(client).set()
        event = self._filled[client] = asyncio.Event()
        answered = [ticket for ticket, _ in self._outbox.get(client, [])]
        if answered:
            event.set()
        return [*self._callers.get(client, {}), *answered]

    def _event(self, client: str) -> asyncio.Event:
        return self._filled.setdefault(client, asyncio.Event())

    async def load(self, policy: PolicyRef) -> None:
        await self._loaded.wait()
        await _unless_dead(self._engine.load(policy))

    async def sleep(self) -> None:
        if self._loaded.is_set():
            await _unless_dead(self._engine.sleep())

    async def wake(self) -> None:
        if self._loaded.is_set():
            await _unless_dead(self._engine.wake())
        else:
            self._load_model()

    async def stats(self) -> tuple[EngineStats, list[Span]]:
        """Counters since the start, and the spans of work since the last call."""
        await self._loaded.wait()
        return self._engine.stats(), self._engine.take_busy_spans()

    async def close(self) -> None:
        if self._loaded.is_set():
            await self._engine.close()


async def _unless_dead(call: Awaitable[None]) -> None:
    try:
        await call
    except EngineDeadError as error:
        end(error)


class RemoteEngine:
    """The engine protocol over engine actors: least-loaded routing, bundles, and second tries.

    A request whose engine died is asked again once Ray has brought the actor back, ``retries``
    times at most. time_limit: by whose clock ``timeout_s`` passes.
    """

    def __init__(
        self,
        engines: Sequence[Any],
        client: str,
        *,
        timeout_s: float,
        retries: int,
        time_limit: TimeLimit = asyncio.timeout,
    ) -> None:
        self._engines = list(engines)
        self._client = client
        self._timeout_s = timeout_s
        self._retries = retries
        self._time_limit = time_limit
        self._tickets = 0
        self._unsent: list[list[Request]] = [[] for _ in engines]
        self._pending: list[dict[int, asyncio.Future[Completion]]] = [{} for _ in engines]
        self._received: list[set[int]] = [set() for _ in engines]
        self._streams: dict[int, OnTokens] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._flush_planned = False

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        policy: PolicyRef,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        told = _Told(on_tokens) if on_tokens is not None else None
        for _ in range(self._retries + 1):
            index = self._least_loaded()
            if told is not None:
                told.begin()
            try:
                return await self._ask(index, tuple(prompt_token_ids), params, policy, told)
            except ray.exceptions.RayActorError as error:
                last = error
            try:
                await restarted(self._engines[index])
            except (ray.exceptions.RayActorError, TimeoutError):
                break
        raise EngineError(f"the engine died while answering, and is not back: {last}")

    def _least_loaded(self) -> int:
        return min(range(len(self._engines)), key=lambda index: len(self._pending[index]))

    async def _ask(
        self,
        target: int,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams,
        policy: PolicyRef,
        on_tokens: OnTokens | None,
    ) -> Completion:
        loop = asyncio.get_running_loop()
        if not self._tasks:
            for index in range(len(self._engines)):
                self._start(self._pump(index))
        self._tickets += 1
        request = Request(
            ticket=self._tickets,
            prompt_token_ids=prompt_token_ids,
            params=params,
            policy=policy,
            stream=on_tokens is not None,
        )
        if on_tokens is not None:
            self._streams[request.ticket] = on_tokens
        future: asyncio.Future[Completion] = loop.create_future()
        self._pending[target][request.ticket] = future
        self._unsent[target].append(request)
        if not self._flush_planned:
            # One bundle per turn of the event loop: all games that are ready now ask together.
            self._flush_planned = True
            loop.call_soon(self._flush)
        try:
            async with self._time_limit(self._timeout_s):
                return await future
        except TimeoutError:
            raise EngineError(
                f"no answer from the engine within engine.request_timeout_s={self._timeout_s:g} s"
            ) from None
        finally:
            self._pending[target].pop(request.ticket, None)
            self._received[target].discard(request.ticket)
            self._streams.pop(request.ticket, None)
            if future.cancelled():  # given up by the caller or the time limit
                self._start(self._cancel(target, request.ticket))

    async def _cancel(self, index: int, ticket: int) -> None:
        # A dead engine has forgotten the request already.
        with contextlib.suppress(ray.exceptions.RayActorError):
            await self._engines[index].cancel.remote(self._client, [ticket])

    def _flush(self) -> None:
        self._flush_planned = False
        for index, requests in enumerate(self._unsent):
            if requests:
                self._unsent[index] = []
                self._start(self._send(index, requests))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, index: int, requests: Sequence[Request]) -> None:
        tickets = [request.ticket for request in requests]
        try:
            await self._engines[index].submit.remote(self._client, requests)
        except ray.exceptions.RayActorError as error:
            self._fail(index, tickets, error)
        else:
            self._received[index].update(self._pending[index].keys() & set(tickets))

    def _fail(self, index: int, tickets: Iterable[int], error: Exception) -> None:
        for ticket in tickets:
            waiting = self._pending[index].get(ticket)
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)

    async def _pump(self, index: int) -> None:
        """Hand answers of one engine to the games that wait for them."""
        while True:
            try:
                answers = await self._engines[index].collect.remote(self._client)
            except ray.exceptions.RayActorError as error:
                log.warning("engine-%d is gone: %s", index, error)
                await self._fail_lost(index, error)
                continue
            for begin in range(0, len(answers), HANDED_OUT_AT_ONCE):
                for ticket, answer in answers[begin : begin + HANDED_OUT_AT_ONCE]:
                    self._hand_on(index, ticket, answer)
                await asyncio.sleep(0)

    def _hand_on(
        self, index: int, ticket: int, answer: Completion | EngineError | tuple[int, ...]
    ) -> None:
        waiting = self._pending[index].get(ticket)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, tuple):
            self._streams[ticket](answer)
        elif isinstance(answer, EngineError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    async def _fail_lost(self, index: int, error: Exception) -> None:
        """Fail what was lost with a dead engine, and leave what its successor has been asked."""
        engine = self._engines[index]
        try:
            await restarted(engine)
            received = list(self._received[index])
            in_hand = set(await engine.in_hand.remote(self._client))
        except ray.exceptions.ActorUnavailableError:
            return  # gone once more: the next call of ``collect`` tells
        except (ray.exceptions.RayActorError, TimeoutError):
            self._fail(index, list(self._pending[index]), error)
            await asyncio.sleep(1.0)
        else:
            self._fail(index, [ticket for ticket in received if ticket not in in_hand], error)


class _Told:
    """Hands tokens on once: a request that is asked again repeats those it told before."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens = on_tokens
        self._handed_on = self._seen = 0

    def begin(self) -> None:
        """A try begins, with the first token."""
        self._seen = 0

    def __call__(self, tokens: Sequence[int]) -> None:
        fresh = tokens[max(0, self._handed_on - self._seen) :]
        self._seen += len(tokens)
        self._handed_on = max(self._handed_on, self._seen)
        if fresh:
            self._on_tokens(fresh)
