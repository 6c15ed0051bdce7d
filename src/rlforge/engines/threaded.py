"""Runs a ``StepGenerator`` in a thread, behind the engine protocol, with a watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any

from rlforge.engines.base import Caller, EngineStats, LocalEngine, OnTokens, Question
from rlforge.engines.core import StepGenerator
from rlforge.errors import EngineDeadError, EngineError
from rlforge.system.utilisation import Span
from rlforge.types import Completion, PolicyRef, SamplingParams

log = logging.getLogger(__name__)

#: Seconds without a new token, while requests run, after which an engine counts as dead.
STUCK_AFTER_S = 300.0

_Future = asyncio.Future[Completion | None]
#: The submission that the worker makes, which returns the request's id; and its caller.
_Call = tuple[Callable[[], int], Caller]
_Result = tuple[Caller, Completion | None, EngineError | None]
_StreamUpdate = tuple[Caller, Sequence[int]]


class _State(Enum):
    AWAKE = auto()
    DRAINING = auto()
    ASLEEP = auto()


class ThreadedEngine(LocalEngine):
    """Runs ``core`` in one worker thread (see ``rlforge.engines.base``).

    Coroutines may be called from several event loops. Cancelling ``generate`` or ``load`` cancels
    the request. The engine counts as dead after ``stuck_after_s`` seconds without progress on
    running requests or on a change of state.

    States of the core, which the worker changes::

        AWAKE ── sleep() ──▶ DRAINING ── nothing runs ──▶ ASLEEP
          ▲                      │                          │
          └──────── wake() ──────┴──────────────────────────┘

    Which thread may use which field::

        _inbox, _cancelled, _end, _rest, _turn_callers   any thread, under the lock ``_changed``
        _state, _pending, _streams                       the worker only, without a lock
        _core                                            the worker; ``stats`` and
                                                         ``take_busy_spans`` any thread
        _seen                                            written by the worker, read by the watchdog
        a Caller's gone                                  set under ``_changed`` or in its own loop

    ``_fail_all`` reads ``_pending`` when the worker has ended or is stuck. Once ``_end`` is set it
    stays, and may be read without the lock.
    """

    def __init__(self, core: StepGenerator[Any], *, stuck_after_s: float) -> None:
        self._core = core
        self._stuck_after_s = stuck_after_s
        self._changed = threading.Condition()
        self._inbox: list[_Call] = []
        self._cancelled = False
        self._end: EngineError | None = None
        # Whether the engine is to sleep, and the waiting callers of ``sleep`` and ``wake``.
        self._rest = False
        self._turn_callers: list[Caller] = []
        self._state = _State.AWAKE
        self._pending: dict[int, Caller] = {}
        self._streams: dict[int, Caller] = {}
        # Progress so far and when it last grew; None while there is nothing to do.
        self._seen: tuple[int, float] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rlforge-engine", daemon=True)
        self._watch = threading.Thread(target=self._watch_worker, name="rlforge-watch", daemon=True)
        self._thread.start()
        self._watch.start()

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        policy: PolicyRef,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """Generate as ``Engine.generate``, and call ``on_tokens`` after each step.

        Raises EngineError for a prompt without room for an answer, a policy that does not load, a
        failed computation, and when the engine closes; EngineDeadError when it cannot go on.
        """
        submit = partial(self._core.submit, tuple(prompt_token_ids), params, policy)
        completion = await self._answer(submit, on_tokens)
        assert completion is not None
        return completion

    def ask(self, questions: Iterable[Question]) -> None:
        self._put(
            [
                (partial(self._core.submit, prompt, params, policy), caller)
                for prompt, params, policy, caller in questions
            ]
        )

    def forget(self, callers: Iterable[Caller]) -> None:
        with self._changed:
            for caller in callers:
                caller.gone = self._cancelled = True

    async def load(self, policy: PolicyRef) -> None:
        await self._answer(partial(self._core.load, policy))

    async def sleep(self) -> None:
        await self._take_turn(rest=True)

    async def wake(self) -> None:
        await self._take_turn(rest=False)

    async def _take_turn(self, *, rest: bool) -> None:
        future, caller = _future_caller()
        with self._changed:
            if self._end is None:
                self._rest = rest
                self._turn_callers.append(caller)
                self._changed.notify()
        if self._end is not None:
            self._fail([caller])
        await future

    def stats(self) -> EngineStats:
        return self._core.stats()

    def take_busy_spans(self) -> list[Span]:
        return self._core.take_busy_spans()

    async def close(self) -> None:
        self._stop(EngineError("the engine is closed"))
        # A worker that is stuck in a step never ends; it is abandoned.
        await asyncio.to_thread(self._over.wait)

    def _put(self, calls: Sequence[_Call]) -> None:
        with self._changed:
            if self._end is None:
                self._inbox.extend(calls)
                self._changed.notify()
                return
        self._fail(caller for _, caller in calls)

    async def _answer(
        self, submit: Callable[[], int], on_tokens: OnTokens | None = None
    ) -> Completion | None:
        future, caller = _future_caller(on_tokens)
        self._put([(submit, caller)])
        try:
            return await future
        except asyncio.CancelledError:
            self.forget([caller])
            raise

    def _stop(self, reason: EngineError) -> None:
        with self._changed:
            self._end = self._end or reason
            self._changed.notify()

    def _work(self) -> None:
        try:
            while self._round():
                pass
        except Exception as error:  # a bug here must not leave callers waiting for ever
            self._stop(EngineDeadError(f"the engine died: {type(error).__name__}: {error}"))
            log.exception("the engine thread died")
        self._fail_all()
        try:
            self._core.close()
        finally:
            self._over.set()

    def _fail_all(self) -> None:
        with self._changed:
            left = [*self._pending.values(), *(caller for _, caller in self._inbox)]
            left += self._turn_callers
        self._fail(left)

    def _fail(self, callers: Iterable[Caller]) -> None:
        assert self._end is not None
        kind, reason = type(self._end), str(self._end)
        _deliver([(caller, None, kind(reason)) for caller in callers], [])

    def _round(self) -> bool:
        """Carry out what was ordered and make one step; False when the engine is to stop."""
        self._note_progress()
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._end
                    or self._turn_callers  # also those of a ``sleep`` or ``wake`` under way
                    or (self._state is _State.AWAKE and (self._inbox or self._core.has_work))
                )
            )
            if self._end is not None:
                return False
            calls: list[_Call] = []
            rest, cancelled, self._cancelled = self._rest, self._cancelled, False
            if not rest:
                calls, self._inbox = self._inbox, []
        results = self._submit(calls)
        if cancelled:
            gone = [i for i, caller in self._pending.items() if caller.gone]
            self._core.cancel(gone)
            for i in gone:
                del self._pending[i]
                self._streams.pop(i, None)
        self._advance_sleep(rest)
        if self._state is not _State.ASLEEP:
            for answer in self._core.step():
                results.append((self._pending.pop(answer.id), answer.completion, answer.error))
                self._streams.pop(answer.id, None)
        updates: list[_StreamUpdate] = []  # tokens that streams have not got yet
        for number, tokens in self._core.drawn(self._streams).items() if self._streams else ():
            caller = self._streams[number]
            if len(tokens) > caller.sent:
                updates.append((caller, tuple(tokens[caller.sent :])))
                caller.sent = len(tokens)
        _deliver(results, updates)
        return True

    def _submit(self, calls: Sequence[_Call]) -> list[_Result]:
        """Submit requests and loads to the core; returns those that it refuses."""
        refused: list[_Result] = []
        for submit, caller in calls:
            if caller.gone:  # cancelled while the engine slept
                continue
            try:
                number = submit()
            except EngineError as error:
                refused.append((caller, None, error))
                continue
            self._pending[number] = caller
            if caller.on_tokens is not None:
                self._streams[number] = caller
        return refused

    def _advance_sleep(self, rest: bool) -> None:
        if rest and self._state is _State.AWAKE:
            self._core.drain()
            self._state = _State.DRAINING
        if rest and self._state is _State.DRAINING and not self._core.has_work:
            self._seen = (self._core.progress, time.monotonic())
            self._core.sleep()
            self._state = _State.ASLEEP
        if not rest and self._state is not _State.AWAKE:
            self._seen = (self._core.progress, time.monotonic())
            self._core.wake()
            self._state = _State.AWAKE
        self._note_progress()
        with self._changed:
            if self._rest != rest or self._state is _State.DRAINING:
                return
            callers, self._turn_callers = self._turn_callers, []
        _deliver([(caller, None, None) for caller in callers], [])

    def _note_progress(self) -> None:
        if not self._core.has_work:
            self._seen = None
        elif self._seen is None or self._seen[0] != self._core.progress:
            self._seen = (self._core.progress, time.monotonic())

    def _watch_worker(self) -> None:
        while not self._over.wait(self._stuck_after_s / 4):
            seen = self._seen
            if seen is None or time.monotonic() - seen[1] <= self._stuck_after_s:
                continue
            stack = sys._current_frames().get(self._thread.ident or 0)
            where = "".join(traceback.format_stack(stack)) if stack is not None else "nowhere"
            self._stop(
                EngineDeadError(
                    f"the engine is stuck: {len(self._pending)} requests under way, and no token "
                    f"for {self._stuck_after_s:g} s"
                )
            )
            log.error("%s; the engine thread is at\n%s", self._end, where)
            self._fail_all()
            self._over.set()


def _deliver(results: Iterable[_Result], updates: Iterable[_StreamUpdate]) -> None:
    # One wake-up per event loop, not per request.
    by_loop: dict[asyncio.AbstractEventLoop, tuple[list[_Result], list[_StreamUpdate]]] = (
        defaultdict(lambda: ([], []))
    )
    for result in results:
        by_loop[result[0].loop][0].append(result)
    for update in updates:
        by_loop[update[0].loop][1].append(update)
    for loop, batch in by_loop.items():
        # A loop that is closed by now has no callers left.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_call_back, *batch)


def _call_back(results: list[_Result], updates: list[_StreamUpdate]) -> None:
    for caller, tokens in updates:
        if not caller.gone and caller.on_tokens is not None:
            caller.on_tokens(tokens)
    for caller, completion, error in results:
        if not caller.gone:
            caller.gone = True
            caller.on_end(completion, error)


def _future_caller(on_tokens: OnTokens | None = None) -> tuple[_Future, Caller]:
    """A caller in this event loop, and the future that its end sets."""
    loop = asyncio.get_running_loop()
    future: _Future = loop.create_future()

    def finish(completion: Completion | None, error: EngineError | None) -> None:
        if future.done():  # cancelled before the answer arrived
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(completion)

    return future, Caller(loop, finish, on_tokens)
