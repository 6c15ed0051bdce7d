"""Sequences that are generated together: of one policy version, or of several."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from rlforge.engines.cache import Row, cache_of, join_rows, keep_rows, new_cache, shrink, trim
from rlforge.engines.core import EngineRequest
from rlforge.engines.grammars import GrammarState
from rlforge.engines.invariant import sequences_begin
from rlforge.engines.kept import KeptLogits
from rlforge.engines.policies import PolicyStore
from rlforge.engines.sampling import sample, uniforms
from rlforge.engines.versions import PolicyKey
from rlforge.errors import EngineError
from rlforge.models.last_layer import LastLayer
from rlforge.types import FinishReason


@dataclass(slots=True, eq=False, kw_only=True)
class Generation(EngineRequest):
    """A running request and its answer so far; it is over when ``finish_reason`` is set.

    Attributes:
        key: Names its policy's weights.
        row: Keys and values of the first ``known`` tokens of the prompt, until it is read.
        state: Place of the answer in its grammar.
        failure: Why it ended with an error.
    """

    key: PolicyKey
    stop: frozenset[int]
    state: GrammarState | None = None
    row: Row = ()
    known: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    failure: str = ""

    @property
    def length(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.prompt) + len(self.token_ids)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer so far."""
        return (*self.prompt, *self.token_ids) if self.token_ids else self.prompt

    @property
    def unread(self) -> int:
        """Tokens whose keys and values are not known."""
        return self.length - self.known

    def append(self, token: int, logprob: float) -> None:
        """Append a token, which may end the answer; a NaN ends it with an error."""
        if self.finish_reason is not None:  # its grammar failed
            return
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if math.isnan(logprob):
            self.fail(
                f"the model computed NaN or infinite logits for token {len(self.token_ids)} of "
                f"the answer of policy {self.policy.uid!r}: are its weights finite? Training may "
                "have diverged"
            )
            return
        ended = token in self.stop
        if self.state is not None:
            try:
                self.state.take(token)
            except EngineError as error:
                self.fail(str(error))
                return
            # Stop tokens with a text of their own may stand within an answer.
            ended = self.state.complete and (ended or not self.stop)
        if ended:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.limit:
            self.finish_reason = "length"

    def fail(self, reason: str) -> None:
        """End the answer with an error."""
        self.finish_reason, self.failure = "error", reason


#: A prompt and the version that reads it.
Prompt = tuple[PolicyKey, tuple[int, ...]]


class Group:
    """A running batch: generations join after their prefill and leave when done.

    Generations of one policy whose tokens are equal so far are one row of the batch, and part when
    they draw different tokens. Rows without a generation stay in the cache until others take their
    places, or until they are more than an eighth of it.

    Args:
        policies: Compute the rows, which are of one version or of several that share a batch.
        pad_id: Fills up shorter prompts.
        max_rows: Most sequences of the engine.
        narrow: The last layer computes only the last position of each prompt
            (``rlforge.models.last_layer``).
        keep: Called with a generation that is over and asked to be kept, its cache and its row.
        share: Called with the number of generations of each prompt just read, and their cache.
        logits: Logits after sequences that were read before.
    """

    def __init__(
        self,
        policies: PolicyStore,
        pad_id: int,
        max_rows: int,
        *,
        narrow: bool,
        keep: Callable[[Generation, Cache, int], None],
        share: Callable[[Mapping[Prompt, int], Cache], None],
        logits: KeptLogits,
    ) -> None:
        self._policies = policies
        self._keep, self._share, self._logits = keep, share, logits
        self._narrow = narrow
        self._pad_id = pad_id
        self._max_rows = max_rows
        self._device = next(policies.base.parameters()).device
        self._rows: list[list[Generation]] = []
        self._cache: Cache | None = None

    @property
    def running(self) -> list[Generation]:
        """Generations that need more tokens."""
        return [generation for row in self._rows for generation in row]

    def size(self, joining: Sequence[Generation] = ()) -> int:
        """Most tokens that its rows have room for, once ``joining`` are among them."""
        width = 0 if self._cache is None else self._cache.get_seq_length()
        return (len(self._rows) + len(joining)) * max([width, *(g.length for g in joining)])

    def drop(self, ids: set[int]) -> None:
        """Forget cancelled generations."""
        self._rows = [[g for g in row if g.id not in ids] for row in self._rows]

    def prefill(self, rows: Sequence[Sequence[Generation]]) -> list[Generation]:
        """Read the prompt that the generations of each row have, and draw the next token of each.

        Some of their answer may be drawn already, by ``recall``.

        Returns the generations that are over after it.
        """
        readers = [max(row, key=lambda g: g.known) for row in rows]
        # All read as many tokens as the one that knows least; of what others know, the last tokens
        # are read again in the place of padding. So every row ends where the batch ends.
        width = max(g.unread for g in readers)
        ids = np.full((len(readers), width), self._pad_id, dtype=np.int64)
        for tokens, reader in zip(ids, readers, strict=True):
            read = reader.tokens[-width:]
            tokens[width - len(read) :] = read
            reader.known = reader.length - len(read)
        cache = None  # answers of one token need none
        if any(g.known for g in readers):
            cache = cache_of([(g.row, g.known) for g in readers], spare=width)
        elif any(g.limit > 1 or g.params.conversation is not None for row in rows for g in row):
            cache = new_cache()
        for row, reader in zip(rows, readers, strict=True):
            for generation in row:
                generation.row = ()
                if generation is not reader:
                    generation.known = generation.length
        begun = {(row[0].key, row[0].tokens): len(row) for row in rows}
        self._draw(rows, ids, [g.length for g in readers], cache)
        if cache is None:
            return _over(rows)
        self._share(begun, cache)
        return self._part(rows, cache)

    def step(self) -> list[Generation]:
        """Draw the next token of every running generation; returns those that are over."""
        self._compact()
        if self._cache is None:
            return []
        # Rows without a generation get the padding token; their output is ignored.
        ids = np.array([[row[0].token_ids[-1] if row else self._pad_id] for row in self._rows])
        lengths = [row[0].length if row else 1 for row in self._rows]
        self._draw(self._rows, ids, lengths, self._cache)
        return self._part(self._rows, self._cache)

    def _part(self, rows: Sequence[Sequence[Generation]], cache: Cache) -> list[Generation]:
        """Place the rows of ``cache``, that of the batch or one that joins it, by what they drew.

        Returns the generations that are over.
        """
        over = _over(rows)
        for place, row in enumerate(rows):
            for generation in row:
                keep = generation.params.conversation is not None
                if keep and generation.finish_reason in ("stop", "length"):
                    self._keep(generation, cache, place)
        if not self.running:
            self._cache = cache
        own = cache is self._cache
        if own:
            self._rows = [[] for _ in rows]
        sources, parts = [], []
        for source, row in enumerate(rows):
            drawn: dict[int, list[Generation]] = {}
            for generation in row:
                if generation.finish_reason is None:
                    drawn.setdefault(generation.token_ids[-1], []).append(generation)
            for part in drawn.values():
                if own and not self._rows[source]:
                    self._rows[source] = part
                else:
                    sources.append(source)
                    parts.append(part)
        if parts:
            self._join(parts, sources, cache)
        return over

    def _join(
        self, parts: Sequence[list[Generation]], sources: Sequence[int], cache: Cache
    ) -> None:
        assert self._cache is not None
        free = [place for place, row in enumerate(self._rows) if not row]
        end = len(self._rows)
        places = [*free, *range(end, end + len(parts))][: len(parts)]
        length = max(part[0].length for part in parts) - 1  # the cache lacks the token just drawn
        join_rows(self._cache, cache, sources, places, length=length, most_rows=self._max_rows)
        self._rows += [[] for _ in range(max(places) + 1 - end)]
        for place, part in zip(places, parts, strict=True):
            self._rows[place] = part

    def _draw(
        self,
        rows: Sequence[Sequence[Generation]],
        ids: np.ndarray[Any, np.dtype[np.int64]],
        lengths: Sequence[int],
        cache: Cache | None,
    ) -> None:
        """Draw a token for each generation of ``rows`` by one pass over ``ids`` [B, T].

        The last token of each row is real; ``lengths`` count all tokens of each sequence.
        """
        past = 0 if cache is None else cache.get_seq_length()
        width = past + ids.shape[1]
        starts = width - np.asarray(lengths, dtype=np.int64)
        positions = np.arange(past, width)[None, :] - starts[:, None]
        mask: Tensor | None = None
        if starts.any():
            mask = torch.from_numpy(np.arange(width)[None, :] >= starts[:, None])
        # Not 1: a slice is not contiguous, and frozen heads then multiply row after row (3 times as
        # long in float32 on a CPU, up to 100 times in bfloat16).
        last = torch.tensor([ids.shape[1] - 1], device=self._device)
        keys = [row[0].key if row else None for row in rows]
        with (
            self._policies.computing(keys) as model,
            self._only_ends(model, ids),
            sequences_begin(torch.from_numpy(starts)),
        ):
            output = model(
                input_ids=torch.from_numpy(ids).to(self._device),
                attention_mask=None if mask is None else mask.long().to(self._device),
                position_ids=torch.from_numpy(positions.clip(min=0)).to(self._device),
                past_key_values=cache,
                use_cache=cache is not None,
                logits_to_keep=last,
            )
        self._append(rows, output.logits[:, -1])

    def recall(self, generations: Sequence[Generation]) -> list[Generation]:
        """Draw for ``generations``, which join, as long as the logits are kept.

        Returns those that are over.
        """
        running = list(generations)
        while running:
            rows: dict[Prompt, list[Generation]] = {}
            for each in running:
                rows.setdefault((each.key, each.tokens), []).append(each)
            kept = {each: found for each in rows if (found := self._logits.get(*each)) is not None}
            if kept:
                self._append([rows[each] for each in kept], torch.stack([*kept.values()]))
            running = [g for each in kept for g in rows[each] if g.finish_reason is None]
        return _over([generations])

    def _only_ends(self, model: Any, ids: np.ndarray[Any, Any]) -> AbstractContextManager[Any]:
        """In the block, the last layer of ``model`` computes only the last position of each row."""
        if not self._narrow or ids.shape[1] == 1:
            return nullcontext()
        ends = torch.arange(1, len(ids) + 1, device=self._device) * ids.shape[1] - 1
        return LastLayer(model.get_decoder()).read_at(ends, ids.size)

    def _append(self, rows: Sequence[Sequence[Generation]], logits: Tensor) -> None:
        """Draw for all generations, those of one row and one setting from one distribution."""
        if self._logits.most_bytes:
            for place, row in enumerate(rows):
                if row:
                    self._logits.put(row[0].key, row[0].tokens, logits[place])
        drawn: dict[tuple[int, float, float, int, float, str | None], list[Generation]] = {}
        for place, row in enumerate(rows):
            for generation in row:
                how = generation.params
                setting = (place, how.temperature, how.top_p, how.top_k, how.min_p, how.grammar)
                drawn.setdefault(setting, []).append(generation)
        places, temperatures, top_p, top_k, min_p, _ = zip(*drawn, strict=True)
        if places != tuple(range(len(logits))):
            logits = logits[torch.as_tensor(places, device=self._device)]
        logits = self._by_grammar(list(drawn.values()), logits)
        generations = [each for alike in drawn.values() for each in alike]
        seeds = np.array([g.seed for g in generations], dtype=np.uint64)
        counters = np.array([len(g.token_ids) for g in generations], dtype=np.uint64)
        counts = np.array([len(alike) for alike in drawn.values()])
        numbers = np.zeros((len(counts), counts.max()))
        used = np.arange(counts.max()) < counts[:, None]
        numbers[used] = uniforms(seeds, counters)
        tokens, logprobs = sample(
            logits,
            self._numbers(temperatures),
            self._filter(top_p, off=1.0),
            torch.from_numpy(numbers).to(self._device),
            self._filter(top_k, off=0),
            self._filter(min_p, off=0.0),
        )
        for generation, token, logprob in zip(
            generations,
            tokens.cpu().numpy()[used].tolist(),
            logprobs.cpu().numpy()[used].tolist(),
            strict=True,
        ):
            generation.append(token, logprob)
        for place, alike in enumerate(drawn.values()):
            asked = [each for each in alike if each.params.model_logprobs and each.token_ids]
            if asked:
                own = logits[place].float().log_softmax(dim=-1)
                for generation in asked:
                    generation.model_logprobs.append(float(own[generation.token_ids[-1]]))

    def _by_grammar(self, drawn: Sequence[Sequence[Generation]], logits: Tensor) -> Tensor:
        """``logits`` [B, V], -inf for tokens that the grammar of a row's generations rules out."""
        places, allowed = [], []
        for place, (first, *others) in enumerate(drawn):  # all in one state of their grammar
            if first.state is None:
                continue
            try:
                allowed.append(first.state.allowed())
                places.append(place)
            except EngineError as error:
                for generation in (first, *others):
                    generation.fail(str(error))
        if not places:
            return logits
        ruled_out = torch.from_numpy(~np.stack(allowed)).to(self._device)
        rows = torch.as_tensor(places, device=self._device)
        return logits.index_copy(0, rows, logits[rows].masked_fill(ruled_out, -torch.inf))

    def _filter(self, values: Sequence[float], off: float) -> Tensor | None:
        return self._numbers(values) if any(value != off for value in values) else None

    def _numbers(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)

    def _compact(self) -> None:
        alive = [place for place, row in enumerate(self._rows) if row]
        if not alive or self._cache is None:
            self._rows, self._cache = [], None
            return
        if len(self._rows) - len(alive) > len(self._rows) // 8:
            self._rows = [self._rows[i] for i in keep_rows(self._cache, alive)]
            shrink(self._cache)
        longest = max(row[0].length for row in self._rows if row) - 1  # without the last token
        if longest < self._cache.get_seq_length():
            trim(self._cache, longest)


def _over(rows: Sequence[Sequence[Generation]]) -> list[Generation]:
    return [each for row in rows for each in row if each.finish_reason is not None]
