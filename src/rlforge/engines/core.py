"""The core of an engine: requests that wait for their policy version, and the steps that answer.

``batching.BatchGenerator`` computes with transformers, ``vllm.VllmGenerator`` with vLLM.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from rlforge.engines.base import Answer, EngineStats, check_request
from rlforge.engines.versions import PolicyKey, Versions
from rlforge.errors import EngineError
from rlforge.system.utilisation import Span, WorkLog
from rlforge.types import Completion, FinishReason, PolicyRef, SamplingParams


@dataclass(slots=True, eq=False, kw_only=True)
class EngineRequest:
    """A request of ``generate``.

    Attributes:
        id: Grows in order of arrival.
        seed: Draws its tokens.
        limit: Most tokens of the answer.
    """

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    policy: PolicyRef
    seed: int
    limit: int


R = TypeVar("R", bound=EngineRequest)


class WaitingRoom(Generic[R]):
    """Waiting requests and loads by policy version; first come, first served.

    One thread calls its methods; any thread may call ``len``, the number of waiting requests.
    """

    def __init__(self, versions: Versions[Any]) -> None:
        self._versions = versions
        self._requests: dict[PolicyKey, deque[R]] = {}
        self._loads: dict[PolicyKey, list[int]] = {}
        self._leaving: set[PolicyKey] = set()
        #: Whether requests can be added, and none is admitted.
        self.closed = False

    def __len__(self) -> int:
        return sum(len(queue) for queue in list(self._requests.values()))

    @property
    def has_work(self) -> bool:
        """Whether a request or a load waits that may be admitted."""
        return not self.closed and bool(self._requests or self._loads)

    def add(self, key: PolicyKey, request: R) -> None:
        self._requests.setdefault(key, deque()).append(request)

    def add_load(self, key: PolicyKey, ticket: int) -> None:
        """Queue the load of ``key``; ``ticket`` is answered once it is resident."""
        self._loads.setdefault(key, []).append(ticket)

    def cancel(self, gone: Collection[int]) -> None:
        """Forget requests and loads by id."""
        queues = {k: deque(r for r in q if r.id not in gone) for k, q in self._requests.items()}
        self._requests = {key: queue for key, queue in queues.items() if queue}
        loads = {k: [i for i in ids if i not in gone] for k, ids in self._loads.items()}
        self._loads = {key: ids for key, ids in loads.items() if ids}

    def place_policies(self, running: Collection[PolicyKey]) -> list[Answer]:
        """Make the policies of waiting requests and loads resident, in order of arrival.

        Returns the loads that are done, and the requests that end because their policy does not
        load. ``running`` are the versions that cannot be replaced now.
        """
        if self.closed:
            return []
        asked = {key: tickets[0] for key, tickets in self._loads.items()}
        for key, queue in self._requests.items():
            asked[key] = min(queue[0].id, asked.get(key, queue[0].id))
        busy = set(running)
        leaving: list[PolicyKey] = []
        answers: list[Answer] = []
        for key in sorted(asked, key=lambda k: asked[k]):
            try:
                if not self._versions.load(key, busy):
                    # The least recently used version gets no new requests, so that its running ones
                    # end and no policy waits for ever.
                    in_use = [k for k in self._versions.resident if k in running]
                    leaving += [k for k in in_use if k not in leaving][:1]
                    continue
            except EngineError as error:
                failed = [r.id for r in self._requests.pop(key, ())] + self._loads.pop(key, [])
                answers += [Answer(id=i, error=error) for i in failed]
                continue
            busy.add(key)
            if tickets := self._loads.pop(key, []):
                self._versions.use(key)  # the next load must not replace it
                answers += [Answer(id=ticket) for ticket in tickets]
        self._leaving = set(leaving)
        return answers

    def admit(
        self,
        room: int,
        prompt_tokens: int,
        count: Callable[[PolicyKey, R], int] = lambda key, request: len(request.prompt),
    ) -> list[tuple[PolicyKey, R]]:
        """Take up to ``room`` requests of resident policies, oldest first.

        Stops once ``prompt_tokens`` are to be read in all; ``count``, called once for each request
        that is taken, says how many it has to read.
        """
        if self.closed:
            return []
        ready = {
            key: queue
            for key, queue in self._requests.items()
            if key not in self._leaving and self._versions.is_resident(key)
        }
        admitted: list[tuple[PolicyKey, R]] = []
        while ready and room > 0 and prompt_tokens > 0:
            key = min(ready, key=lambda k: ready[k][0].id)
            request = ready[key].popleft()
            admitted.append((key, request))
            room -= 1
            prompt_tokens -= count(key, request)
            if not ready[key]:
                del ready[key], self._requests[key]
        return admitted


class StepGenerator(ABC, Generic[R]):
    """Continuous batching without threads: submit at any time, call ``step`` for answers.

    One thread makes all calls but ``stats`` and ``take_busy_spans``, which any thread may make.

    Args:
        versions: The policies that it holds.
        decode: Token ids to text.
        max_model_len: Most tokens of prompt and answer.
        vocab_size: Ids at or above it are refused.
        seed: Draws those of requests without one.
    """

    #: Seeds of requests are taken modulo this.
    seed_range: ClassVar[int] = 2**64

    def __init__(
        self,
        versions: Versions[Any],
        *,
        decode: Callable[[Sequence[int]], str],
        max_model_len: int,
        vocab_size: int,
        seed: int,
    ) -> None:
        self._versions = versions
        self._waiting: WaitingRoom[R] = WaitingRoom(versions)
        self._decode, self._max_model_len, self._vocab_size = decode, max_model_len, vocab_size
        self._seeds = np.random.default_rng(seed)
        self._ids = itertools.count(1)
        self._requests = self._ended = 0
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = 0
        self._busy_s, self._sequence_s, self._work = 0.0, 0.0, WorkLog()

    def submit(self, prompt: Sequence[int], params: SamplingParams, policy: PolicyRef) -> int:
        """Queue a request and return its id. Raises EngineError when it cannot be answered."""
        limit = check_request(
            prompt, params, policy, max_model_len=self._max_model_len, vocab_size=self._vocab_size
        )
        given = params.seed
        seed = int(self._seeds.integers(2**63)) if given is None else given % self.seed_range
        request = self._new_request(
            id=next(self._ids),
            prompt=tuple(prompt),
            params=params,
            policy=policy,
            seed=seed,
            limit=limit,
        )
        self._waiting.add(PolicyKey.of(policy), request)
        return request.id

    def load(self, policy: PolicyRef) -> int:
        """Queue the loading of ``policy`` and return the id of its answer."""
        ticket = next(self._ids)
        self._waiting.add_load(PolicyKey.of(policy), ticket)
        return ticket

    def cancel(self, ids: Iterable[int]) -> None:
        """Forget requests: they get no answer and take no more room."""
        gone = set(ids)
        self._waiting.cancel(gone)
        self._drop(gone)

    @abstractmethod
    def drawn(self, ids: Collection[int]) -> Mapping[int, Sequence[int]]:
        """Tokens so far of the running requests among ``ids``."""

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do."""
        return self._generates() or self._waiting.has_work

    @property
    def progress(self) -> int:
        """Number that grows with every token read or generated, and every request that ends."""
        return self._ended + self._prompt_tokens + self._generated_tokens

    def stats(self) -> EngineStats:
        return EngineStats(
            queued=len(self._waiting),
            running=self._running(),
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            busy_s=self._busy_s,
            sequence_s=self._sequence_s,
            resident=tuple(key.uid for key in self._versions.resident),
        )

    def take_busy_spans(self) -> list[Span]:
        return self._work.take()

    def step(self) -> list[Answer]:
        """Load policies, begin requests, draw a token for all that run; returns what ended.

        An exception means that the engine cannot go on.
        """
        started = time.time()
        answers = self._compute()
        ended = time.time()
        self._ended += len(answers)
        self._busy_s += ended - started
        self._sequence_s += (ended - started) * (len(answers) + self._running())
        self._work.add((started, ended))
        return answers

    def drain(self) -> None:
        """Begin no request until ``wake``; running ones go on, and ``has_work`` counts them."""
        self._waiting.closed = True

    @abstractmethod
    def sleep(self) -> None:
        """Release the device's memory; called after ``drain``, without work."""

    @abstractmethod
    def wake(self) -> None:
        """Undo ``drain`` and ``sleep``."""

    @abstractmethod
    def close(self) -> None:
        """Release all it holds; called once, after the last step."""

    @abstractmethod
    def _new_request(self, **fields: Any) -> R:
        """A request with the fields of ``EngineRequest``."""

    @abstractmethod
    def _drop(self, gone: set[int]) -> None:
        """Forget running requests."""

    @abstractmethod
    def _generates(self) -> bool:
        """Whether requests are running."""

    @abstractmethod
    def _running(self) -> int:
        """How many requests are running."""

    @abstractmethod
    def _compute(self) -> list[Answer]:
        """Take a step, and count tokens."""

    def _completed(
        self,
        request: EngineRequest,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        finish_reason: FinishReason,
        model_logprobs: Sequence[float] = (),
    ) -> Answer:
        self._requests += 1
        completion = Completion(
            text=self._decode(token_ids),
            prompt_token_ids=request.prompt,
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs),
            finish_reason=finish_reason,
            policy_uid=request.policy.uid,
            policy_version=request.policy.version,
            model_logprobs=tuple(model_logprobs),
        )
        return Answer(id=request.id, completion=completion)
