"""Whole passes: each token is drawn from a pass over its sequence from the first token on.

Not every decoder can be computed with keys and values that are aligned at their ends (``cache``):
some keep more than these, others take positions from the mask. ``cache_problem`` tries it when a
model is loaded; where it fails, a ``WholeGroup`` takes the place of a ``Group``: slower, and exact
for any decoder.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from rlforge.engines.cache import Row, copy_row
from rlforge.engines.group import Generation, Group
from rlforge.engines.kept import KeptLogits
from rlforge.engines.policies import PolicyStore
from rlforge.engines.versions import BASE, PolicyKey
from rlforge.errors import ConfigError
from rlforge.models.devices import is_lost
from rlforge.models.last_layer import same_up_to_rounding
from rlforge.types import PolicyRef, SamplingParams

# Most rows of a pass: logits are computed where any of them ends.
_MOST_ROWS = 16

#: Largest difference of log-probs in float32, for logits up to 1; it grows with them.
_EXACT = 1e-5

#: Fields of configurations with the reach of a layer's attention, and the reach in a trial.
_REACHES, _SHORT = ("sliding_window", "attention_chunk_size"), 4

#: Fields of layers: from so many tokens on attention is scaled by position (Llama 4).
_SCALED_FROM = ("floor_scale",)


class WholeGroup(Group):
    """A running batch without a cache, which reads equal sequences of one version once.

    ``padded`` and ``most_tokens`` are those of ``last_logits``.
    """

    def __init__(self, *args: Any, padded: bool, most_tokens: int, **named: Any) -> None:
        super().__init__(*args, **named)
        self._padded, self._most_tokens = padded, most_tokens

    def size(self, joining: Sequence[Generation] = ()) -> int:
        return 0

    def prefill(self, rows: Sequence[Sequence[Generation]]) -> list[Generation]:
        joining = [generation for row in rows for generation in row]
        over = self._draw_whole(joining)
        self._rows += [[each] for each in joining if each.finish_reason is None]
        return over

    def step(self) -> list[Generation]:
        running = self.running
        over = self._draw_whole(running)
        self._rows = [[each] for each in running if each.finish_reason is None]
        return over

    def _draw_whole(self, generations: Sequence[Generation]) -> list[Generation]:
        by_version: dict[PolicyKey, dict[tuple[int, ...], list[Generation]]] = {}
        for each in generations:
            sequence = (*each.prompt, *each.token_ids)
            by_version.setdefault(each.key, {}).setdefault(sequence, []).append(each)
        for key, rows in by_version.items():
            with self._policies.computing([key]) as model:
                logits = last_logits(
                    model, list(rows), padded=self._padded, most_tokens=self._most_tokens
                )
            self._append(list(rows.values()), logits[:, 0])
        return [each for each in generations if each.finish_reason is not None]


def last_logits(
    model: Any,
    sequences: Sequence[Sequence[int]],
    number: int = 1,
    *,
    padded: bool,
    most_tokens: int,
    most_rows: int = _MOST_ROWS,
) -> Tensor:
    """The logits [B, number, V] after the last ``number`` tokens of each sequence.

    Args:
        model: The causal model.
        sequences: Token ids.
        number: How many of the last tokens.
        padded: Shorter ones are filled up behind their end; otherwise only those of one length are
            read together.
        most_tokens: Most tokens of a pass, if it has more than a row.
        most_rows: Most rows of a pass.
    """
    order = sorted(range(len(sequences)), key=lambda place: len(sequences[place]))
    found: dict[int, Tensor] = {}
    batch: list[int] = []
    for place in order:
        length = len(sequences[place])
        rows = len(batch) + 1
        fits = rows <= most_rows and rows * length <= most_tokens
        if batch and not (fits and (padded or length == len(sequences[batch[0]]))):
            found |= zip(batch, _read(model, [sequences[i] for i in batch], number), strict=True)
            batch = []
        batch.append(place)
    found |= zip(batch, _read(model, [sequences[i] for i in batch], number), strict=True)
    return torch.stack([found[place] for place in range(len(sequences))])


def _read(model: Any, sequences: Sequence[Sequence[int]], number: int) -> Tensor:
    """``last_logits`` by one pass, for sequences in the order of their lengths."""
    lengths = torch.tensor([len(each) for each in sequences])
    longest, device = int(lengths[-1]), next(model.parameters()).device
    ids = torch.tensor([[*each, *[0] * (longest - len(each))] for each in sequences])
    places = (lengths[:, None] - number + torch.arange(number)).clamp(min=0)
    kept = torch.unique(places)
    narrow = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        narrow["logits_to_keep"] = kept.to(device)
    logits = model(input_ids=ids.to(device), use_cache=False, **narrow).logits
    if narrow:
        places = torch.searchsorted(kept, places)
    picked: Tensor = logits[torch.arange(len(sequences))[:, None].to(device), places.to(device)]
    return picked


@torch.inference_mode()
def cache_problem(policies: PolicyStore, *, narrow: bool, longest: int = sys.maxsize) -> str:
    """The reason why the base model cannot answer from cached keys and values; "" if it can.

    A few short requests, which join a batch one after the other and continue one another's rows,
    are compared with plain passes. ``narrow`` is that of ``Group``; ``longest`` counts the tokens
    of the longest sequence.
    """
    with _short_windows(policies.base, longest):
        try:
            answers = _answers(policies, narrow)
        except Exception as error:  # a model may raise anything
            if is_lost(error):
                raise
            traceback.clear_frames(error.__traceback__)
            return f"it fails with {error!r}"
        with policies.plain() as model:
            for answer in answers:
                expected, scale = _plain_logprobs(model, (*answer.prompt, *answer.token_ids))
                said = torch.tensor(answer.logprobs)
                if not _agree(said, expected[-len(said) :], scale, model.dtype):
                    return "its answers differ"
    return ""


@torch.inference_mode()
def reads_padded(policies: PolicyStore) -> bool:
    """Whether sequences of different lengths may be filled up behind their end and read together.

    Raises ConfigError for a model whose log-probs depend on later tokens.
    """
    sequences = [_tokens(policies.base, length) for length in (3, 6, 10)]
    with policies.plain() as model:
        whole, scale = _plain_logprobs(model, sequences[-1])
        part, _ = _plain_logprobs(model, sequences[-1][:5])
        if not _agree(part, whole[: len(part)], scale, model.dtype):
            raise ConfigError(
                f"{type(model).__name__} cannot be trained: what it says of a token depends on "
                "later tokens; choose another model"
            )
        alone = [_read(model, [each], 1)[0] for each in sequences]
        try:
            together = _read(model, sequences, 1)
        except Exception as error:  # a model may raise anything
            if is_lost(error):
                raise
            return False
    return _agree(together, torch.stack(alone), scale, model.dtype)


def _answers(policies: PolicyStore, narrow: bool) -> list[Generation]:
    rows: dict[int, Row] = {}

    def keep(generation: Generation, cache: Cache, row: int) -> None:
        rows[generation.id] = copy_row(cache, row, generation.length - 1)

    group = Group(
        policies,
        0,
        8,
        narrow=narrow,
        keep=keep,
        share=lambda prompts, cache: None,
        logits=KeptLogits(0),
    )
    params = SamplingParams(conversation=0)
    policy = PolicyRef(uid="trial", kind="checkpoint")

    def ask(number: int, prompt: tuple[int, ...], limit: int) -> Generation:
        return Generation(
            id=number,
            prompt=prompt,
            params=params,
            policy=policy,
            seed=number,
            limit=limit,
            key=BASE,
            stop=frozenset(),
        )

    first = [ask(0, _tokens(policies.base, 3), 2), ask(1, _tokens(policies.base, 8), 4)]
    group.prefill([[each] for each in first])
    group.step()
    group.prefill([[late := ask(2, _tokens(policies.base, 5), 3)]])
    group.step()
    said = first[0].prompt + tuple(first[0].token_ids)
    again = ask(3, said + _tokens(policies.base, 2), 2)
    if 0 in rows:  # not where logits are NaN
        again.row, again.known = rows[0], len(said) - 1
    group.prefill([[again]])
    while group.running:
        group.step()
    return [*first, late, again]


def _tokens(model: Any, length: int) -> tuple[int, ...]:
    known = model.config.get_text_config().vocab_size
    numbers = torch.Generator().manual_seed(length)
    return tuple(torch.randint(known, (length,), generator=numbers).tolist())


def _plain_logprobs(model: Any, sequence: Sequence[int]) -> tuple[Tensor, float]:
    """Log-probs of all tokens but the first by a pass of their own, and the largest logit."""
    ids = torch.tensor([sequence], device=next(model.parameters()).device)
    logits = model(input_ids=ids, use_cache=False).logits[0].float()
    logprobs = torch.log_softmax(logits[:-1], -1).gather(1, ids[0, 1:, None])[:, 0]
    return logprobs.cpu(), float(logits.abs().max())


def _agree(said: Tensor, expected: Tensor, scale: float, dtype: torch.dtype) -> bool:
    """Whether two ways to compute the same differ by no more than rounding."""
    if not expected.isfinite().all():  # an answer says so itself
        return True
    if dtype != torch.float32:
        return same_up_to_rounding(said.to(dtype), expected.to(dtype))
    most = _EXACT * max(1.0, scale)
    return torch.allclose(said, expected, rtol=0, atol=most)


@contextlib.contextmanager
def _short_windows(model: Any, longest: int) -> Iterator[None]:
    """In the block, a few tokens exceed all reaches of attention that ``longest`` tokens exceed."""
    configs = {id(each): each for each in (model.config, model.config.get_text_config())}
    fields = [(config, name, sys.maxsize) for config in configs.values() for name in _REACHES]
    fields += [(module, name, longest) for module in model.modules() for name in _SCALED_FROM]
    reaches = [
        (holder, name, reach)
        for holder, name, most in fields
        if isinstance(reach := getattr(holder, name, None), int) and _SHORT < reach < most
    ]
    try:
        for holder, name, _ in reaches:
            setattr(holder, name, _SHORT)
        yield
    finally:
        for holder, name, reach in reaches:
            setattr(holder, name, reach)
