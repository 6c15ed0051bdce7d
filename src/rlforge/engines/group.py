"""Sequences of one policy that are generated together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from rlforge.engines.cache import (
    Row,
    cache_of,
    join_rows,
    keep_rows,
    new_cache,
    shrink,
    take_rows,
    trim,
)
from rlforge.engines.core import EngineRequest
from rlforge.engines.sampling import sample, uniforms
from rlforge.models.last_layer import LastLayer
from rlforge.types import FinishReason


@dataclass(slots=True, eq=False, kw_only=True)
class Generation(EngineRequest):
    """A running request and its answer so far; it is over when ``finish_reason`` is set.

    row: until its prompt is read, the keys and values of the first ``known`` tokens of the prompt.
    """

    stop: frozenset[int]
    row: Row = ()
    known: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.prompt) + len(self.token_ids)

    @property
    def unread(self) -> int:
        """Tokens of the prompt whose keys and values are not known."""
        return len(self.prompt) - self.known

    def append(self, token: int, logprob: float) -> None:
        """Appends a token; a stop token, the limit or a NaN (an error) ends the answer."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if math.isnan(logprob):
            self.finish_reason = "error"
        elif token in self.stop:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.limit:
            self.finish_reason = "length"


class Group:
    """The running batch of one policy: generations join after their prefill and leave when done.

    Rows of generations that ended or were dropped stay in the cache until others take their
    places, or until they are more than an eighth of it. max_rows: most sequences of the engine.
    narrow: the last layer computes only the last position of each prompt
    (``rlforge.models.last_layer``). keep: called with a generation that is over and asked to be
    kept, its cache and its row there. share: called with the prompts that were just read, how many
    generations have each, and their cache.
    """

    def __init__(
        self,
        model: Any,
        pad_id: int,
        max_rows: int,
        *,
        narrow: bool,
        keep: Callable[[Generation, Cache, int], None],
        share: Callable[[Mapping[tuple[int, ...], int], Cache], None],
    ) -> None:
        self.model = model
        self._keep, self._share = keep, share
        self._last_layer = LastLayer(model.get_decoder()) if narrow else None
        self._pad_id = pad_id
        self._max_rows = max_rows
        self._device = next(model.parameters()).device
        self._rows: list[Generation | None] = []
        self._cache: Cache | None = None

    @property
    def running(self) -> list[Generation]:
        """Generations that need more tokens."""
        return [row for row in self._rows if row is not None]

    def size(self, joining: Sequence[Generation] = ()) -> int:
        """Tokens that its rows have room for, once ``joining`` are among them."""
        width = 0 if self._cache is None else self._cache.get_seq_length()
        return (len(self._rows) + len(joining)) * max([width, *(len(g.prompt) for g in joining)])

    def drop(self, ids: set[int]) -> None:
        """Forgets cancelled generations."""
        self._rows = [None if row is None or row.id in ids else row for row in self._rows]

    def prefill(self, joining: Sequence[Generation]) -> list[Generation]:
        """Reads the prompts of ``joining`` as one batch and draws the first token of each.

        Equal prompts are read once. All read as many tokens as the one with most ``unread`` ones:
        of what others know, the last tokens are read again, in the place of padding. So every row
        ends where the batch ends. Returns those that are over after it; the others keep running.
        """
        prompts = Counter(generation.prompt for generation in joining)
        rows = {prompt: row for row, prompt in enumerate(prompts)}
        places = [rows[generation.prompt] for generation in joining]
        read = {g.prompt: g for g in sorted(joining, key=lambda g: g.known)}
        readers = [read[prompt] for prompt in prompts]
        width = max(g.unread for g in readers)
        ids = np.full((len(readers), width), self._pad_id, dtype=np.int64)
        for row, reader in zip(ids, readers, strict=True):
            tokens = reader.prompt[-width:]
            row[width - len(tokens) :] = tokens
            reader.known = len(reader.prompt) - len(tokens)
        cache = None  # answers of one token need none
        if any(g.known for g in readers):
            cache = cache_of([(g.row, g.known) for g in readers], spare=width)
        elif any(g.limit > 1 or g.params.conversation is not None for g in joining):
            cache = new_cache()
        for generation in joining:
            generation.row = ()
            if generation is not read[generation.prompt]:
                generation.known = len(generation.prompt)
        drawn = list(zip(places, joining, strict=True))
        self._draw(drawn, ids, [len(g.prompt) for g in readers], cache)
        if cache is not None:
            self._share(prompts, cache)
        over = self._over(drawn, cache)
        running = [(place, g) for place, g in drawn if g.finish_reason is None]
        if cache is not None and running:
            self._join(running, cache)
        return over

    def step(self) -> list[Generation]:
        """Draws the next token of every running generation; returns those that are over."""
        self._compact()
        if self._cache is None:
            return []
        running = [(i, row) for i, row in enumerate(self._rows) if row is not None]
        # Rows that ended get the padding token; their output is ignored.
        ids = np.full((len(self._rows), 1), self._pad_id, dtype=np.int64)
        ids[[i for i, _ in running], 0] = [g.token_ids[-1] for _, g in running]
        lengths = [1 if row is None else row.length for row in self._rows]
        self._draw(running, ids, lengths, self._cache)
        over = self._over(running, self._cache)
        self._rows = [
            None if row is None or row.finish_reason is not None else row for row in self._rows
        ]
        return over

    def _over(
        self, placed: Sequence[tuple[int, Generation]], cache: Cache | None
    ) -> list[Generation]:
        """Those that are over; what they ask to keep is kept. placed: with rows of ``cache``."""
        over = []
        for place, generation in placed:
            if generation.finish_reason is None:
                continue
            over.append(generation)
            asked = (
                generation.params.conversation is not None and generation.finish_reason != "error"
            )
            if asked and cache is not None:
                self._keep(generation, cache, place)
        return over

    def _draw(
        self,
        drawn: Sequence[tuple[int, Generation]],
        ids: np.ndarray[Any, np.dtype[np.int64]],
        lengths: Sequence[int],
        cache: Cache | None,
    ) -> None:
        """One forward pass over ``ids`` [B, T], whose last token of each row is real.

        lengths: tokens of each sequence including these. Draws a token for each generation of
        ``drawn``, from the row that it names; several may name one.
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
        with self._only_ends_of(ids):
            output = self.model(
                input_ids=torch.from_numpy(ids).to(self._device),
                attention_mask=None if mask is None else mask.long().to(self._device),
                position_ids=torch.from_numpy(positions.clip(min=0)).to(self._device),
                past_key_values=cache,
                use_cache=cache is not None,
                logits_to_keep=last,
            )
        places = [place for place, _ in drawn]
        logits = output.logits[:, -1]
        if places != list(range(len(ids))):
            logits = logits[torch.as_tensor(places, device=self._device)]
        self._append([generation for _, generation in drawn], logits)

    def _only_ends_of(self, ids: np.ndarray[Any, Any]) -> AbstractContextManager[Any]:
        """In the block, the last layer computes only the last position of each row."""
        if self._last_layer is None or ids.shape[1] == 1:
            return nullcontext()
        ends = torch.arange(1, len(ids) + 1, device=self._device) * ids.shape[1] - 1
        return self._last_layer.read_at(ends, ids.size)

    def _append(self, generations: Sequence[Generation], logits: Tensor) -> None:
        seeds = np.array([g.seed for g in generations], dtype=np.uint64)
        counters = np.array([len(g.token_ids) for g in generations], dtype=np.uint64)
        settings = [g.params for g in generations]
        tokens, logprobs = sample(
            logits,
            self._numbers([each.temperature for each in settings]),
            self._filter([each.top_p for each in settings], off=1.0),
            torch.from_numpy(uniforms(seeds, counters)).to(self._device),
            self._filter([each.top_k for each in settings], off=0),
            self._filter([each.min_p for each in settings], off=0.0),
        )
        for generation, token, logprob in zip(
            generations, tokens.tolist(), logprobs.tolist(), strict=True
        ):
            generation.append(token, logprob)

    def _filter(self, values: Sequence[float], off: float) -> Tensor | None:
        return self._numbers(values) if any(value != off for value in values) else None

    def _numbers(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)

    def _join(self, joining: Sequence[tuple[int, Generation]], cache: Cache) -> None:
        """Adds generations, whose keys and values are in the named rows of ``cache``."""
        rows, generations = [row for row, _ in joining], [g for _, g in joining]
        if self._cache is None or not self.running:
            if rows != list(range(cache.layers[0].keys.shape[0])):
                take_rows(cache, rows)
            self._cache, self._rows = cache, list(generations)
            return
        free = [i for i, row in enumerate(self._rows) if row is None]
        end = len(self._rows)
        places = [*free, *range(end, end + len(rows))][: len(rows)]
        length = max(len(g.prompt) for g in generations)
        join_rows(self._cache, cache, rows, places, length=length, most_rows=self._max_rows)
        self._rows += [None] * (max(places) + 1 - end)
        for place, generation in zip(places, generations, strict=True):
            self._rows[place] = generation

    def _compact(self) -> None:
        """Drops positions that no row needs, and ended rows once they are more than an eighth."""
        running = self.running
        if not running or self._cache is None:
            self._rows, self._cache = [], None
            return
        if len(self._rows) - len(running) > len(self._rows) // 8:
            alive = [i for i, row in enumerate(self._rows) if row is not None]
            self._rows = [self._rows[i] for i in keep_rows(self._cache, alive)]
            shrink(self._cache)
        longest = max(g.length for g in running) - 1  # the cache lacks the token drawn last
        if longest < self._cache.get_seq_length():
            trim(self._cache, longest)
