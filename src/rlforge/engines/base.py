"""The one protocol behind which every generator sits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rlforge.errors import EngineError
from rlforge.system.utilisation import Span
from rlforge.types import Completion, PolicyRef, SamplingParams, value

#: Told the token ids drawn since it was last told, in the event loop of whoever asks.
OnTokens = Callable[[Sequence[int]], None]

#: Told of the end of what was asked: of the completion, or of the reason why there is none.
OnEnd = Callable[[Completion | None, EngineError | None], None]


@dataclass(slots=True, eq=False)
class Caller:
    """Who asked for something, and hears of it in ``loop``: of tokens as they come, and of the end.

    told: how many tokens it heard of. gone: it hears no more.
    """

    loop: asyncio.AbstractEventLoop
    on_end: OnEnd
    on_tokens: OnTokens | None = None
    told: int = 0
    gone: bool = False


#: What ``generate`` is asked for, and who hears of it.
Question = tuple[tuple[int, ...], SamplingParams, PolicyRef, Caller]


@value
class EngineStats:
    """A look at an engine. tokens and busy_s count from its start; rates are the caller's work.

    queued: requests waiting for a place; running: sequences being generated now.
    busy_s: seconds in which the engine computed. resident: uids of the policies it holds.
    """

    queued: int
    running: int
    requests: int
    prompt_tokens: int
    generated_tokens: int
    busy_s: float
    resident: tuple[str, ...]


class Generator(Protocol):
    """Token ids in, token ids and their log-probabilities out.

    Requests may arrive at any time and are answered as they finish; many policies may be asked
    for at once. Failures of one request raise ``EngineError`` from that request alone.
    """

    async def generate(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, policy: PolicyRef
    ) -> Completion:
        """Continue ``prompt_token_ids`` with ``policy``, which is loaded if it is not resident."""
        ...


class Engine(Generator, Protocol):
    """A generator with a life of its own: policies to hold, work to report, an end."""

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        policy: PolicyRef,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """As ``Generator.generate``; ``on_tokens`` hears of tokens while they are drawn.

        The last ones come with the completion only, which holds them all. A request that is asked
        again because its engine died begins anew; with ``params.seed`` it draws the same tokens.
        """
        ...

    async def load(self, policy: PolicyRef) -> None:
        """Make ``policy`` resident ahead of its first request."""
        ...

    def stats(self) -> EngineStats:
        """Counters since the start."""
        ...

    def take_busy_spans(self) -> list[Span]:
        """When it computed since the last call, in seconds of the wall clock."""
        ...

    async def close(self) -> None:
        """Stop; requests under way fail with ``EngineError``."""
        ...


class LocalEngine(Engine, Protocol):
    """An engine of this process: many requests at one call, and a device left for a while."""

    def ask(self, questions: Iterable[Question]) -> None:
        """As ``generate`` for each of them, without a wait: their callers are told."""
        ...

    def forget(self, callers: Iterable[Caller]) -> None:
        """Takes requests that nobody waits for out of the batch; their callers hear no more."""
        ...

    async def sleep(self) -> None:
        """Give the device's memory back until ``wake``.

        What is being generated is finished first; all else that is asked for waits.
        """
        ...

    async def wake(self) -> None:
        """Go on with what waits; nothing happens in an engine that is awake."""
        ...
