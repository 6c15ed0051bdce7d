"""Predictions of a model for a few short rows, to try shorter computations against.

The plain model reads each row by itself, without padding, packing or replacements. A shorter
computation that finds other log-probs, or fails, is not used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rlforge.learner.batching import Row, rows_of
from rlforge.models.last_layer import EXACT, evaluating, trial_tokens
from rlforge.types import value

#: Rows that part at two places, so that packed rows have branches, and a short one.
_TEXTS = (
    (1, 2, 3, 4, 5, 6, 7, 8, 9),
    (1, 2, 3, 4, 5, 10, 11, 12, 13, 14),
    (1, 2, 3, 15, 16, 17, 18),
    (19, 20, 21, 22),
)


@value
class Trial:
    """Rows, whose first token is the prompt and the others the answer, and their log-probs.

    Attributes:
        plain [N, V]: Plain model's log-probs in float32 at the N positions that predict an answer
            token.
        exact: Relative error that rounding in float32 explains.
    """

    rows: tuple[Row, ...]
    plain: Tensor
    exact: float

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any) -> Trial:
        """Trial rows, and the log-probs that ``model`` finds for them now."""
        rows = _rows(model.config.get_text_config().vocab_size)
        plain = plain_logprobs(model)
        # Models magnify rounding differently: changed last bits show how much this one does.
        with last_bits(model, torch.float32):
            change = float((plain_logprobs(model) - plain).norm() / plain.norm())
        return cls(rows=rows, plain=plain, exact=max(EXACT, 10 * change))

    def scores(self, temperature: float) -> Tensor:
        """Log-probs of the answer tokens, and entropies, at a temperature [2, N]."""
        tokens = [token for row in self.rows for token in row.answer]
        tempered = (self.plain / temperature).log_softmax(-1)
        picked = tempered.gather(1, torch.tensor(tokens, device=tempered.device)[:, None])
        return torch.stack([picked[:, 0], torch.special.entr(tempered.exp()).sum(-1)])


@contextlib.contextmanager
def last_bits(model: Any, dtype: torch.dtype) -> Iterator[None]:
    """Change the last bits of embeddings, and so log-probs as rounding in ``dtype`` does."""
    generator = torch.Generator().manual_seed(0)

    def changed(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
        drawn = torch.randint(-1, 2, embedded.shape, generator=generator)
        return embedded * (1 + drawn.to(embedded) * torch.finfo(dtype).eps)

    with model.get_input_embeddings().register_forward_hook(changed):
        yield


def _rows(vocab_size: int) -> tuple[Row, ...]:
    tokens = trial_tokens(vocab_size, 1 + max(max(text) for text in _TEXTS)).tolist()
    texts = [tuple(tokens[number] for number in text) for text in _TEXTS]
    # Sorted, as the prefix tree of packed rows needs.
    rows, _ = rows_of((text[:1], text[1:]) for text in sorted(texts))
    return tuple(rows)


@torch.no_grad()
def plain_logprobs(model: Any) -> Tensor:
    made = []
    with evaluating(model):
        for row in _rows(model.config.get_text_config().vocab_size):
            ids = torch.tensor([row.tokens], device=model.device)
            made.append(model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1))
    return torch.cat(made)


@contextlib.contextmanager
def stirred(model: nn.Module) -> Iterator[None]:
    """Let adapters of ``model`` change it within the block, also fresh ones, whose B is zero."""
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
    """Call ``replace``, which may set the ``forward`` of modules; returns a call that undoes it."""
    own = [(module, vars(module).get("forward")) for module in model.modules()]
    replace()

    def undo() -> None:
        for module, forward in own:
            if forward is not None:
                module.forward = forward
            else:
                vars(module).pop("forward", None)

    return undo
