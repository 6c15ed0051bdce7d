"""A model spread over the ranks with FSDP2.

Each rank keeps its part of every weight. A decoder layer's weights are gathered while it runs,
forward and backward; embeddings, last norm and head during a whole pass. An adapter is small and
copied to every rank. FSDP itself sums and spreads the gradients of spread weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from rlforge.learner.batching import MicroBatch
from rlforge.learner.layers import decoder_layers
from rlforge.learner.ranks import Ranks
from rlforge.learner.scorer import Scorer, ScorerOptions, Scores

T = TypeVar("T")


class Whole(nn.Module):
    """Outermost module of a spread model, which runs a function as its forward pass.

    Embeddings, last norm and head are gathered meanwhile: a scorer calls decoder and head
    separately, and FSDP must see one pass.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


def spread_model(
    model: Any,
    ranks: Ranks,
    device: torch.device,
    copies: Collection[str],
    dtype: torch.dtype | None = None,
) -> Whole:
    """Spread the weights of ``model`` over ``ranks``, in place; ``copies`` stay whole, by name.

    Gathered weights have ``dtype`` (None: their own); parts and sums of gradients keep the weights'
    own. A model on the CPU moves to ``device`` layer by layer, which never holds it whole. Raises
    ConfigError for a model without decoder layers.
    """
    layers = decoder_layers(model, "shard_weights")
    kept = {parameter for name, parameter in model.named_parameters() if name in copies}
    for parameter in kept:
        # FSDP moves only weights that it spreads: these would stay where they are.
        parameter.data = parameter.data.to(device)
    mesh = ranks.mesh()
    # FSDP casts the weights. Autocast would keep a copy of every layer for the backward pass: the
    # whole model on every rank.
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=model.dtype)
    whole = Whole(model)
    for module in [*layers, whole]:
        # Gathered weights are freed after forward, the outermost too: after a pass without gradient
        # they would outlast an optimizer step, and be outdated.
        fully_shard(
            module, mesh=mesh, mp_policy=precision, ignored_params=kept, reshard_after_forward=True
        )
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            # Losses are normalised by the totals of all ranks, so gradients are summed.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return whole


class SpreadScorer(Scorer):
    """Scorer whose model is spread over the ranks; every rank must make the same calls."""

    def __init__(
        self,
        model: Any,
        options: ScorerOptions,
        value_head: nn.Module | None = None,
        *,
        ranks: Ranks,
        device: torch.device,
        copies: Collection[str],
    ) -> None:
        self._whole = spread_model(model, ranks, device, copies, options.autocast)
        super().__init__(model, options, value_head)

    def score(self, micro: MicroBatch, *, entropy: bool = False) -> Scores:
        plain = super().score

        def score() -> tuple[Tensor, Tensor | None, Tensor | None]:
            scores = plain(micro, entropy=entropy)
            # FSDP finds outputs in tuples, not in our classes, and they must not be views.
            values = None if scores.values is None else scores.values.clone()
            return scores.logprobs, scores.entropy, values

        logprobs, entropies, values = self._whole(score)
        return Scores(logprobs=logprobs, entropy=entropies, values=values)

    def values(self, micro: MicroBatch) -> Tensor:
        plain = super().values
        values: Tensor = self._whole(lambda: plain(micro))
        return values

    def _run(self, function: Callable[[], T]) -> T:
        returned: T = self._whole(function)
        # A trial may fail within a pass, which FSDP would take as still running.
        cast(FSDPModule, self._whole).reset_iter_state()
        return returned


def cpu_copy(tensor: Tensor, keep: bool) -> Tensor:
    """CPU copy of ``tensor``, gathered if it is spread; empty unless ``keep``.

    Every rank must call this for a spread tensor, also one that does not keep it.
    """
    tensor = whole(tensor.detach())
    return tensor.to("cpu", copy=True) if keep else torch.empty(0)


def whole(tensor: Tensor) -> Tensor:
    """``tensor``, gathered on its device if it is spread; every rank must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of the whole ``tensor`` if ``like`` is spread; otherwise ``tensor``."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(
        tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


def spread_optimizer_state(
    state: Mapping[str, Any], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Copy of the whole ``state`` for ``optimizer``: moments spread like their weights."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "state": {
            index: {
                name: spread_like(tensor.clone(), parameters[index]) if tensor.ndim else tensor
                for name, tensor in entry.items()
            }
            for index, entry in state["state"].items()
        },
        "param_groups": [dict(group) for group in state["param_groups"]],
    }


def clip_gradient(parameters: Iterable[nn.Parameter], largest: float, ranks: Ranks) -> float:
    """Scale all gradients to a global norm of at most ``largest``; returns the norm before.

    Gradients that are not spread must be the same on every rank.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    parts = [gradient.to_local() for gradient in gradients if isinstance(gradient, DTensor)]
    if not parts:
        norm = torch.nn.utils.get_total_norm(gradients)
    else:
        copies = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
        # Parts are of this rank alone; copies are equal on all ranks and count once.
        squares = ranks.sum_(torch.nn.utils.get_total_norm(parts) ** 2)
        norm = (squares + torch.nn.utils.get_total_norm(copies).to(squares.device) ** 2).sqrt()
    factor = torch.clamp(largest / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        local.mul_(factor)
    return float(norm)
