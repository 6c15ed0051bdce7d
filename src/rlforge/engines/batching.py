"""Continuous batching with transformers: the core of the embedded engine.

A step draws one more token for everything that runs, then reads the prompts of waiting requests.
Policy versions share a running batch where they can be computed together
(``rlforge.engines.mixture``); batches take turns within a step.
"""

from __future__ import annotations

import logging
import math
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache

from rlforge.engines.base import Answer
from rlforge.engines.cache import Row, copy_row
from rlforge.engines.core import StepGenerator
from rlforge.engines.grammars import Grammars
from rlforge.engines.group import Generation, Group, Prompt
from rlforge.engines.kept import LEAST_SHARED, KeptLogits, KeptRows, SharedBeginnings
from rlforge.engines.policies import PolicyStore
from rlforge.engines.versions import PolicyKey
from rlforge.engines.whole import WholeGroup, cache_problem, reads_padded
from rlforge.errors import EngineError
from rlforge.models.devices import is_lost
from rlforge.models.last_layer import predicts_the_same
from rlforge.types import value

log = logging.getLogger(__name__)


class Turns:
    """A lock that threads get in the order in which they ask for it.

    Example:
        >>> turns = Turns()
        >>> with turns:
        ...     "alone"
        'alone'
    """

    # With ``threading.Lock`` the thread that releases it gets it again before the ones that wait
    # for it have woken up.
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked = self._served = 0

    def __enter__(self) -> None:
        with self._changed:
            mine = self._asked
            self._asked += 1
            self._changed.wait_for(lambda: self._served == mine)

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._served += 1
            self._changed.notify_all()


_COMPUTING = Turns()


@value
class BatchLimits:
    """Sizes of one generator.

    Attributes:
        max_sequences: Most sequences generated at the same time, over all policies.
        max_model_len: Most tokens of prompt and answer.
        prompt_tokens: Most prompt tokens read in a step, and most in one pass with its padding.
        patience_steps: Most steps to hold back requests while fewer than an eighth of the running
            number could begin; 0 admits requests at once.
        kept_tokens: Most tokens whose keys and values are kept for later requests; None: as many as
            running rows leave of ``max_sequences`` times ``max_model_len``.
        logits_bytes: Most bytes of logits that are kept for equal sequences.
    """

    max_sequences: int
    max_model_len: int
    prompt_tokens: int = 8192
    patience_steps: int = 0
    kept_tokens: int | None = None
    logits_bytes: int = 0


class BatchGenerator(StepGenerator[Generation]):
    """A ``StepGenerator`` over a base model and its adapters.

    ``pad_id`` fills up shorter prompts of a batch; ``grammars`` are those of the tokenizer.
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
        grammars: Grammars,
    ) -> None:
        super().__init__(
            policies,
            decode=decode,
            max_model_len=limits.max_model_len,
            vocab_size=vocab_size,
            seed=seed,
        )
        self._policies = policies
        self._limits = limits
        self._grammars = grammars
        self._device = next(policies.base.parameters()).device
        #: By ``PolicyStore.batch_of``.
        self._groups: dict[PolicyKey | None, Group] = {}
        self._logits = KeptLogits(limits.logits_bytes)
        self._new_group = self._kind_of_group(pad_id)
        self._kept, self._shared = KeptRows(), SharedBeginnings()
        self._resident = frozenset[PolicyKey]()
        self._stop_sets: dict[tuple[int, ...], frozenset[int]] = {}
        # Consecutive steps in which requests were held back although there was room.
        self._held_back = 0

    def _kind_of_group(self, pad_id: int) -> Callable[[], Group]:
        kind: Callable[..., Group] = Group
        policies = self._policies
        narrow = predicts_the_same(policies.base)
        if problem := cache_problem(policies, narrow=narrow, longest=self._max_model_len):
            log.warning(
                "%s reads every sequence whole for each token, which takes longer: with cached "
                "keys and values %s",
                type(policies.base).__name__,
                problem,
            )
            kind = partial(
                WholeGroup, padded=reads_padded(policies), most_tokens=self._limits.prompt_tokens
            )
        return partial(
            kind,
            policies,
            pad_id,
            self._limits.max_sequences,
            narrow=narrow,
            keep=self._keep,
            share=self._share,
            logits=self._logits,
        )

    def _new_request(self, **fields: Any) -> Generation:
        params = fields["params"]
        ids = params.stop_token_ids
        stop = self._stop_sets.get(ids)
        if stop is None:
            stop = self._stop_sets[ids] = frozenset(ids)
        state = None if params.grammar is None else self._grammars.begin(params.grammar, ids)
        return Generation(**fields, key=PolicyKey.of(fields["policy"]), stop=stop, state=state)

    def _drop(self, gone: set[int]) -> None:
        for group in self._groups.values():
            group.drop(gone)

    def drawn(self, ids: Collection[int]) -> Mapping[int, Sequence[int]]:
        return {
            generation.id: generation.token_ids
            for group in self._groups.values()
            for generation in group.running
            if generation.id in ids
        }

    def _generates(self) -> bool:
        return bool(self._groups)

    def _running(self) -> int:
        return sum(len(group.running) for group in list(self._groups.values()))

    def step(self) -> list[Answer]:
        # Generators of one process take turns: a pass switches settings of the whole process
        # (``rlforge.models.products``, ``rlforge.engines.invariant``).
        with _COMPUTING:
            return super().step()

    def _compute(self) -> list[Answer]:
        """Load policies, draw a token for all that run, read new prompts; returns what ended.

        A failing forward pass ends its own requests with EngineError and no others; so does a row
        of logits that are NaN or infinite. An error that says that the device is lost is raised.
        """
        running = {g.key for group in self._groups.values() for g in group.running}
        answers = self._waiting.place_policies(running)
        if (resident := frozenset(self._policies.resident)) != self._resident:
            self._resident = resident
            self._kept.drop_unless(self._policies.is_resident)
            self._logits.drop_unless(self._policies.is_resident)
        joining: dict[PolicyKey | None, list[Generation]] = {}
        for key, generations in self._admit().items():
            if key not in running:
                self._policies.use(key)
            joining.setdefault(self._policies.batch_of(key), []).extend(generations)
        self._kept.shrink(self._room_to_keep(joining))
        with torch.inference_mode():
            for group in self._groups.values():
                answers += self._run(group.running, group.step)
            for batch_key, generations in joining.items():
                group = self._groups.get(batch_key) or self._new_group()
                self._groups[batch_key] = group
                answers += self._recall(group, generations)
                generations = [each for each in generations if each.finish_reason is None]
                for rows in self._prompt_batches(generations):
                    batch = [generation for row in rows for generation in row]
                    answers += self._run(batch, partial(group.prefill, rows))
                    self._read(batch)
        self._groups = {key: group for key, group in self._groups.items() if group.running}
        return answers

    def _recall(self, group: Group, joining: Sequence[Generation]) -> list[Answer]:
        """The answers of those requests that need no pass."""
        over = group.recall(joining)
        for generation in over:
            generation.row, generation.known = (), len(generation.prompt)
        self._read(over)
        self._generated_tokens += sum(len(each.token_ids) for each in joining)
        return [self._answer(generation) for generation in over]

    def _read(self, generations: Sequence[Generation]) -> None:
        """Count the prompts of ``generations``, and what was known of them."""
        self._prompt_tokens += sum(len(g.prompt) for g in generations)
        self._cached_tokens += sum(min(g.known, len(g.prompt)) for g in generations)

    def sleep(self) -> None:
        # Caches of running requests are already freed.
        self._kept.clear()
        self._logits.clear()
        self._policies.move_to(torch.device("cpu"))

    def wake(self) -> None:
        self._policies.move_to(self._device)
        self._waiting.closed = False

    def close(self) -> None:
        self._groups = {}
        self._kept.clear()
        self._logits.clear()

    def _admit(self) -> dict[PolicyKey, list[Generation]]:
        """The waiting requests, oldest first, for which there is room in this step."""
        running = self._running()
        room = self._limits.max_sequences - running
        could_begin = min(room, len(self._waiting))
        if could_begin == 0:
            return {}
        # More prompts are read together a little later.
        if 8 * could_begin < running and self._held_back < self._limits.patience_steps:
            self._held_back += 1
            return {}
        self._held_back = 0
        admitted: dict[PolicyKey, list[Generation]] = {}
        prompts = set[tuple[PolicyKey, tuple[int, ...]]]()

        def to_read(key: PolicyKey, generation: Generation) -> int:
            """Give a request what is kept of its prompt; returns how many tokens it reads."""
            generation.row, generation.known = self._kept.take(key, generation.prompt)
            if self._logits.has(key, generation.prompt):
                return 0
            before = len(prompts)
            prompts.add((key, generation.prompt))
            return generation.unread if len(prompts) > before else 0

        # No more, so that long prompts do not hold up running answers.
        for key, generation in self._waiting.admit(room, self._limits.prompt_tokens, to_read):
            admitted.setdefault(key, []).append(generation)
        return admitted

    def _prompt_batches(self, generations: list[Generation]) -> Iterator[list[list[Generation]]]:
        """Batches of prompts within ``limits.prompt_tokens``, padding and known tokens included.

        Generations with equal prompts are one row. At most half of what a batch reads is padding.
        """
        alike: dict[Prompt, list[Generation]] = {}
        for generation in generations:
            alike.setdefault((generation.key, generation.tokens), []).append(generation)
        batch: list[list[Generation]] = []
        read = longest = 0
        unread = {each: min(g.unread for g in same) for each, same in alike.items()}
        for each in sorted(alike, key=lambda each: (unread[each], len(each[1]))):
            width, length = unread[each], len(each[1])
            longest, rows = max(longest, length), len(batch) + 1
            too_large = rows * longest > self._limits.prompt_tokens
            if batch and (too_large or rows * width > 2 * (read + width)):
                yield batch
                batch, read, longest = [], 0, length
            batch.append(alike[each])
            read += width
        if batch:
            yield batch

    def _room_to_keep(self, joining: Mapping[PolicyKey | None, Sequence[Generation]]) -> int:
        """Tokens that may be kept once ``joining`` run, too."""
        limits = self._limits
        room = limits.max_sequences * limits.max_model_len
        room -= sum(group.size(joining.get(key, ())) for key, group in self._groups.items())
        for key in joining.keys() - self._groups.keys():
            room -= len(joining[key]) * max(len(g.prompt) for g in joining[key])
        if limits.kept_tokens is not None:
            room = min(room, limits.kept_tokens)
        return room

    def _share(self, prompts: Mapping[Prompt, int], cache: Cache) -> None:
        """Keep what the prompts that were just read have in common, and those of several requests.

        ``prompts`` are in the order of their rows, with the number of requests for each.
        """
        beginnings = self._shared.learn(list(dict.fromkeys(prompt for _, prompt in prompts)))
        shared: dict[Prompt, tuple[int, int]] = {}
        for place, ((key, prompt), requests) in enumerate(prompts.items()):
            # The last token of a prompt is read again, for its logits.
            whole = prompt[:-1] if requests > 1 and len(prompt) > LEAST_SHARED else ()
            for beginning in filter(None, (beginnings[prompt], whole)):
                shared.setdefault((key, beginning), (place, len(prompt)))
        for (key, beginning), (place, length) in shared.items():
            if self._kept.has(key, beginning):
                continue
            if (row := self._copied(cache, place, length, len(beginning))) is not None:
                self._kept.put(key, beginning, row, copies=math.inf)

    def _copied(self, cache: Cache, row: int, length: int, first: int) -> Row | None:
        """The first positions of a row of ``length``, where there is room to keep them."""
        room = self._room_to_keep({}) - first
        if room < 0:
            return None
        self._kept.shrink(room)
        with suppress(torch.OutOfMemoryError):  # answers are right without
            return copy_row(cache, row, length, first)
        return None

    def _keep(self, generation: Generation, cache: Cache, row: int) -> None:
        tokens = generation.prompt + tuple(generation.token_ids[:-1])  # the last was never read
        if (kept := self._copied(cache, row, len(tokens), len(tokens))) is not None:
            self._kept.put(generation.key, tokens, kept)

    def _run(
        self, generations: Sequence[Generation], forward: Callable[[], list[Generation]]
    ) -> list[Answer]:
        """The answers of a forward pass; if it fails, ``generations`` end with its error."""
        try:
            ended = forward()
        except Exception as error:  # a model may raise anything; its requests end with it
            if is_lost(error):
                raise
            # A caller that keeps the error must not keep keys, values and logits alive with it.
            traceback.clear_frames(error.__traceback__)
            self._kept.clear()
            self._logits.clear()
            for group in self._groups.values():
                group.drop({g.id for g in generations})
            reason = f"generation failed: {type(error).__name__}: {error}"
            return [Answer(id=g.id, error=_caused(EngineError(reason), error)) for g in generations]
        self._generated_tokens += len(generations)
        return [self._answer(generation) for generation in ended]

    def _answer(self, generation: Generation) -> Answer:
        if generation.finish_reason == "error":
            return Answer(id=generation.id, error=EngineError(generation.failure))
        assert generation.finish_reason is not None
        return self._completed(
            generation,
            generation.token_ids,
            generation.logprobs,
            generation.finish_reason,
            generation.model_logprobs,
        )


def _caused(error: EngineError, cause: Exception) -> EngineError:
    error.__cause__ = cause
    return error
