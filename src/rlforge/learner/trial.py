"""What a model predicts for a few short rows, to try shorter computations against.

The plain model reads each row by itself: nothing is padded, packed, left out or replaced. A shorter
computation that finds other log-probs, or fails, is not used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rlforge.learner.batching import Row
from rlforge.models.last_layer import evaluating

#: Rows that begin alike and part at two places, so that packed rows have branches, and a short one.
_TEXTS = (
    (1, 2, 3, 4, 5, 6, 7, 8, 9),
    (1, 2, 3, 4, 5, 10, 11, 12, 13, 14),
    (1, 2, 3, 15, 16, 17, 18),
    (19, 20, 21, 22),
)


def trial_rows(vocab_size: int) -> list[Row]:
    """The rows: their first token is the prompt, and the others are the answer."""
    texts = [tuple(token % vocab_size for token in text) for text in sorted(_TEXTS)]
    starts = [sum(len(text) - 1 for text in texts[:index]) for index in range(len(texts))]
    return [
        Row(step=index, prompt=text[:1], answer=text[1:], start=start)
        for index, (text, start) in enumerate(zip(texts, starts, strict=True))
    ]


@torch.no_grad()
def plain_logprobs(model: Any) -> Tensor:
    """[N, V] float32: log-probs at the N positions of the rows that predict an answer token."""
    made = []
    with evaluating(model):
        for row in trial_rows(model.config.get_text_config().vocab_size):
            ids = torch.tensor([row.tokens], device=model.device)
            made.append(model(input_ids=ids).logits[0].float().log_softmax(-1))
    return torch.cat(made)


def chosen(logprobs: Tensor, temperature: float, vocab_size: int) -> Tensor:
    """[2, N]: log-probs of the answer tokens and entropies, from the ``logprobs`` [N, V]."""
    tokens = [token for row in trial_rows(vocab_size) for token in row.answer]
    tempered = (logprobs / temperature).log_softmax(-1)
    picked = tempered.gather(1, torch.tensor(tokens, device=logprobs.device)[:, None])
    return torch.stack([picked[:, 0], torch.special.entr(tempered.exp()).sum(-1)])


@contextlib.contextmanager
def stirred(model: nn.Module) -> Iterator[None]:
    """In the block adapters of ``model`` change it, also fresh ones, whose B is zero."""
    weights = [p for name, p in model.named_parameters() if ".lora_B." in name]
    before = [weight.detach().clone() for weight in weights]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in weights:
            drawn = torch.randn(weight.shape, generator=generator)
            weight.copy_(drawn * weight.shape[-1] ** -0.5 / 10)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, kept in zip(weights, before, strict=True):
                weight.copy_(kept)


def replace_forwards(model: nn.Module, replace: Callable[[], None]) -> Callable[[], None]:
    """Call ``replace``, which may set the ``forward`` of modules; returns what undoes that."""
    own = [(module, vars(module).get("forward")) for module in model.modules()]
    replace()

    def undo() -> None:
        for module, forward in own:
            if forward is not None:
                module.forward = forward
            else:
                vars(module).pop("forward", None)

    return undo
