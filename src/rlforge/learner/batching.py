"""From steps to micro-batches: what is trained on, cut to length, and padded or packed.

Padding is on the right. Under causal attention no real position ever looks at one to its right, so
padding cannot change a result and no attention mask is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlforge.errors import RunError
from rlforge.types import Step, value


@value
class Row:
    """One step as it is trained on, already cut to the allowed length.

    step: its index in the batch. behaviour: the engine's log-probs of ``answer``.
    start: index of its first answer token among all answer tokens of the batch.
    """

    step: int
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    behaviour: tuple[float, ...] = ()
    start: int = 0

    @property
    def input_length(self) -> int:
        """Tokens the model reads: the last answer token is only predicted."""
        return len(self.prompt) + max(len(self.answer) - 1, 0)


@value
class Selection:
    """The trainable part of a batch, and what was left out of it.

    tokens: answer tokens in ``rows``. empty: steps without tokens. too_long: steps whose prompt
    leaves no room for an answer. truncated: rows whose answer lost its end.
    """

    rows: tuple[Row, ...]
    tokens: int
    empty: int
    too_long: int
    truncated: int


@value
class Packing:
    """Where sequences stand that follow each other in one row of S tokens.

    shared: tokens at the start of the row that all sequences begin with; each goes on from there.
    lengths: of each sequence, without the shared tokens. position_ids [1, S]: counted within each,
    the shared tokens included. keys: which tokens of the row each sequence attends to, one sequence
    after the other; None without shared tokens, when they are the row itself. query_ends and
    key_ends: int32, from 0, where the sequences end in the row and in ``keys``; the shared tokens
    count as a sequence of their own.
    """

    shared: int
    lengths: tuple[int, ...]
    position_ids: Tensor
    keys: Tensor | None
    query_ends: Tensor
    key_ends: Tensor

    @property
    def longest(self) -> tuple[int, int]:
        """Most tokens of one sequence among the queries, and among the keys."""
        return max(self.shared, *self.lengths), self.shared + max(self.lengths)


@value
class MicroBatch:
    """The rows of one forward pass. B rows, L input tokens, T answer tokens, N real answer tokens.

    input_ids [B, L], or [1, S] with ``packing``. mask [B, T]: 1.0 at answer tokens.
    token_ids [N]: the answer tokens, row by row. positions [N]: where in ``input_ids.flatten()``
    each of them is predicted. slots [N]: where in ``mask.flatten()`` each stands. flat [N]: which
    of the batch's answer tokens each is. steps [B]: index in the batch. last_prompt [B]: last
    prompt token in ``input_ids.flatten()``. padding: positions that are none of any row. reused:
    tokens that are computed once for several rows, beyond the first. packing: None where rows are
    padded to the same length.
    """

    input_ids: Tensor
    mask: Tensor
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    flat: Tensor
    steps: Tensor
    last_prompt: Tensor
    padding: int
    reused: int
    packing: Packing | None

    def padded(self, per_token: Tensor) -> Tensor:
        """[N] per answer token to [B, T], 0 where padded; differentiable."""
        zeros = per_token.new_zeros(self.mask.numel())
        return zeros.scatter(0, self.slots, per_token).view(self.mask.shape)


def select_rows(steps: Sequence[Step], max_train_len: int | None) -> Selection:
    """The steps that can be trained on, in order.

    max_train_len: most tokens of prompt and answer together; the end of the answer is cut.
    Raises RunError when a step's log-probs do not match its tokens.
    """
    rows: list[Row] = []
    tokens = empty = too_long = truncated = 0
    for index, step in enumerate(steps):
        if len(step.logprobs) != len(step.token_ids):
            raise RunError(
                f"game {step.game_id}, turn {step.turn_index}: {len(step.token_ids)} tokens but "
                f"{len(step.logprobs)} log-probs; the engine must return one per sampled token"
            )
        if not step.token_ids or not step.prompt_token_ids:
            empty += 1
            continue
        room = len(step.token_ids)
        if max_train_len is not None:
            room = min(room, max_train_len - len(step.prompt_token_ids))
        if room <= 0:
            too_long += 1
            continue
        truncated += room < len(step.token_ids)
        rows.append(
            Row(
                step=index,
                prompt=step.prompt_token_ids,
                answer=step.token_ids[:room],
                behaviour=step.logprobs[:room],
                start=tokens,
            )
        )
        tokens += room
    return Selection(
        rows=tuple(rows), tokens=tokens, empty=empty, too_long=too_long, truncated=truncated
    )


def split_rows(rows: Sequence[Row], parts: int, generator: np.random.Generator) -> list[list[Row]]:
    """``rows`` shuffled into ``parts`` lists whose sizes differ by one at most; none is empty."""
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
    *,
    packed: bool = False,
    shared: int = 0,
) -> MicroBatch:
    """Tensors of ``rows`` on ``device``. Rows without an answer give empty per-token tensors.

    packed: one behind the other instead of padded. shared: tokens that all prompts begin with, less
    than any has, which a packed row holds once.
    """
    lengths = np.array([row.input_length - shared for row in rows])
    width = max(len(row.answer) for row in rows)
    if packed:
        starts = shared + np.cumsum(lengths) - lengths
        shape = (1, shared + int(lengths.sum()))
    else:
        starts = np.arange(len(rows)) * lengths.max()
        shape = (len(rows), int(lengths.max()))
    input_ids = np.full(shape, pad_token_id, dtype=np.int64)
    input_ids[0, :shared] = rows[0].prompt[:shared]
    mask = np.zeros((len(rows), width), dtype=np.float32)
    positions, slots, flat = [], [], []
    for index, (row, start, length) in enumerate(zip(rows, starts, lengths, strict=True)):
        count, first = len(row.answer), start + len(row.prompt) - shared - 1
        input_ids.reshape(-1)[start : start + length] = row.prompt[shared:] + row.answer[:-1]
        mask[index, :count] = 1.0
        positions.append(np.arange(first, first + count))
        slots.append(np.arange(index * width, index * width + count))
        flat.append(np.arange(row.start, row.start + count))
    token_ids = np.array([token for row in rows for token in row.answer], dtype=np.int64)
    prompt_lengths = np.array([len(row.prompt) for row in rows], dtype=np.int64)
    return MicroBatch(
        input_ids=_tensor(input_ids, device),
        mask=_tensor(mask, device),
        token_ids=_tensor(token_ids, device),
        positions=_tensor(np.concatenate(positions), device),
        slots=_tensor(np.concatenate(slots), device),
        flat=_tensor(np.concatenate(flat), device),
        steps=_tensor(np.array([row.step for row in rows], dtype=np.int64), device),
        last_prompt=_tensor(starts + prompt_lengths - shared - 1, device),
        padding=input_ids.size - shared - int(lengths.sum()),
        reused=shared * (len(rows) - 1),
        packing=_packing(lengths, shared, device) if packed else None,
    )


def _packing(lengths: np.ndarray, shared: int, device: torch.device) -> Packing:
    stem = np.arange(shared)
    starts = shared + np.cumsum(lengths) - lengths
    pairs = list(zip(starts, lengths, strict=True))
    keys = [stem, *(part for start, n in pairs for part in (stem, np.arange(start, start + n)))]
    queries = np.concatenate([[shared], lengths]) if shared else lengths
    attended = np.concatenate([[shared], lengths + shared]) if shared else lengths
    ends = [np.append(0, np.cumsum(sizes)).astype(np.int32) for sizes in (queries, attended)]
    positions = [stem, *(np.arange(shared, shared + n) for n in lengths)]
    return Packing(
        shared=shared,
        lengths=tuple(lengths.tolist()),
        position_ids=_tensor(np.concatenate(positions)[None], device),
        keys=_tensor(np.concatenate(keys), device) if shared else None,
        query_ends=_tensor(ends[0], device),
        key_ends=_tensor(ends[1], device),
    )


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    made = torch.from_numpy(array)
    # From pinned memory the copy goes on beside the computation.
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made
