"""The client through which collectors and services see engine actors as one engine.

Requests and answers travel in bundles: one remote call for all games that ask at the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Literal

import ray

from rlforge.actors.engine import Request
from rlforge.actors.process import restarted
from rlforge.engines.base import OnTokens
from rlforge.errors import EngineError, RunError
from rlforge.system.timeouts import TimeLimit
from rlforge.types import Completion, PolicyRef, SamplingParams

log = logging.getLogger(__name__)

HANDED_OUT_AT_ONCE = 32
"""Answers that reach their games in one turn of the event loop: these games ask again while the
others' moves are made, so that an engine that answered everybody at once is not left waiting."""


class RemoteEngine:
    """The engine protocol over engine actors: least-loaded routing, bundles, and second tries.

    A request whose engine died is asked again, ``retries`` times at most: another engine where one
    is alive, else the first that Ray brings back. time_limit: by whose clock ``timeout_s`` passes.
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
        self._states: list[Literal["here", "away", "gone"]] = ["here" for _ in engines]
        self._moved = asyncio.Event()

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        policy: PolicyRef,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        told = _TokenStreamDeduper(on_tokens) if on_tokens is not None else None
        tries, death = 0, "see its log"
        while (index := await self._least_loaded()) is not None:
            if told is not None:
                told.begin()
            try:
                return await self._ask(index, tuple(prompt_token_ids), params, policy, told)
            except ray.exceptions.RayActorError as error:
                tries, death = tries + 1, str(error)
            if tries > self._retries:
                times = "" if tries == 1 else f" {tries} times"
                raise EngineError(f"an engine died while answering{times}: {death}")
        raise EngineError(f"every engine died, and none is back: {death}")

    async def _least_loaded(self) -> int | None:
        """Of the engines that are here, or of the first to be back; None once all are gone."""
        while True:
            here = [index for index, state in enumerate(self._states) if state == "here"]
            if here:
                return min(here, key=lambda index: len(self._pending[index]))
            if "away" not in self._states:
                return None
            await self._moved.wait()

    def _lost(self, index: int) -> None:
        """An engine died: nothing is asked of it until it is back."""
        if self._states[index] == "here":
            self._moves(index, "away")
            self._start(self._come_back(index))

    async def _come_back(self, index: int) -> None:
        try:
            await restarted(self._engines[index], f"engine-{index}")
        except (ray.exceptions.RayActorError, RunError) as error:
            log.error("engine-%d is gone for good: %s", index, error)
            self._moves(index, "gone")
        else:
            self._moves(index, "here")

    def _moves(self, index: int, state: Literal["here", "away", "gone"]) -> None:
        self._states[index] = state
        self._moved.set()
        self._moved = asyncio.Event()

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
            self._lost(index)
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
                log.warning("engine-%d died: %s", index, error)
                self._lost(index)
                await self._fail_lost(index, error)
                continue
            if self._states[index] == "gone":  # it took longer than anybody waits
                self._moves(index, "here")
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
        """Fail what was lost with a dead engine, and leave what its successor has been asked.

        Where another engine is here, it is asked at once.
        """
        if "here" in self._states:
            self._fail(index, list(self._received[index]), error)
        while self._states[index] == "away":
            await self._moved.wait()
        if self._states[index] == "gone":
            self._fail(index, list(self._pending[index]), error)
            await asyncio.sleep(1.0)
            return
        received = list(self._received[index])
        try:
            in_hand = set(await self._engines[index].in_hand.remote(self._client))
        except ray.exceptions.RayActorError:
            return  # gone once more: the next call of ``collect`` tells
        self._fail(index, [ticket for ticket in received if ticket not in in_hand], error)


class _TokenStreamDeduper:
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
