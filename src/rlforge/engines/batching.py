"""Continuous batching without threads: submit requests at any time, call ``step`` for answers.

A step first admits waiting requests (their prompts are read in batches of similar length and
give their first token), then draws one more token for everything that runs. Each policy version
has its own running batch; they take turns within a step.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from rlforge.engines.base import EngineStats
from rlforge.engines.group import Generation, Group
from rlforge.engines.policies import PolicyKey, PolicyStore
from rlforge.engines.requests import Answer, check_request
from rlforge.engines.waiting import WaitingRoom
from rlforge.errors import EngineError
from rlforge.models.devices import is_lost
from rlforge.models.last_layer import says_the_same
from rlforge.system.utilisation import Span, WorkLog
from rlforge.types import Completion, PolicyRef, SamplingParams, value


@value
class BatchLimits:
    """Sizes of one generator.

    max_sequences: generated at the same time, over all policies. max_model_len: tokens of prompt
    and answer. step_prompt_tokens: prompt tokens read per step, so that long prompts do not hold
    up running answers. batch_prompt_tokens: padded prompt tokens of one forward pass.
    patience_steps: how long requests wait while there is room for them, until they are an eighth
    of what runs; 0 begins with them at once.
    """

    max_sequences: int
    max_model_len: int
    step_prompt_tokens: int = 8192
    batch_prompt_tokens: int = 8192
    patience_steps: int = 0


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
        self._narrow = says_the_same(policies.base)
        self._limits = limits
        self._decode = decode
        self._vocab_size = vocab_size
        self._pad_id = pad_id
        self._device = next(policies.base.parameters()).device
        self._seeds = np.random.default_rng(seed)
        self._next_id = 0
        self._waiting: WaitingRoom[Generation] = WaitingRoom(policies)
        self._groups: dict[PolicyKey, Group] = {}
        self._stop_sets: dict[tuple[int, ...], frozenset[int]] = {}
        self._requests = self._prompt_tokens = self._generated_tokens = self._ended = 0
        # Steps in which somebody waited although there was room.
        self._held_back = 0
        self._busy_s = 0.0
        self._work = WorkLog()

    # ------------------------------------------------------------ requests

    def submit(self, prompt: Sequence[int], params: SamplingParams, policy: PolicyRef) -> int:
        """Queues a request and returns its id. Raises EngineError when it cannot be answered."""
        limit = check_request(
            prompt,
            params,
            policy,
            max_model_len=self._limits.max_model_len,
            vocab_size=self._vocab_size,
        )
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
            limit=limit,
            stop=stop,
        )
        self._waiting.add(PolicyKey.of(policy), generation)
        return generation.id

    def load(self, policy: PolicyRef) -> int:
        """Queues the loading of ``policy`` and returns the id of its answer."""
        ticket = self._take_id()
        self._waiting.add_load(PolicyKey.of(policy), ticket)
        return ticket

    def cancel(self, ids: Iterable[int]) -> None:
        """Forgets requests: they get no answer and take no more room."""
        gone = set(ids)
        self._waiting.cancel(gone)
        for group in self._groups.values():
            group.drop(gone)

    def drawn(self, ids: Collection[int]) -> Mapping[int, Sequence[int]]:
        """Tokens so far of those of ``ids`` that are being generated."""
        return {
            generation.id: generation.token_ids
            for group in self._groups.values()
            for generation in group.running
            if generation.id in ids
        }

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # ------------------------------------------------------------ state

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._groups) or self._waiting.has_work

    @property
    def progress(self) -> int:
        """Grows with every token read or generated, and with every request that ends."""
        return self._prompt_tokens + self._generated_tokens + self._ended

    def stats(self) -> EngineStats:
        """Counters since the start; may be called from another thread."""
        return EngineStats(
            queued=len(self._waiting),
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
        it with EngineError and no others; so does a row of logits that are no numbers. Raises what
        says that the device is lost: nothing can be computed any more.
        """
        started = time.time()
        answers = self._waiting.place_policies(list(self._groups))
        admitted = self._admit()
        with torch.inference_mode():
            for group in self._groups.values():
                answers += self._run(group.running, group.step)
            for key, generations in admitted.items():
                group = self._groups.get(key) or Group(
                    self._policies.use(key),
                    self._pad_id,
                    self._limits.max_sequences,
                    narrow=self._narrow,
                )
                self._groups[key] = group
                for batch in self._prompt_batches(generations):
                    answers += self._run(batch, partial(group.prefill, batch))
                    self._prompt_tokens += sum(len(g.prompt) for g in batch)
        self._groups = {key: group for key, group in self._groups.items() if group.running}
        ended = time.time()
        self._ended += len(answers)
        self._busy_s += ended - started
        self._work.add((started, ended))
        return answers

    def drain(self) -> None:
        """Begins no request until ``wake``; what runs goes on."""
        self._waiting.close()

    def sleep(self) -> None:
        """Puts all weights on the host, once nothing runs; caches went with what ran."""
        self._policies.move_to(torch.device("cpu"))

    def wake(self) -> None:
        """Puts the weights back where they were, and begins requests again."""
        self._policies.move_to(self._device)
        self._waiting.open()

    def close(self) -> None:
        """Forgets models and caches."""
        self._groups = {}

    def fail_all(self, error: EngineError) -> list[Answer]:
        """Ends every request, waiting or running, with ``error``."""
        ids = self._waiting.clear()
        ids += [g.id for group in self._groups.values() for g in group.running]
        self._groups = {}
        return [Answer(id=i, error=error) for i in ids]

    def _admit(self) -> dict[PolicyKey, list[Generation]]:
        """Takes waiting requests, oldest first, while there is room for them in this step."""
        running = self._running()
        room = self._limits.max_sequences - running
        could_begin = min(room, len(self._waiting))
        if could_begin == 0:
            return {}
        if 8 * could_begin < running and self._held_back < self._limits.patience_steps:
            self._held_back += 1
            return {}
        self._held_back = 0
        admitted: dict[PolicyKey, list[Generation]] = {}
        for key, generation in self._waiting.admit(room, self._limits.step_prompt_tokens):
            admitted.setdefault(key, []).append(generation)
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
            if is_lost(error):
                raise
            # Whoever keeps the error must not keep keys, values and logits alive with it.
            traceback.clear_frames(error.__traceback__)
            for group in self._groups.values():
                group.drop({g.id for g in generations})
            reason = f"generation failed: {type(error).__name__}: {error}"
            return [Answer(id=g.id, error=_caused(EngineError(reason), error)) for g in generations]
        self._generated_tokens += len(generations)
        return [self._answer(generation) for generation in ended]

    def _answer(self, generation: Generation) -> Answer:
        if generation.finish_reason == "error":
            return Answer(id=generation.id, error=EngineError(_no_numbers(generation)))
        assert generation.finish_reason is not None
        self._requests += 1
        completion = Completion(
            text=self._decode(generation.token_ids),
            prompt_token_ids=generation.prompt,
            token_ids=tuple(generation.token_ids),
            logprobs=tuple(generation.logprobs),
            finish_reason=generation.finish_reason,
            policy_uid=generation.policy.uid,
            policy_version=generation.policy.version,
        )
        return Answer(id=generation.id, completion=completion)


def _no_numbers(generation: Generation) -> str:
    return (
        f"the model computed NaN or infinite logits for token {len(generation.token_ids)} of the "
        f"answer of policy {generation.policy.uid!r}: are its weights finite? Training may have "
        "diverged"
    )


def _caused(error: EngineError, cause: Exception) -> EngineError:
    error.__cause__ = cause
    return error
