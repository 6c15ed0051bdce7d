"""A client that uses several engine actors as one engine, for collectors, services and trainers.

An engine is ``here``, ``away`` (it died, Ray restarts it) or ``gone`` (Ray gave it up). Each has a
pump, a task that keeps one call of ``collect`` pending: it fails when the process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal

import ray

from rlforge.engines.base import EngineStats, OnTokens
from rlforge.errors import EngineDeadError, EngineError, RunError
from rlforge.run.actors.bundle import Bundle
from rlforge.run.actors.ends import reason
from rlforge.run.actors.engine import Request
from rlforge.run.actors.process import DEATHS, restarted
from rlforge.system.timeouts import TimeLimit
from rlforge.system.utilisation import Span
from rlforge.types import Completion, PolicyRef, SamplingParams

log = logging.getLogger(__name__)

EngineState = Literal["here", "away", "gone"]

LEAST_ANSWERS = 32
"""Answers passed on in an iteration of the event loop, or half of the requests under way where
these are more."""
# The games of the first answers send new requests before other answers are passed on, so that an
# engine that answered all at once is not left idle. But each bundle costs time: 192 games of the
# tiny model on two cores take 16 % less by halves than by 32.

REPORT_POLL_S = 1.0
"""Seconds between reports of the engines of a service or of continuous training."""

SPANS_KEPT = 1000
"""Busy spans that are kept where no caller takes them."""


@dataclasses.dataclass(kw_only=True)
class _Engine:
    """An engine as the client knows it.

    Attributes:
        pending: Requests under way, by their tickets.
        received: Tickets of the requests that its process has.
    """

    name: str
    actor: Any
    state: EngineState
    unsent: list[Request] = dataclasses.field(default_factory=list)
    pending: dict[int, asyncio.Future[Completion]] = dataclasses.field(default_factory=dict)
    received: set[int] = dataclasses.field(default_factory=set)
    stats: EngineStats = dataclasses.field(default_factory=lambda: EngineStats.total(()))

    def fail(self, tickets: Iterable[int], error: Exception) -> None:
        for ticket in tickets:
            waiting = self.pending.get(ticket)
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)


class RemoteEngine:
    """The engine protocol over engine actors: routing by load or conversation, bundles and retries.

    A request whose engine died is repeated, by another engine that is here, else by the first that
    Ray brings back.

    Args:
        client: Unique name, also after a restart of the client.
        retries: Most repetitions of a request.
        time_limit: Enforces ``timeout_s``; that of a ``Clock`` can be paused.
        poll_s: Seconds between reports of the engines, for ``stats`` and ``take_busy_spans``; None:
            no reports. With it the constructor must run inside the event loop.
        elastic: Engines may be absent for as long as there is no node for them: they are waited for
            without limit, and ``load`` leaves them out.
        on_change: Called with the name of an engine, as ``engine-1``, and its new state.
    """

    def __init__(
        self,
        engines: Sequence[Any],
        client: str,
        *,
        timeout_s: float,
        retries: int = 1,
        time_limit: TimeLimit = asyncio.timeout,
        poll_s: float | None = None,
        elastic: bool = False,
        on_change: Callable[[str, EngineState], object] = lambda name, state: None,
    ) -> None:
        at_first: EngineState = "away" if elastic else "here"
        self._engines = [
            _Engine(name=f"engine-{number}", actor=actor, state=at_first)
            for number, actor in enumerate(engines)
        ]
        self._elastic, self._on_change = elastic, on_change
        self._client = client
        self._timeout_s = timeout_s
        self._retries = retries
        self._time_limit = time_limit
        self._poll_s = poll_s
        self._tickets = 0
        self._streams: dict[int, OnTokens] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._flush_planned = False
        self._changed = asyncio.Event()
        self._given_up = asyncio.Event()
        #: Why ``gone`` has returned.
        self.death: Exception | None = None
        self._spans: list[Span] = []
        # Only one client may poll: an engine reports each span once, and two would share them.
        if poll_s is not None:
            self._begin()

    @property
    def ready(self) -> bool:
        return bool(self._here())

    def _here(self) -> list[_Engine]:
        return [engine for engine in self._engines if engine.state == "here"]

    async def gone(self) -> None:
        """Wait until Ray has given up an engine; with ``elastic`` all of them."""
        await self._given_up.wait()

    async def load(self, policy: PolicyRef) -> None:
        """Make ``policy`` resident in every engine; in one that died, once it is back.

        With ``elastic`` in the engines that are here, once there is one.
        """
        self._begin()
        # Engines that are absent load the policy later, when a request asks for it.
        if self._elastic:
            await self._choose(None)
        engines = self._here() if self._elastic else self._engines
        await asyncio.gather(*(self._load(engine, policy) for engine in engines))

    async def _load(self, engine: _Engine, policy: PolicyRef) -> None:
        death = "see its log"
        for _ in range(self._retries + 1):
            if not await self._is_back(engine):
                break
            try:
                await engine.actor.load.remote(policy)
            except ray.exceptions.RayTaskError as error:
                # Callers handle the engine's own error, without Ray's around it.
                if isinstance(error.cause, EngineError):
                    raise error.cause from None
                raise
            except DEATHS as error:
                death = reason(error)
                self._lost(engine, error)
                if self._elastic:
                    return
            else:
                return
        raise EngineDeadError(f"the engine died while loading {policy.uid}: {death}")

    def stats(self) -> EngineStats:
        """Sum over the engines, from their last reports."""
        return EngineStats.total(engine.stats for engine in self._engines)

    def take_busy_spans(self) -> list[Span]:
        """Spans in which the engines computed since the last call."""
        spans, self._spans = self._spans, []
        return spans

    async def close(self) -> None:
        """Close the engines; requests under way fail."""
        ends = [engine.actor.close.remote() for engine in self._here()]
        await asyncio.gather(*ends, return_exceptions=True)
        for engine in self._engines:
            engine.fail(list(engine.pending), EngineError("the engine was closed"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        policy: PolicyRef,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        stream = _TokenStreamDeduper(on_tokens) if on_tokens is not None else None
        tries, death = 0, "see its log"
        self._begin()
        while (engine := await self._choose(params.conversation)) is not None:
            if stream is not None:
                stream.begin()
            try:
                return await self._ask(engine, tuple(prompt_token_ids), params, policy, stream)
            except DEATHS as error:
                tries, death = tries + 1, reason(error)
            if tries > self._retries:
                times = "" if tries == 1 else f" {tries} times"
                raise EngineError(f"an engine died while answering{times}: {death}")
        raise EngineDeadError(f"every engine died, and none is back: {death}")

    async def _choose(self, conversation: int | None) -> _Engine | None:
        """An engine that is here, if need be after a wait; None once all are gone."""
        while True:
            here = self._here()
            # The engine that answered a conversation before need not read all of it again.
            if here and conversation is not None:
                return here[conversation % len(here)]
            if here:
                return min(here, key=lambda engine: len(engine.pending))
            if all(engine.state == "gone" for engine in self._engines):
                return None
            await self._changed.wait()

    def _begin(self) -> None:
        if self._tasks:
            return
        for engine in self._engines:
            self._start(self._pump(engine))
            if engine.state == "away":
                self._start(self._await_restart(engine))
            if self._poll_s is not None:
                self._start(self._poll(engine, self._poll_s))

    async def _poll(self, engine: _Engine, every_s: float) -> None:
        while True:
            if engine.state == "here":
                try:
                    report = await engine.actor.report.remote()
                except DEATHS as error:
                    self._lost(engine, error)
                else:
                    engine.stats = report.stats
                    self._spans = [*self._spans, *report.spans][-SPANS_KEPT:]
            await asyncio.sleep(every_s)

    def _lost(self, engine: _Engine, error: Exception) -> None:
        """Send an engine that died no requests until it is back."""
        if engine.state == "here":
            log.warning("%s died: %s", engine.name, reason(error))
            self._set_state(engine, "away")
            self._start(self._await_restart(engine))

    async def _await_restart(self, engine: _Engine) -> None:
        try:
            await restarted(engine.actor, engine.name, elastic=self._elastic)
        except (*DEATHS, RunError) as error:
            log.error("%s is gone for good: %s", engine.name, reason(error))
            self._set_state(engine, "gone")
            left = self._elastic and any(each.state != "gone" for each in self._engines)
            # A RunError says that the engine takes long: it may still come back.
            if not isinstance(error, RunError) and not left:
                self.death = error
                self._given_up.set()
        else:
            self._set_state(engine, "here")

    def _set_state(self, engine: _Engine, state: EngineState) -> None:
        engine.state = state
        self._on_change(engine.name, state)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _is_back(self, engine: _Engine) -> bool:
        while engine.state == "away":
            await self._changed.wait()
        return engine.state == "here"

    async def _ask(
        self,
        engine: _Engine,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams,
        policy: PolicyRef,
        on_tokens: OnTokens | None,
    ) -> Completion:
        loop = asyncio.get_running_loop()
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
        engine.pending[request.ticket] = future
        engine.unsent.append(request)
        if not self._flush_planned:
            # A remote call costs time, so one takes all requests of this iteration of the loop.
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
            engine.pending.pop(request.ticket, None)
            engine.received.discard(request.ticket)
            self._streams.pop(request.ticket, None)
            if future.cancelled():
                # The caller or the time limit gave up: the engine need not answer any more.
                self._start(self._cancel(engine, request.ticket))

    async def _cancel(self, engine: _Engine, ticket: int) -> None:
        # A dead engine has forgotten the request already.
        with contextlib.suppress(*DEATHS):
            await engine.actor.cancel.remote(self._client, [ticket])

    def _flush(self) -> None:
        self._flush_planned = False
        for engine in self._engines:
            if engine.unsent:
                requests, engine.unsent = engine.unsent, []
                self._start(self._send(engine, requests))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, engine: _Engine, requests: Sequence[Request]) -> None:
        tickets = [request.ticket for request in requests]
        try:
            await engine.actor.submit.remote(self._client, Bundle(requests))
        except DEATHS as error:
            self._lost(engine, error)
            engine.fail(tickets, error)
        else:
            engine.received.update(engine.pending.keys() & set(tickets))

    async def _pump(self, engine: _Engine) -> None:
        while True:
            try:
                answers = await engine.actor.collect.remote(self._client)
            except DEATHS as error:
                self._lost(engine, error)
                await self._fail_lost(engine, error)
                continue
            # An engine may come back later than ``restarted`` waits.
            if engine.state == "gone":
                self._set_state(engine, "here")
            size = max(LEAST_ANSWERS, len(engine.pending) // 2)
            for begin in range(0, len(answers), size):
                for ticket, answer in answers[begin : begin + size]:
                    self._pass_on(engine, ticket, answer)
                await asyncio.sleep(0)

    def _pass_on(
        self, engine: _Engine, ticket: int, answer: Completion | EngineError | tuple[int, ...]
    ) -> None:
        waiting = engine.pending.get(ticket)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, tuple):
            self._streams[ticket](answer)
        elif isinstance(answer, EngineError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    async def _fail_lost(self, engine: _Engine, error: Exception) -> None:
        """Fail the requests that were lost with a dead process, and none that its successor got."""
        # Another engine that is here can repeat the requests at once.
        if self.ready:
            engine.fail(list(engine.received), error)
        if not await self._is_back(engine):
            engine.fail(list(engine.pending), error)
            await asyncio.sleep(1.0)
            return
        received = list(engine.received)
        try:
            in_hand = set(await engine.actor.in_hand.remote(self._client))
        except DEATHS:
            # The process is dead again: the next call of ``collect`` raises.
            return
        engine.fail([ticket for ticket in received if ticket not in in_hand], error)


class _TokenStreamDeduper:
    """Passes each token on once, though a repeated request draws all of them again."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens = on_tokens
        self._passed_on = self._seen = 0

    def begin(self) -> None:
        self._seen = 0

    def __call__(self, tokens: Sequence[int]) -> None:
        fresh = tokens[max(0, self._passed_on - self._seen) :]
        self._seen += len(tokens)
        self._passed_on = max(self._passed_on, self._seen)
        if fresh:
            self._on_tokens(fresh)
