"""Continuous batching with transformers: the core of the embedded engine.

A step draws one more token for everything that runs, then admits waiting requests: their prompts
are read in batches of similar length and give their first token. Policy versions share a running
batch where they can be computed together (``rlforge.engines.mixture``), and have their own
otherwise; the batches take turns within a step.
"""

from __future__ import annotations

import logging
import math
import threading
import traceback
from collections import deque
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
from rlforge.engines.kept import LEAST_SHARED, KeptRows, SharedBeginnings
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

    With ``threading.Lock`` the thread that releases it gets it again before the ones that wait for
    it have woken up.

    Example:
        >>> turns = Turns()
        >>> with turns:
        ...     "alone"
        'alone'
    """

    def __init__(self) -> None:
        self._state = threading.Lock()
        self._waiting = deque[threading.Lock]()
        self._taken = False

    def __enter__(self) -> None:
        with self._state:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # until it is handed over

    def __exit__(self, *error: object) -> None:
        with self._state:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


_COMPUTING = Turns()


@value
class BatchLimits:
    """Sizes of one generator.

    Attributes:
        max_sequences: Generated at the same time, over all policies.
        max_model_len: Tokens of prompt and answer.
        step_prompt_tokens: Prompt tokens read per step, so that long prompts do not hold up running
            answers.
        batch_prompt_tokens: Padded tokens of the prompts of one pass.
        patience_steps: Most steps to hold back requests while fewer than an eighth of the running
            number could begin, so that more prompts are read together; 0 admits requests at once.
        kept_tokens: Most tokens whose keys and values wait for requests that continue them, or
            begin alike. They have the room that running rows leave of ``max_sequences`` times
            ``max_model_len``; None: all.
    """

    max_sequences: int
    max_model_len: int
    step_prompt_tokens: int = 8192
    batch_prompt_tokens: int = 8192
    patience_steps: int = 0
    kept_tokens: int | None = None


class BatchGenerator(StepGenerator[Generation]):
    """A ``StepGenerator`` over a base model and its adapters.

    decode: token ids to text. vocab_size: ids at or above it are refused. pad_id: fills up shorter
    prompts of a batch. seed: for requests without a seed of their own. grammars: that answers can
    keep to.
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
        self._new_group = self._kind_of_group(pad_id)
        self._kept, self._shared = KeptRows(), SharedBeginnings()
        self._resident = frozenset[PolicyKey]()
        self._stop_sets: dict[tuple[int, ...], frozenset[int]] = {}
        self._generated = 0
        # Consecutive steps in which requests were held back although there was room.
        self._held_back = 0

    def _kind_of_group(self, pad_id: int) -> Callable[[], Group]:
        """Makes batches: with a cache where the model's answers from one are exact."""
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
            most, padded = self._limits.batch_prompt_tokens, reads_padded(policies)
            kind = partial(WholeGroup, padded=padded, most_tokens=most)
        return partial(
            kind,
            policies,
            pad_id,
            self._limits.max_sequences,
            narrow=narrow,
            keep=self._keep,
            share=self._share,
        )

    # ------------------------------------------------------------ requests

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
        """Tokens so far of the running requests among ``ids``, in the order of their rows."""
        return {
            generation.id: generation.token_ids
            for group in self._groups.values()
            for generation in group.running
            if generation.id in ids
        }

    # ------------------------------------------------------------ state

    @property
    def progress(self) -> int:
        """Grows with every token read or generated, and with every request that ends."""
        return super().progress + self._prompt_tokens

    @property
    def _generated_tokens(self) -> int:
        return self._generated

    def _generates(self) -> bool:
        return bool(self._groups)

    def _running(self) -> int:
        return sum(len(group.running) for group in list(self._groups.values()))

    # ------------------------------------------------------------ stepping

    def step(self) -> list[Answer]:
        """Step as ``StepGenerator.step``; generators of one process compute one after the other.

        Passes switch settings of the whole process (``rlforge.models.products``,
        ``rlforge.engines.invariant``).
        """
        with _COMPUTING:
            return super().step()

    def _compute(self) -> list[Answer]:
        """Loads policies, draws a token for all that run, reads new prompts; returns what ended.

        A failing forward pass ends its own requests with EngineError and no others; so does a row
        of logits that are NaN or infinite. An error that says that the device is lost is raised:
        nothing can be computed any more.
        """
        running = {g.key for group in self._groups.values() for g in group.running}
        answers = self._waiting.place_policies(running)
        if (resident := frozenset(self._policies.resident)) != self._resident:
            self._resident = resident
            self._kept.drop_unless(self._policies.is_resident)
            self._shared.drop_unless(self._policies.is_resident)
        joining: dict[PolicyKey | None, list[Generation]] = {}
        for key, generations in self._admit().items():
            if key not in running:
                self._policies.use(key)
            joining.setdefault(self._policies.batch_of(key), []).extend(generations)
        room = self._room_to_keep(joining)
        self._kept.shrink(room)
        if room < 0:
            self._shared.clear()
        with torch.inference_mode():
            for group in self._groups.values():
                answers += self._run(group.running, group.step)
            for batch_key, generations in joining.items():
                group = self._groups.get(batch_key) or self._new_group()
                self._groups[batch_key] = group
                for batch in self._prompt_batches(generations):
                    answers += self._run(batch, partial(group.prefill, batch))
                    self._prompt_tokens += sum(len(g.prompt) for g in batch)
                    self._cached_tokens += sum(g.known for g in batch)
        self._groups = {key: group for key, group in self._groups.items() if group.running}
        return answers

    def sleep(self) -> None:
        """Moves all weights to the host; caches of running requests are already freed."""
        self._forget_rows()
        self._policies.move_to(torch.device("cpu"))

    def wake(self) -> None:
        """Moves the weights back, and begins requests again."""
        self._policies.move_to(self._device)
        self._waiting.open()

    def close(self) -> None:
        """Forgets models and caches."""
        self._groups = {}
        self._forget_rows()

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
        prompts = set[tuple[PolicyKey, tuple[int, ...]]]()

        def to_read(key: PolicyKey, generation: Generation) -> int:
            """Gives a request what is kept of its prompt; returns how many tokens it reads."""
            generation.row, generation.known = self._kept.take(key, generation.prompt)
            row, known = self._shared.find(key, generation.prompt)
            if known > generation.known:
                generation.row, generation.known = row, known
            before = len(prompts)
            prompts.add((key, generation.prompt))
            return generation.unread if len(prompts) > before else 0

        for key, generation in self._waiting.admit(room, self._limits.step_prompt_tokens, to_read):
            admitted.setdefault(key, []).append(generation)
        return admitted

    def _prompt_batches(self, generations: list[Generation]) -> Iterator[list[Generation]]:
        """Batches of prompts with similar numbers of tokens to read; equal ones count once.

        Each is within ``batch_prompt_tokens``, padding and known tokens included, and no more than
        half of what it reads is padding.
        """
        alike: dict[Prompt, list[Generation]] = {}
        for generation in generations:
            alike.setdefault((generation.key, generation.prompt), []).append(generation)
        batch: list[Generation] = []
        rows = read = longest = 0
        unread = {each: min(g.unread for g in same) for each, same in alike.items()}
        for each in sorted(alike, key=lambda each: (unread[each], len(each[1]))):
            width, length = unread[each], len(each[1])
            longest = max(longest, length)
            too_large = (rows + 1) * longest > self._limits.batch_prompt_tokens
            if batch and (too_large or (rows + 1) * width > 2 * (read + width)):
                yield batch
                batch, rows, read, longest = [], 0, 0, length
            batch += alike[each]
            rows += 1
            read += width
        if batch:
            yield batch

    # ------------------------------------------------------------ kept keys and values

    def _room_to_keep(self, joining: Mapping[PolicyKey | None, Sequence[Generation]]) -> int:
        """Tokens that may be kept once ``joining`` run, too."""
        limits = self._limits
        room = limits.max_sequences * limits.max_model_len
        room -= sum(group.size(joining.get(key, ())) for key, group in self._groups.items())
        for key in joining.keys() - self._groups.keys():
            room -= len(joining[key]) * max(len(g.prompt) for g in joining[key])
        if limits.kept_tokens is not None:
            room = min(room, limits.kept_tokens)
        return room - self._shared.tokens

    def _share(self, prompts: Mapping[Prompt, int], cache: Cache) -> None:
        """Keeps what the prompts that were just read have in common, and those read for several.

        prompts: in the order of their rows, with how many requests have each.
        """
        self._shared.learn(list(dict.fromkeys(prompt for _, prompt in prompts)))
        for key in dict.fromkeys(key for key, _ in prompts):
            read = [prompt if reader == key else () for reader, prompt in prompts]
            for place, length in self._shared.missing(key, read):
                if (row := self._copied(cache, place, len(read[place]), length)) is not None:
                    self._shared.put(key, read[place][:length], row)
        for place, ((key, prompt), requests) in enumerate(prompts.items()):
            # The last token is read again, for its logits.
            known = prompt[:-1]
            if requests == 1 or len(known) < LEAST_SHARED or self._kept.has(key, known):
                continue
            if (row := self._copied(cache, place, len(prompt), len(known))) is not None:
                self._kept.put(key, known, row, copies=math.inf)

    def _copied(self, cache: Cache, row: int, length: int, first: int) -> Row | None:
        """The first positions of a row of that length, where there is room to keep them."""
        room = self._room_to_keep({}) - first
        if room < 0:
            return None
        self._kept.shrink(room)
        with suppress(torch.OutOfMemoryError):  # answers are right without
            return copy_row(cache, row, length, first)
        return None

    def _keep(self, generation: Generation, cache: Cache, row: int) -> None:
        """Keeps what ``cache`` has of an answered request, if there is room for it."""
        tokens = generation.prompt + tuple(generation.token_ids[:-1])  # the last was never read
        if (kept := self._copied(cache, row, len(tokens), len(tokens))) is not None:
            self._kept.put(generation.key, tokens, kept)

    def _forget_rows(self) -> None:
        self._kept.clear()
        self._shared.clear()

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
            self._forget_rows()
            for group in self._groups.values():
                group.drop({g.id for g in generations})
            reason = f"generation failed: {type(error).__name__}: {error}"
            return [Answer(id=g.id, error=_caused(EngineError(reason), error)) for g in generations]
        self._generated += len(generations)
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
