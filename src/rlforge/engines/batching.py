"""Continuous batching without threads: submit requests at any time, call ``step`` for answers.

A step first admits waiting requests (their prompts are read in batches of similar length and
give their first token), then draws one more token for everything that runs. Each policy version
has its own running batch; they take turns within a step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from rlforge.engines.base import EngineStats
from rlforge.engines.group import Generation, Group
from rlforge.engines.policies import PolicyKey, PolicyStore
from rlforge.errors import EngineError
from rlforge.types import Completion, PolicyRef, SamplingParams, value
from rlforge.utilisation import Span, WorkLog


@value
class Answer:
    """What became of request ``id``: a completion, or the error that it ended with.

    Both are None for a policy that was asked for with ``load`` and is now resident.
    """

    id: int
    completion: Completion | None = None
    error: EngineError | None = None


@value
class BatchLimits:
    """Sizes of one generator.

    max_sequences: generated at the same time, over all policies. max_model_len: tokens of prompt
    and answer. step_prompt_tokens: prompt tokens read per step, so that long prompts do not hold
    up running answers. batch_prompt_tokens: padded prompt tokens of one forward pass.
    """

    max_sequences: int
    max_model_len: int
    step_prompt_tokens: int = 8192
    batch_prompt_tokens: int = 8192


class BatchGenerator:
    """The engine's core: one thread calls it, nothing in it waits.

    decode: token ids to text. vocab_size: ids at or above it are refused. seed: of the draws of
    requests that bring none.
    """

    def __init__(
        self,
        policies: PolicyStore,
        limits: BatchLimits,
        *,
        decode: Callable[[Sequence[int]], str],
        vocab_size: int,
        pad_id: int,
        seed: int,
    ) -> None:
        self._policies = policies
        self._limits = limits
        self._decode = decode
        self._vocab_size = vocab_size
        self._pad_id = pad_id
        self._seeds = np.random.default_rng(seed)
        self._next_id = 0
        self._waiting: dict[PolicyKey, deque[Generation]] = {}
        self._loads: dict[PolicyKey, list[int]] = {}
        self._groups: dict[PolicyKey, Group] = {}
        self._stop_sets: dict[tuple[int, ...], frozenset[int]] = {}
        self._requests = self._prompt_tokens = self._generated_tokens = 0
        self._busy_s = 0.0
        self._work = WorkLog()

    # ------------------------------------------------------------ requests

    def submit(self, prompt: Sequence[int], params: SamplingParams, policy: PolicyRef) -> int:
        """Queues a request and returns its id. Raises EngineError when it cannot be answered."""
        room = self._check(prompt, params, policy)
        stop = self._stop_sets.get(params.stop_token_ids)
        if stop is None:
            stop = self._stop_sets[params.stop_token_ids] = frozenset(params.stop_token_ids)
        seed = params.seed
        generation = Generation(
            id=self._take_id(),
            prompt=tuple(prompt),
            params=params,
            policy=policy,
            seed=int(self._seeds.integers(2**63)) if seed is None else seed % 2**64,
            limit=min(params.max_tokens, room),
            stop=stop,
        )
        self._waiting.setdefault(PolicyKey.of(policy), deque()).append(generation)
        return generation.id

    def load(self, policy: PolicyRef) -> int:
        """Queues the loading of ``policy`` and returns the id of its answer."""
        ticket = self._take_id()
        self._loads.setdefault(PolicyKey.of(policy), []).append(ticket)
        return ticket

    def cancel(self, ids: Iterable[int]) -> None:
        """Forgets requests: they get no answer and take no more room."""
        gone = set(ids)
        queues = {k: deque(g for g in q if g.id not in gone) for k, q in self._waiting.items()}
        self._waiting = {key: queue for key, queue in queues.items() if queue}
        loads = {k: [i for i in ids if i not in gone] for k, ids in self._loads.items()}
        self._loads = {key: ids for key, ids in loads.items() if ids}
        for group in self._groups.values():
            group.drop(gone)

    def _check(self, prompt: Sequence[int], params: SamplingParams, policy: PolicyRef) -> int:
        """Tokens that the answer may have; raises EngineError for what cannot be answered."""
        if policy.kind != "checkpoint":
            raise EngineError(
                f"policy {policy.uid!r} is of kind {policy.kind!r}; this engine answers for "
                "checkpoints of its own model"
            )
        if not prompt:
            raise EngineError(f"empty prompt for policy {policy.uid!r}")
        limit = self._limits.max_model_len
        if len(prompt) >= limit:
            raise EngineError(
                f"prompt of {len(prompt)} tokens is {len(prompt) - limit + 1} too long: "
                f"engine.max_model_len {limit} holds prompt and answer; raise it or shorten the "
                "observation"
            )
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            raise EngineError(
                f"prompt holds token {max(prompt) if min(prompt) >= 0 else min(prompt)}; the model "
                f"knows 0 to {self._vocab_size - 1}: was it encoded with another tokenizer?"
            )
        if params.max_tokens < 1:
            raise EngineError(f"max_tokens is {params.max_tokens}; at least 1 is needed")
        if params.temperature < 0:
            raise EngineError(f"temperature is {params.temperature}; it must be 0 or more")
        if not 0 < params.top_p <= 1:
            raise EngineError(f"top_p is {params.top_p}; it must be above 0 and at most 1")
        return limit - len(prompt)

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # ------------------------------------------------------------ state

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._waiting or self._loads or self._groups)

    def stats(self) -> EngineStats:
        """Counters since the start; may be called from another thread."""
        return EngineStats(
            queued=sum(len(queue) for queue in list(self._waiting.values())),
            running=self._running(),
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            busy_s=self._busy_s,
            resident=tuple(key.uid for key in self._policies.resident),
        )

    def take_busy_spans(self) -> list[Span]:
        """When it computed since the last call; may be called from another thread."""
        return self._work.take()

    def _running(self) -> int:
        return sum(len(group.running) for group in list(self._groups.values()))

    # ------------------------------------------------------------ stepping

    def step(self) -> list[Answer]:
        """One round: load, draw a token for all that run, read new prompts. Returns what ended.

        A policy that does not load, or a forward pass that fails, ends the requests that needed
        it with EngineError and no others.
        """
        started = time.time()
        answers: list[Answer] = []
        draining = self._place_policies(answers)
        admitted = self._admit(draining)
        with torch.inference_mode():
            for group in self._groups.values():
                answers += self._run(group.running, group.step)
            for key, generations in admitted.items():
                group = self._groups.get(key) or Group(self._policies.use(key), self._pad_id)
                self._groups[key] = group
                for batch in self._prompt_batches(generations):
                    answers += self._run(batch, partial(group.prefill, batch))
                    self._prompt_tokens += sum(len(g.prompt) for g in batch)
        self._groups = {key: group for key, group in self._groups.items() if group.running}
        ended = time.time()
        self._busy_s += ended - started
        self._work.add((started, ended))
        return answers

    def fail_all(self, error: EngineError) -> list[Answer]:
        """Ends every request, waiting or running, with ``error``."""
        ids = [g.id for queue in self._waiting.values() for g in queue]
        ids += [g.id for group in self._groups.values() for g in group.running]
        ids += [ticket for tickets in self._loads.values() for ticket in tickets]
        self._waiting, self._groups, self._loads = {}, {}, {}
        return [Answer(id=i, error=error) for i in ids]

    def _place_policies(self, answers: list[Answer]) -> set[PolicyKey]:
        """Makes the policies that requests wait for resident, in order of arrival.

        Where every place is in use, the least recently used version takes no new requests until
        its running ones are done; then it leaves. So no policy waits for ever. Returns the
        versions that are to leave.
        """
        asked = {key: tickets[0] for key, tickets in self._loads.items()}
        for key, queue in self._waiting.items():
            asked[key] = min(queue[0].id, asked.get(key, queue[0].id))
        busy = set(self._groups)
        leaving: list[PolicyKey] = []
        for key in sorted(asked, key=lambda k: asked[k]):
            try:
                if not self._policies.load(key, busy):
                    in_use = [k for k in self._policies.resident if k in self._groups]
                    leaving += [k for k in in_use if k not in leaving][:1]
                    continue
            except EngineError as error:
                failed = [g.id for g in self._waiting.pop(key, ())] + self._loads.pop(key, [])
                answers += [Answer(id=i, error=error) for i in failed]
                continue
            busy.add(key)
            answers += [Answer(id=ticket) for ticket in self._loads.pop(key, [])]
        return set(leaving)

    def _admit(self, draining: set[PolicyKey]) -> dict[PolicyKey, list[Generation]]:
        """Takes waiting requests, oldest first, while there is room for them in this step."""
        room = self._limits.max_sequences - self._running()
        tokens = self._limits.step_prompt_tokens
        ready = {
            key: queue
            for key, queue in self._waiting.items()
            if key not in draining and self._policies.is_resident(key)
        }
        admitted: dict[PolicyKey, list[Generation]] = {}
        while ready and room > 0 and tokens > 0:
            key = min(ready, key=lambda k: ready[k][0].id)
            generation = ready[key].popleft()
            admitted.setdefault(key, []).append(generation)
            room -= 1
            tokens -= len(generation.prompt)
            if not ready[key]:
                del ready[key], self._waiting[key]
        return admitted

    def _prompt_batches(self, generations: list[Generation]) -> Iterator[list[Generation]]:
        """Batches of similar length, each within ``batch_prompt_tokens`` with its padding."""
        batch: list[Generation] = []
        for generation in sorted(generations, key=lambda g: len(g.prompt)):
            width = len(generation.prompt)
            if batch and (len(batch) + 1) * width > self._limits.batch_prompt_tokens:
                yield batch
                batch = []
            batch.append(generation)
        if batch:
            yield batch

    def _run(
        self, generations: Sequence[Generation], forward: Callable[[], list[Generation]]
    ) -> list[Answer]:
        """Answers of a forward pass; when it fails, ``generations`` end with its error."""
        try:
            ended = forward()
        except Exception as error:  # whatever a model raises; its requests end here, with it
            for group in self._groups.values():
                group.drop({g.id for g in generations})
            reason = f"generation failed: {type(error).__name__}: {error}"
            return [Answer(id=g.id, error=_caused(EngineError(reason), error)) for g in generations]
        self._generated_tokens += len(generations)
        return [self._answer(generation) for generation in ended]

    def _answer(self, generation: Generation) -> Answer:
        self._requests += 1
        completion = Completion(
            text=self._decode(generation.token_ids),
            prompt_token_ids=generation.prompt,
            token_ids=tuple(generation.token_ids),
            logprobs=tuple(generation.logprobs),
            finish_reason=generation.finish_reason or "error",
            policy_uid=generation.policy.uid,
            policy_version=generation.policy.version,
        )
        return Answer(id=generation.id, completion=completion)


def _caused(error: EngineError, cause: Exception) -> EngineError:
    error.__cause__ = cause
    return error
