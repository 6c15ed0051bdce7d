"""Engines as actors, which exchange requests and answers in bundles with their clients.

The client is ``rlforge.run.actors.engine_client``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from functools import partial
from uuid import uuid4

import ray

from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.engines.base import Caller, EngineStats, LocalEngine
from rlforge.engines.registry import make_engine
from rlforge.errors import EngineDeadError, EngineError, PolicyLoadError, RlforgeError
from rlforge.rollout.lineup import as_played_by, other_models
from rlforge.run.actors.bundle import Bundle
from rlforge.run.actors.folder import RunFolder
from rlforge.run.actors.process import begin, end, turn_file
from rlforge.system.garbage import freeze_gc
from rlforge.system.packages import statistics_hidden
from rlforge.system.utilisation import Span
from rlforge.types import Completion, PolicyRef, SamplingParams, value

log = logging.getLogger(__name__)


@value
class Request:
    """One request to an engine actor.

    ``ticket`` is unique for its client; ``stream`` sends tokens while they are drawn.
    """

    ticket: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    policy: PolicyRef
    stream: bool = False


@value
class EngineReport:
    """Counts of an engine actor since the start of its process, which has a new name each time.

    ``spans`` are times of the wall clock in which it computed since the last report.
    """

    process: str
    stats: EngineStats
    spans: tuple[Span, ...]

    def restarted_since(self, before: EngineReport | None) -> bool:
        """Whether the engine was restarted after the report ``before``."""
        return before is not None and before.process != self.process

    def throughput(self, before: EngineReport | None, seconds: float) -> dict[str, float]:
        """Load, tokens so far, and tokens a second in the ``seconds`` since ``before``.

        ``read_tok_s`` are prompt tokens that were computed, ``cached_tok_s`` prompt tokens whose
        keys and values were kept, ``sequences`` the mean number generated at the same time.
        """
        names = ("generated_tokens", "read_tokens", "cached_tokens", "sequence_s")
        counted = dict.fromkeys(names, 0.0)
        # A new process counts from 0, so that nothing is subtracted.
        if before is not None and not self.restarted_since(before):
            counted = {name: getattr(before.stats, name) for name in counted}
        rates = {
            name: (getattr(self.stats, name) - number) / max(seconds, 1e-9)
            for name, number in counted.items()
        }
        return {
            "queued": self.stats.queued,
            "running": self.stats.running,
            "tokens": self.stats.generated_tokens,
            "tok_s": rates["generated_tokens"],
            "read_tok_s": rates["read_tokens"],
            "cached_tok_s": rates["cached_tokens"],
            "sequences": rates["sequence_s"],
        }


#: A ticket with its completion or error, or with its next tokens.
Answered = tuple[int, Completion | EngineError | tuple[int, ...]]


class EngineActor:
    """An engine whose clients send requests and collect answers in bundles."""

    _engine: LocalEngine

    def __init__(
        self, config: PolicyConfig, hardware: HardwareConfig, name: str, folder: RunFolder
    ) -> None:
        begin(name, folder.open())
        self._folder = folder
        self._config, self._hardware = config, hardware
        self._process = uuid4().hex
        self._loaded = asyncio.Event()
        # An engine that is restarted in the learner's turn has no room, and loads at ``wake``.
        if not turn_file(folder.path).exists():
            self._load_model()
        self._outbox: dict[str, list[Answered]] = {}
        self._filled: dict[str, asyncio.Event] = {}
        self._callers: dict[str, dict[int, Caller]] = {}
        #: Policies with the places of their files on this node.
        self._here: dict[PolicyRef, PolicyRef] = {}

    def _load_model(self) -> None:
        hardware = self._hardware
        with statistics_hidden():
            self._engine = make_engine(
                self._config,
                device=hardware.device,
                threads=hardware.threads,
                gpus=hardware.engine_gpus,
                others=as_played_by(self._config, other_models(self._config)),
            )
        # What is loaded stays: no garbage collection need look at it again.
        freeze_gc()
        log.info("the engine is loaded")
        self._loaded.set()

    async def submit(self, client: str, requests: Sequence[Request]) -> None:
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
        here = {
            policy: self._here.get(policy) or await self._fetched(client, policy, requests)
            for policy in {request.policy for request in requests}
        }
        self._engine.ask(
            (request.prompt_token_ids, request.params, policy, callers[request.ticket])
            for request in requests
            # A request may have been cancelled, or have failed, meanwhile.
            if request.ticket in callers and (policy := here[request.policy]) is not None
        )

    async def _fetched(
        self, client: str, policy: PolicyRef, requests: Sequence[Request]
    ) -> PolicyRef | None:
        """``policy`` with its files on this node; without any, its requests fail and it is None."""
        try:
            found = self._here[policy] = await self._folder.policy(policy)
            return found
        except (RlforgeError, ray.exceptions.RayError) as error:
            # Ray wraps the error that says what to mend.
            own = getattr(error, "cause", None) or error
            for request in requests:
                if request.policy == policy and request.ticket in self._callers[client]:
                    self._end(client, request.ticket, None, PolicyLoadError(str(own)))
            return None

    async def cancel(self, client: str, tickets: Sequence[int]) -> None:
        callers = self._callers.get(client, {})
        left = [callers.pop(ticket) for ticket in tickets if ticket in callers]
        if left and self._loaded.is_set():
            self._engine.forget(left)

    def _end(
        self, client: str, ticket: int, completion: Completion | None, error: EngineError | None
    ) -> None:
        if isinstance(error, EngineDeadError):
            # Ray restarts a process that ended, and clients repeat their requests.
            end(error)
        del self._callers[client][ticket]
        answer = completion if error is None else error
        assert answer is not None
        self._put(client, ticket, answer)

    def _put(
        self, client: str, ticket: int, what: Completion | EngineError | Sequence[int]
    ) -> None:
        answer = what if isinstance(what, Completion | EngineError) else tuple(what)
        self._outbox.setdefault(client, []).append((ticket, answer))
        self._event(client).set()

    async def collect(self, client: str) -> Bundle:
        """``Answered`` of requests of ``client``, as soon as there are some."""
        event = self._event(client)
        await event.wait()
        if self._filled[client] is not event:
            # The client lost this call before ``in_hand``, and would lose its answers, too.
            return Bundle([])
        event.clear()
        return Bundle(self._outbox.pop(client, []))

    async def in_hand(self, client: str) -> list[int]:
        """Tickets of ``client`` that this process works on or has answers to."""
        # The client has lost its connection: an earlier ``collect`` must not take answers along.
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
        await _unless_dead(self._engine.load(await self._folder.policy(policy)))

    async def sleep(self) -> None:
        if self._loaded.is_set():
            await _unless_dead(self._engine.sleep())

    async def wake(self) -> None:
        if self._loaded.is_set():
            await _unless_dead(self._engine.wake())
        else:
            self._load_model()

    async def report(self) -> EngineReport:
        await self._loaded.wait()
        spans = tuple(self._engine.take_busy_spans())
        return EngineReport(process=self._process, stats=self._engine.stats(), spans=spans)

    async def about(self) -> str:
        """Text on which engine ``engine=auto`` has taken, and why."""
        await self._loaded.wait()
        # Engines of users may have no ``about``.
        return getattr(self._engine, "about", "")

    async def close(self) -> None:
        if self._loaded.is_set():
            await self._engine.close()


async def _unless_dead(call: Awaitable[None]) -> None:
    try:
        await call
    except EngineDeadError as error:
        end(error)
