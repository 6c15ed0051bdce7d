"""Samples to micro-batches: rows to train on, cut to length, and padded or packed.

The turns of a conversation are one row: each token is computed once, and every answer is read from
it. Padding is on the right, where no position under causal attention sees it: no mask is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rlforge.errors import RunError
from rlforge.learner.packing import Packing, Segment, Segments, to_device
from rlforge.samples import Sample
from rlforge.types import continues, value

Layout = Literal["padded", "distinct", "packed", "shared"]
"""Rows of a pass: padded to one length; also with equal rows once; concatenated; also with each
shared prefix once."""


@value
class Row:
    """Sample of the batch, cut to the allowed length, and earlier turns of its conversation.

    Attributes:
        sample: Index in the batch.
        behaviour: Engine's log-probs of ``answer``.
        start: Index of its first answer token among those of the batch.
        earlier: Turns whose prompt and answer begin ``prompt``; their answers are trained on, too.
        legal: For each token of ``answer``, those with which a legal answer goes on; empty:
            unknown.

    Example: a conversation of two turns.
        >>> first = Row(sample=0, prompt=(1, 2), answer=(3,))
        >>> second = Row(sample=1, prompt=(1, 2, 3, 4), answer=(5, 6), start=1, earlier=(first,))
        >>> [turn.answer for turn in second.turns], second.input_length
        ([(3,), (5, 6)], 5)
    """

    sample: int
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    behaviour: tuple[float, ...] = ()
    start: int = 0
    earlier: tuple[Row, ...] = ()
    legal: tuple[tuple[int, ...], ...] = ()

    @property
    def turns(self) -> tuple[Row, ...]:
        """Turns in order; all but the last have only sample, prompt and answer."""
        return (*self.earlier, self) if self.earlier else (self,)

    @property
    def input_length(self) -> int:
        """Tokens that the model reads: not the last of the answer, which predicts nothing."""
        return len(self.prompt) + max(len(self.answer) - 1, 0)

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.answer[:-1]


@value
class Selection:
    """Trainable part of a batch, and how much of it is left out.

    Attributes:
        turns: One per sample, in order.
        rows: The same with the turns of a conversation in one.
        tokens: Answer tokens in ``turns``.
        empty: Samples without tokens.
        too_long: Samples whose prompt leaves no room for an answer.
        truncated: Turns whose answer is cut.
    """

    turns: tuple[Row, ...]
    rows: tuple[Row, ...]
    tokens: int
    empty: int
    too_long: int
    truncated: int

    @property
    def share(self) -> float:
        """Share of ``turns`` in the sequences that a mean divides by."""
        # A sample without room for its answer counts with a loss of 0, as a cut answer does:
        # otherwise the others would weigh more, the more of such samples a batch has.
        return len(self.turns) / max(1, len(self.turns) + self.too_long)


@value
class MicroBatch:
    """Tensors of one forward pass.

    R rows of L input tokens; B turns of T answer tokens each, N real ones. Positions are indexes in
    ``input_ids.flatten()``.

    Attributes:
        input_ids [R, L]: Inputs; [1, S] with ``packing``.
        mask [B, T]: 1.0 at answer tokens.
        token_ids [M]: Answer tokens to score; those after the same tokens once.
        positions [M]: Position that predicts each.
        reads: ``positions`` and ``last_prompt``, each once.
        copies [N]: Index in ``token_ids`` of each answer token, turn by turn; None: M = N.
        slots [N]: Index in ``mask.flatten()`` of each.
        flat [N]: Index of each among the answer tokens of the batch.
        samples [B]: Index in the batch.
        last_prompt [B]: Position of the last prompt token.
        padding: Positions that belong to no row.
        reused: Tokens of turns that are not computed again, as another turn has them.
        packing: None where rows are padded.
        legal_ids [M, K]: Tokens with which a legal answer goes on, then -1; None: unknown.
    """

    input_ids: Tensor
    mask: Tensor
    token_ids: Tensor
    positions: Tensor
    reads: Tensor
    copies: Tensor | None
    slots: Tensor
    flat: Tensor
    samples: Tensor
    last_prompt: Tensor
    padding: int
    reused: int
    packing: Packing | None
    legal_ids: Tensor | None = None

    def padded(self, per_token: Tensor) -> Tensor:
        """Scatter [N, ...] per answer token to [B, T, ...], 0 where padded; differentiable."""
        rest = per_token.shape[1:]
        zeros = per_token.new_zeros(self.mask.numel(), *rest)
        return zeros.index_copy(0, self.slots, per_token).view(*self.mask.shape, *rest)


def select_rows(samples: Sequence[Sample], max_train_len: int | None) -> Selection:
    """Samples that can be trained on, in order, cut to ``max_train_len`` tokens at the end.

    Raises RunError when a sample's log-probs do not match its tokens in number.
    """
    turns: list[Row] = []
    tokens = empty = too_long = truncated = 0
    for index, sample in enumerate(samples):
        if len(sample.logprobs) != len(sample.token_ids):
            raise RunError(
                f"{sample.origin}, turn {sample.turn_index}: {len(sample.token_ids)} tokens but "
                f"{len(sample.logprobs)} log-probs; the engine must return one per sampled token"
            )
        # Without a prompt no position predicts the first token.
        if not sample.token_ids or not sample.prompt_token_ids:
            empty += 1
            continue
        room = len(sample.token_ids)
        if max_train_len is not None:
            room = min(room, max_train_len - len(sample.prompt_token_ids))
        if room <= 0:
            too_long += 1
            continue
        truncated += room < len(sample.token_ids)
        turns.append(
            Row(
                sample=index,
                prompt=sample.prompt_token_ids,
                answer=sample.token_ids[:room],
                behaviour=sample.logprobs[:room],
                start=tokens,
                legal=sample.legal_tokens[:room],
            )
        )
        tokens += room
    return Selection(
        turns=tuple(turns),
        rows=tuple(join_turns(turns, samples)),
        tokens=tokens,
        empty=empty,
        too_long=too_long,
        truncated=truncated,
    )


def join_turns(turns: Iterable[Row], samples: Sequence[Sample]) -> list[Row]:
    """Rows of ``turns``, those of a conversation in one, in the order of their last turns."""
    last: dict[tuple[str, int], Row] = {}
    rows: list[Row] = []
    for turn in sorted(turns, key=lambda turn: samples[turn.sample].turn_index):
        episode = samples[turn.sample].episode
        # The batch may lack turns in between, whose answers are then only context.
        before = last.pop(episode, None)
        if before is not None:
            if continues(turn.prompt, before.prompt, before.answer):
                # Earlier turns are kept flat: nested, later ones would hold each again.
                bare = dataclasses.replace(before, earlier=())
                turn = dataclasses.replace(turn, earlier=(*before.earlier, bare))
            else:
                rows.append(before)
        last[episode] = turn
    return sorted([*rows, *last.values()], key=lambda row: row.sample)


def rows_of(answers: Iterable[tuple[tuple[int, ...], tuple[int, ...]]]) -> tuple[list[Row], int]:
    """Rows of pairs of prompt and answer, and the number of answer tokens."""
    rows: list[Row] = []
    total = 0
    for index, (prompt, answer) in enumerate(answers):
        rows.append(Row(sample=index, prompt=prompt, answer=answer, start=total))
        total += len(answer)
    return rows, total


def sums_of(rows: Sequence[Row], per_token: Tensor) -> list[float]:
    """Sum over each row's answer of ``per_token`` [N], the answer tokens of the batch."""
    answers = torch.split(per_token.cpu(), [len(row.answer) for row in rows])
    return [float(answer.double().sum()) for answer in answers]


def split_rows(rows: Sequence[Row], parts: int, generator: np.random.Generator) -> list[list[Row]]:
    """Shuffle ``rows`` into ``parts`` lists whose sizes differ by one at most; none is empty."""
    # A single step sees all rows, so their order does not matter.
    if parts == 1:
        return [list(rows)] if rows else []
    order = generator.permutation(len(rows))
    return [
        [rows[index] for index in part] for part in np.array_split(order, parts) if part.size > 0
    ]


def collate(
    rows: Sequence[Row],
    pad_token_id: int,
    device: torch.device,
    segments: Segments | None = None,
    *,
    distinct: bool = False,
) -> MicroBatch:
    """Tensors of ``rows`` on ``device``: packed as ``segments``, or padded.

    ``distinct`` pads rows of equal tokens once. Rows without an answer give empty tensors per
    token.
    """
    if segments is None:
        texts = [row.tokens for row in rows]
        which = list(range(len(rows)))
        if distinct:
            numbers: dict[tuple[int, ...], int] = {}
            which = [numbers.setdefault(text, len(numbers)) for text in texts]
        input_ids, computed = _padded(dict(zip(which, texts, strict=True)), pad_token_id)
        places, begins = None, np.array(which) * input_ids.shape[1]
    else:
        parts = [rows[part.row].tokens[part.begin : part.end] for part in segments.segments]
        input_ids = np.concatenate([np.array(part, dtype=np.int64) for part in parts])[None]
        computed = input_ids.size
        places = [segments.places[end] for end in segments.ends]
        begins = np.cumsum([0, *map(len, places[:-1])])
    turns = [turn for row in rows for turn in row.turns]
    # All turns of a row begin where it does, because a prompt contains the turns before it.
    #   row:  | prompt ........ last_prompt | answer ... |   (an answer token is predicted
    #   at:                     x             x ... x        by the position before it)
    begins = np.repeat(begins, [len(row.turns) for row in rows])
    last_prompt = begins + np.array([len(turn.prompt) - 1 for turn in turns])
    counts = np.array([len(turn.answer) for turn in turns])
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    at = np.repeat(last_prompt, counts) + within
    if places is not None:
        everywhere = np.concatenate(places)
        at, last_prompt = everywhere[at], everywhere[last_prompt]
    width = int(counts.max())
    slots = np.repeat(np.arange(len(turns)) * width, counts) + within
    mask = np.zeros((len(turns), width), dtype=np.float32)
    mask.reshape(-1)[slots] = 1.0
    token_ids = np.fromiter(chain.from_iterable(turn.answer for turn in turns), dtype=np.int64)
    copies, legal = None, _legal_ids(turns)
    # Rows with equal tokens share positions: each pair of position and token is scored once.
    if len(np.unique(at)) < at.size:
        pairs = at * (token_ids.max() + 1) + token_ids
        if legal is not None:
            # A pair has a single legal set, so equal tokens with different sets stay apart.
            _, sets = np.unique(legal, axis=0, return_inverse=True)
            pairs = pairs * (sets.max() + 1) + sets
        _, first_of, copies = np.unique(pairs, return_index=True, return_inverse=True)
        at, token_ids = at[first_of], token_ids[first_of]
        legal = None if legal is None else legal[first_of]
    return MicroBatch(
        input_ids=to_device(input_ids, device),
        mask=to_device(mask, device),
        token_ids=to_device(token_ids, device),
        legal_ids=None if legal is None else to_device(legal, device),
        positions=to_device(at, device),
        reads=to_device(np.unique(np.concatenate([at, last_prompt])), device),
        copies=None if copies is None else to_device(copies, device),
        slots=to_device(slots, device),
        flat=to_device(np.repeat([turn.start for turn in turns], counts) + within, device),
        samples=to_device(np.array([turn.sample for turn in turns], dtype=np.int64), device),
        last_prompt=to_device(last_prompt, device),
        padding=input_ids.size - computed,
        reused=sum(turn.input_length for turn in turns) - computed,
        packing=Packing.of(segments, device) if segments is not None else None,
    )


def most_legal(rows: Sequence[Row]) -> int:
    """Most tokens with which a legal answer goes on, over all answer tokens of ``rows``."""
    turns = (turn for row in rows for turn in row.turns)
    return max((len(tokens) for turn in turns for tokens in turn.legal), default=0)


def _legal_ids(turns: Sequence[Row]) -> np.ndarray | None:
    """Legal ids [N, K] per answer token, then -1; None where no turn has any."""
    if not any(turn.legal for turn in turns):
        return None
    sets = list(chain.from_iterable(turn.legal or ((),) * len(turn.answer) for turn in turns))
    ids = np.full((len(sets), max(map(len, sets))), -1, dtype=np.int64)
    for row, tokens in enumerate(sets):
        ids[row, : len(tokens)] = tokens
    return ids


def whole(rows: Sequence[Row]) -> Segments:
    """Segments of ``rows``: each row is one, and none shares a prefix."""
    made = [Segment(row=i, begin=0, end=row.input_length) for i, row in enumerate(rows)]
    return Segments(segments=tuple(made), ends=tuple(range(len(rows))))


def _padded(texts: Mapping[int, tuple[int, ...]], pad_token_id: int) -> tuple[np.ndarray, int]:
    """Input ids [R, L] of texts by row, and the number of those that are no padding."""
    lengths = [len(text) for text in texts.values()]
    input_ids = np.full((len(texts), max(lengths)), pad_token_id, dtype=np.int64)
    for row, text in texts.items():
        input_ids[row, : len(text)] = text
    return input_ids, sum(lengths)
