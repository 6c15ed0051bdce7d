"""The protocols of engines, their requests and answers, and the check of a request."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from rlforge.errors import EngineError, PromptTooLongError
from rlforge.system.utilisation import Span
from rlforge.types import Completion, PolicyRef, SamplingParams, value

#: Called in the caller's event loop with the token ids drawn since the last call.
OnTokens = Callable[[Sequence[int]], None]

#: Called once at the end of a request, with its completion or with the reason why there is none.
OnEnd = Callable[[Completion | None, EngineError | None], None]


@dataclass(slots=True, eq=False)
class Caller:
    """The callbacks of one request, which run in ``loop``.

    Attributes:
        sent: Number of tokens that ``on_tokens`` has got.
        gone: No more callbacks are made.
    """

    loop: asyncio.AbstractEventLoop
    on_end: OnEnd
    on_tokens: OnTokens | None = None
    sent: int = 0
    gone: bool = False


#: The arguments of ``generate``, and its callbacks.
Question = tuple[tuple[int, ...], SamplingParams, PolicyRef, Caller]


@value
class Answer:
    """How request ``id`` ended: with a completion or an error.

    Both are None for a policy that ``load`` made resident.
    """

    id: int
    completion: Completion | None = None
    error: EngineError | None = None


@value
class EngineStats:
    """Counters of an engine since its start, and its load now.

    Attributes:
        queued: Requests waiting for a place.
        running: Sequences being generated now.
        cached_tokens: Prompt tokens that were not read, as their keys and values were kept.
        busy_s: Seconds in which the engine computed.
        sequence_s: The same, summed over sequences.
        resident: Uids of the policies that it holds.
    """

    queued: int
    running: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    busy_s: float
    sequence_s: float
    resident: tuple[str, ...]

    @classmethod
    def total(cls, stats: Iterable[EngineStats]) -> EngineStats:
        """The sum over several engines."""
        each = list(stats)
        names = {field.name for field in dataclasses.fields(cls)} - {"resident"}
        counters = {name: sum(getattr(one, name) for one in each) for name in names}
        resident = {uid for one in each for uid in one.resident}
        return cls(**counters, resident=tuple(sorted(resident)))

    @property
    def read_tokens(self) -> int:
        """Prompt tokens that were computed."""
        return self.prompt_tokens - self.cached_tokens


class Generator(Protocol):
    """Token ids in, token ids and their log-probabilities out.

    Requests may arrive at any time, for many policies at once, and are answered as they finish. A
    failed request raises ``EngineError`` to its own caller only.
    """

    async def generate(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, policy: PolicyRef
    ) -> Completion:
        """Continue ``prompt_token_ids`` with ``policy``, which is loaded if it is not resident."""


class Engine(Generator, Protocol):
    """A generator that holds policies, reports its work and can be closed.

    Example: see ``rlforge.engines.transformers.TransformersEngine``.
    """

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        policy: PolicyRef,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """Answer as ``Generator.generate``; ``on_tokens`` gets tokens while they are drawn.

        The last tokens come with the completion only. A request that is repeated because its engine
        died starts over, with ``params.seed`` to the same tokens.
        """

    async def load(self, policy: PolicyRef) -> None:
        """Make ``policy`` resident ahead of its first request."""

    def stats(self) -> EngineStats:
        """Counters since the start, and the load now."""

    def take_busy_spans(self) -> list[Span]:
        """The spans of wall-clock time (seconds) in which it computed since the last call."""

    async def close(self) -> None:
        """Stop; requests under way fail with ``EngineError``."""


class LocalEngine(Engine, Protocol):
    """An engine of this process: takes many requests in one call, and can release its device."""

    #: Which engine ``engine=auto`` has chosen, and why; empty otherwise.
    about: str = ""

    def ask(self, questions: Iterable[Question]) -> None:
        """Ask each question as ``generate``, without waiting: callbacks deliver the answers."""

    def forget(self, callers: Iterable[Caller]) -> None:
        """Cancel the requests of ``callers``, which get no more callbacks."""

    async def sleep(self) -> None:
        """Finish running sequences, then release the device's memory until ``wake``."""

    async def wake(self) -> None:
        """Continue with the requests that wait."""


def check_request(
    prompt: Sequence[int],
    params: SamplingParams,
    policy: PolicyRef,
    *,
    max_model_len: int,
    vocab_size: int,
) -> int:
    """The most tokens that the answer may have; ``max_model_len`` counts prompt and answer.

    Raises EngineError for a request that cannot be answered, PromptTooLongError where its prompt
    leaves no room for an answer.

    Example:
        >>> policy = PolicyRef(uid="step-0", kind="checkpoint")
        >>> params = SamplingParams(max_tokens=99)
        >>> check_request([1, 2, 3], params, policy, max_model_len=64, vocab_size=50)
        61
    """
    if policy.kind != "checkpoint":
        raise EngineError(
            f"policy {policy.uid!r} is of kind {policy.kind!r}; this engine answers for "
            "checkpoints of its own model"
        )
    if not prompt:
        raise EngineError(f"empty prompt for policy {policy.uid!r}")
    if len(prompt) >= max_model_len:
        raise PromptTooLongError(
            f"prompt of {len(prompt)} tokens is {len(prompt) - max_model_len + 1} too long: "
            f"engine.max_model_len {max_model_len} holds prompt and answer; raise it or shorten "
            "the observation"
        )
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise EngineError(
            f"prompt holds token {max(prompt) if min(prompt) >= 0 else min(prompt)}; the model "
            f"knows 0 to {vocab_size - 1}: was it encoded with another tokenizer?"
        )
    if params.max_tokens < 1:
        raise EngineError(f"max_tokens is {params.max_tokens}; at least 1 is needed")
    if params.temperature < 0:
        raise EngineError(f"temperature is {params.temperature}; it must be 0 or more")
    if not 0 < params.top_p <= 1:
        raise EngineError(f"top_p is {params.top_p}; it must be above 0 and at most 1")
    if params.top_k < 0:
        raise EngineError(f"top_k is {params.top_k}; it must be 0 (all tokens) or more")
    if not 0 <= params.min_p < 1:
        raise EngineError(f"min_p is {params.min_p}; it must be at least 0 and below 1")
    return min(params.max_tokens, max_model_len - len(prompt))


def decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Ids to text without special tokens."""

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    # Short answers repeat.
    short = lru_cache(maxsize=4096)(decode)
    return lambda ids: short(tuple(ids)) if len(ids) <= 3 else decode(ids)
