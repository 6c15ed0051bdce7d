"""A generator in a thread of its own, behind the engine protocol, and a watch over it.

awake ─ sleep() ─▶ draining ─ nothing runs ─▶ asleep ─ wake() ─▶ awake
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, Protocol

from rlforge.engines.base import Caller, EngineStats, OnTokens, Question
from rlforge.engines.requests import Answer
from rlforge.errors import EngineDeadError, EngineError
from rlforge.system.utilisation import Span
from rlforge.types import Completion, PolicyRef, SamplingParams

log = logging.getLogger(__name__)


class StepGenerator(Protocol):
    """Continuous batching without threads: submit at any time, call ``step`` for answers.

    One thread makes all calls but ``stats`` and ``take_busy_spans``. What ``step`` raises ends
    the engine.
    """

    def submit(self, prompt: Sequence[int], params: SamplingParams, policy: PolicyRef) -> int:
        """Queues a request and returns its id; EngineError when it cannot be answered."""
        ...

    def load(self, policy: PolicyRef) -> int:
        """Queues the loading of ``policy`` and returns the id of its answer."""
        ...

    def cancel(self, ids: Iterable[int]) -> None:
        """Forgets requests: they get no answer and take no more room."""
        ...

    def drawn(self, ids: Collection[int]) -> Mapping[int, Sequence[int]]:
        """Tokens so far of those of ``ids`` that are being generated."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do."""
        ...

    @property
    def progress(self) -> int:
        """Grows with every token read or generated, and with every request that ends."""
        ...

    def step(self) -> list[Answer]:
        """One round of computing; returns what ended."""
        ...

    def drain(self) -> None:
        """Begins no request until ``wake``; those under way go on, and count as work."""
        ...

    def sleep(self) -> None:
        """Gives the device's memory back; called after ``drain``, without work."""
        ...

    def wake(self) -> None:
        """Undoes ``drain`` and ``sleep``."""
        ...

    def stats(self) -> EngineStats:
        """Counters since the start."""
        ...

    def take_busy_spans(self) -> list[Span]:
        """When it computed since the last call."""
        ...

    def close(self) -> None:
        """Gives back what it holds; called once, after the last step."""
        ...


_Future = asyncio.Future[Completion | None]
#: A caller and the submission that the worker makes for it, which returns the request's id.
_Call = tuple[Callable[[], int], Caller]
_Result = tuple[Caller, Completion | None, EngineError | None]
_StreamUpdate = tuple[Caller, Sequence[int]]


class ThreadedEngine:
    """Runs ``core`` in one worker thread (see ``rlforge.engines.base``).

    Its coroutines are called from any event loop, also from several; a cancelled ``generate`` or
    ``load`` takes its request out of the batch. stuck_after_s: seconds without progress on work
    under way, or on the way to sleep and back, after which the engine counts as dead.
    """

    def __init__(self, core: StepGenerator, *, stuck_after_s: float) -> None:
        self._core = core
        self._stuck_after_s = stuck_after_s
        self._changed = threading.Condition()
        self._inbox: list[_Call] = []
        self._someone_left = False
        self._end: EngineError | None = None
        self._pending: dict[int, Caller] = {}
        # Whether it is to sleep, who waits until it does (or is awake again), and how far it is.
        self._rest = False
        self._turn_callers: list[Caller] = []
        self._state: Literal["awake", "draining", "asleep"] = "awake"
        self._streams: dict[int, Caller] = {}
        # Progress so far and when it last grew; None while there is nothing to do.
        self._seen: tuple[int, float] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rlforge-engine", daemon=True)
        self._watch = threading.Thread(target=self._watch_worker, name="rlforge-watch", daemon=True)
        self._thread.start()
        self._watch.start()

    # ------------------------------------------------------------ any event loop

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        policy: PolicyRef,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """Continue ``prompt_token_ids`` with ``policy``, which is loaded if it is not resident.

        on_tokens: told of tokens after each step; those of the last step come with the completion.
        Raises EngineError for a prompt without room for an answer, a policy that does not load, a
        failed computation, and when the engine closes; EngineDeadError when it cannot go on.
        """
        future, caller = _future_caller(on_tokens)
        self.ask([(tuple(prompt_token_ids), params, policy, caller)])
        completion = await self._unless_cancelled(future, caller)
        assert completion is not None
        return completion

    def ask(self, questions: Iterable[Question]) -> None:
        """As ``generate`` for each of them, without a wait: their callers are told."""
        submit = self._core.submit
        self._put(
            [
                (partial(submit, prompt, params, policy), caller)
                for prompt, params, policy, caller in questions
            ]
        )

    def forget(self, callers: Iterable[Caller]) -> None:
        """Takes requests that nobody waits for out of the batch; their callers hear no more."""
        with self._changed:
            for caller in callers:
                caller.gone = self._someone_left = True

    async def load(self, policy: PolicyRef) -> None:
        """Make ``policy`` resident ahead of its first request. Raises EngineError as above."""
        future, caller = _future_caller()
        self._put([(partial(self._core.load, policy), caller)])
        await self._unless_cancelled(future, caller)

    async def sleep(self) -> None:
        """Finish what is being generated, then give memory back; what else is asked for waits.

        Raises EngineError as above. A ``wake`` meanwhile ends the wait.
        """
        await self._take_turn(rest=True)

    async def wake(self) -> None:
        """Go on with what waits. Raises EngineError as above."""
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
        """Counters since the start."""
        return self._core.stats()

    def take_busy_spans(self) -> list[Span]:
        """When it computed since the last call, in seconds of the wall clock."""
        return self._core.take_busy_spans()

    async def close(self) -> None:
        """Stop; requests under way fail with ``EngineError``."""
        self._stop(EngineError("the engine is closed"))
        # A worker that is stuck in a step never ends; it is left behind.
        await asyncio.to_thread(self._over.wait)

    def _put(self, calls: Sequence[_Call]) -> None:
        with self._changed:
            if self._end is None:
                self._inbox.extend(calls)
                self._changed.notify()
                return
        self._fail(caller for _, caller in calls)

    async def _unless_cancelled(self, future: _Future, caller: Caller) -> Completion | None:
        try:
            return await future
        except asyncio.CancelledError:
            self.forget([caller])
            raise

    # ------------------------------------------------------------ the worker thread

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
        """Takes what came in and makes one step; False when the engine is to stop."""
        self._note_progress()
        with self._changed:
            self._changed.wait_for(self._is_called)
            if self._end is not None:
                return False
            rest = self._rest
            inbox: list[_Call] = []
            if not rest:
                inbox, self._inbox = self._inbox, []
            someone_left, self._someone_left = self._someone_left, False
        done: list[_Result] = []
        for submit, caller in inbox:
            if caller.gone:  # while the engine slept
                continue
            try:
                number = submit()
            except EngineError as error:
                done.append((caller, None, error))
                continue
            self._pending[number] = caller
            if caller.on_tokens is not None:
                self._streams[number] = caller
        if someone_left:
            gone = [i for i, caller in self._pending.items() if caller.gone]
            self._core.cancel(gone)
            for i in gone:
                del self._pending[i]
                self._streams.pop(i, None)
        self._turn(rest)
        if self._state != "asleep":
            for answer in self._core.step():
                done.append((self._pending.pop(answer.id), answer.completion, answer.error))
                self._streams.pop(answer.id, None)
        _deliver(done, self._take_news() if self._streams else [])
        return True

    def _is_called(self) -> bool:
        """Whether there is something to do. Until a change of turns is over, its callers call."""
        work = self._state == "awake" and (self._inbox or self._core.has_work)
        return bool(self._end or self._turn_callers or work)

    def _turn(self, rest: bool) -> None:
        """One step on the way to sleep, or all of the way back."""
        if rest and self._state == "awake":
            self._core.drain()
            self._state = "draining"
        if rest and self._state == "draining" and not self._core.has_work:
            self._seen = (self._core.progress, time.monotonic())
            self._core.sleep()
            self._state = "asleep"
        if not rest and self._state != "awake":
            self._seen = (self._core.progress, time.monotonic())
            self._core.wake()
            self._state = "awake"
        self._note_progress()
        with self._changed:
            if self._rest != rest or self._state == "draining":
                return
            callers, self._turn_callers = self._turn_callers, []
        _deliver([(caller, None, None) for caller in callers], [])

    def _take_news(self) -> list[_StreamUpdate]:
        """Tokens that streams do not have yet."""
        news: list[_StreamUpdate] = []
        for number, tokens in self._core.drawn(self._streams).items():
            caller = self._streams[number]
            if len(tokens) > caller.told:
                news.append((caller, tuple(tokens[caller.told :])))
                caller.told = len(tokens)
        return news

    # ------------------------------------------------------------ the watch

    def _note_progress(self) -> None:
        if not self._core.has_work:
            self._seen = None
        elif self._seen is None or self._seen[0] != self._core.progress:
            self._seen = (self._core.progress, time.monotonic())

    def _watch_worker(self) -> None:
        """Declares the engine dead when work is under way and nothing comes of it."""
        while not self._over.wait(self._stuck_after_s / 4):
            seen = self._seen
            if seen is None or time.monotonic() - seen[1] <= self._stuck_after_s:
                continue
            stack = sys._current_frames().get(self._thread.ident or 0)
            where = "".join(traceback.format_stack(stack)) if stack is not None else "nowhere"
            self._stop(
                EngineDeadError(
                    f"the engine is stuck: {len(self._pending)} requests under way, and no token "
                    f"for engine.stuck_after_s={self._stuck_after_s:g} s"
                )
            )
            log.error("%s; the engine thread is at\n%s", self._end, where)
            self._fail_all()
            self._over.set()


def _deliver(results: Iterable[_Result], news: Iterable[_StreamUpdate]) -> None:
    """Hands both to the loops that wait for them: one wake-up per loop, not per request."""
    by_loop: dict[asyncio.AbstractEventLoop, tuple[list[_Result], list[_StreamUpdate]]] = (
        defaultdict(lambda: ([], []))
    )
    for result in results:
        by_loop[result[0].loop][0].append(result)
    for piece in news:
        by_loop[piece[0].loop][1].append(piece)
    for loop, batch in by_loop.items():
        # A loop that closed meanwhile has no callers left.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_tell, *batch)


def _tell(results: list[_Result], news: list[_StreamUpdate]) -> None:
    for caller, tokens in news:
        if not caller.gone and caller.on_tokens is not None:  # nor left meanwhile
            caller.on_tokens(tokens)
    for caller, completion, error in results:
        if not caller.gone:
            caller.gone = True
            caller.on_end(completion, error)


def _future_caller(on_tokens: OnTokens | None = None) -> tuple[_Future, Caller]:
    """A caller of this event loop, and the future that what it is told ends."""
    loop = asyncio.get_running_loop()
    future: _Future = loop.create_future()

    def settle(completion: Completion | None, error: EngineError | None) -> None:
        if future.done():  # cancelled while the answer was under way
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(completion)

    return future, Caller(loop, settle, on_tokens)
