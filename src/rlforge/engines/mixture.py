"""One forward pass for rows of several policy versions.

The base model is computed once for the whole batch. To its linear layers each row adds what its
LoRA adapter adds: x A B, with factors A [I, r] and B [r, O] (Hu et al. 2021, "LoRA"), in one
batched product for all versions (Chen et al. 2023, "Punica", have a kernel for GPUs). Versions that
differ in anything else, as by DoRA, cannot be mixed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from rlforge.engines.versions import BASE, PolicyKey
from rlforge.models.last_layer import EXACT, difference, trial_tokens
from rlforge.models.targets import LINEAR

log = logging.getLogger(__name__)

#: A and B of a layer, the latter times the adapter's scale.
Factors = tuple[Tensor, Tensor]


@dataclass(slots=True, eq=False)
class _Rows:
    """The rows [B] of a pass, of V versions.

    Attributes:
        of [B]: Version of each row.
        keys [V]: The versions.
        padded [V * M]: Rows of each version, as many for each, filled up with row 0.
        places [B]: Place of each row in ``padded``.
        read: Input of the last layer, and its rows in the order of ``padded``.
    """

    of: Sequence[PolicyKey | None]
    keys: Sequence[PolicyKey]
    padded: Tensor
    places: Tensor
    read: tuple[Tensor, Tensor] | None = None

    def by_version(self, x: Tensor) -> Tensor:
        """The rows of x [B, T, I], or [1, B * T, I], as [V, M * T, I]."""
        # Queries, keys and values have the same input.
        if self.read is None or self.read[0] is not x:
            rows = x.reshape(len(self.places), -1, x.shape[-1]).index_select(0, self.padded)
            self.read = x, rows.view(len(self.keys), -1, x.shape[-1])
        return self.read[1]

    def from_versions(self, out: Tensor) -> Tensor:
        """The rows of [V, M * T, O] in their own order: [B, T, O]."""
        return out.view(len(self.padded), -1, out.shape[-1]).index_select(0, self.places)


class Mixture:
    """A model whose rows may be of different versions.

    ``model``, a copy of the base model that shares its storage, becomes the one that computes them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._modules = dict(model.named_modules())
        self._layers: dict[PolicyKey, Mapping[str, nn.Module]] = {BASE: {}}
        self._works: dict[frozenset[str], bool] = {}
        self.forget()

    def __contains__(self, key: PolicyKey) -> bool:
        return key in self._layers

    def add(self, key: PolicyKey, version: nn.Module) -> None:
        """Let rows be of ``version``, if it differs from the base by plain LoRA alone."""
        theirs, layers = dict(version.named_modules()), dict[str, nn.Module]()
        for name, module in self._modules.items():
            other = theirs.get(name)
            if other is None:
                return
            if _shares_all(module, other):
                continue
            if not isinstance(module, LINEAR) or _factors_of(other) is None:
                return
            layers[name] = other
        self._layers[key] = layers
        names = frozenset(layers)
        if names not in self._works:
            for name in names:
                if not isinstance(self.model.get_submodule(name), MixedLayer):
                    self.model.set_submodule(name, MixedLayer(self, name, self._modules[name]))
            self._works[names] = self._computes(key, version)
        if not self._works[names]:
            del self._layers[key]

    def remove(self, key: PolicyKey) -> None:
        """Forget a version."""
        self._layers.pop(key, None)
        self.forget()

    def forget(self) -> None:
        """Free what was prepared for the rows of the last pass."""
        #: The rows of the pass under way or the last one, and how their versions change each layer.
        self.rows = _Rows([], [], torch.empty(0), torch.empty(0))
        self._changes: dict[str, Factors | None] = {}

    @contextlib.contextmanager
    def of(self, keys: Sequence[PolicyKey | None]) -> Iterator[nn.Module]:
        """The model for a batch whose row b is of version ``keys[b]``; None: of any."""
        if keys != self.rows.of:  # rows of a step are mostly those of the step before
            rows = _sorted_rows(keys, next(self.model.parameters()).device)
            if rows.keys != self.rows.keys:
                self._changes = {}
            self.rows = rows
        try:
            yield self.model
        finally:
            self.rows.read = None

    def changes(self, name: str) -> Factors | None:
        """Factors [V, I, r] and [V, r, O] for layer ``name`` of the versions of the pass."""
        if name not in self._changes:
            layers = [self._layers[key].get(name) for key in self.rows.keys]
            self._changes[name] = _stacked(layers) if any(layers) else None
        return self._changes[name]

    @torch.inference_mode()
    def _computes(self, key: PolicyKey, version: Any) -> bool:
        """Whether rows of ``version`` are what it computes alone, tried on a few tokens."""
        vocabulary = version.config.get_text_config().vocab_size
        device = next(version.parameters()).device
        ids = trial_tokens(vocabulary, 15).to(device).view(3, 5)

        def logits(model: Any) -> Tensor:
            computed: Tensor = model(input_ids=ids, use_cache=False).logits
            return computed[::2]

        def mixed() -> Tensor:
            with self.of([key, BASE, key]) as model:
                return logits(model)

        # Merged into the weights, as here on one side, an adapter is rounded once more.
        problem = difference(mixed, partial(logits, version), exact=4 * EXACT)
        if problem:
            name = type(version).__name__
            log.info("versions of %s have batches of their own: mixing them %s", name, problem)
        return not problem


class MixedLayer(nn.Module):
    """A layer of the base model, with what the versions of its rows change."""

    def __init__(self, mixture: Mixture, name: str, own: nn.Module) -> None:
        super().__init__()
        self._mixture, self._name, self.own = mixture, name, own

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """x: [B, T, I], or [1, B * T, I] where only some positions are computed; [..., O]."""
        out: Tensor = self.own(x, *args, **kwargs)
        changes, rows = self._mixture.changes(self._name), self._mixture.rows
        if changes is None:
            return out
        if x.dim() != 3 or args or kwargs:
            raise TypeError(f"{self._name} does not get its rows alone, one after the other")
        into, back = changes
        added = torch.bmm(torch.bmm(rows.by_version(x).to(into.dtype), into), back)
        return out.add_(rows.from_versions(added).view_as(out))


def _sorted_rows(keys: Sequence[PolicyKey | None], device: torch.device) -> _Rows:
    used = sorted({key for key in keys if key}, key=lambda key: (key.uid, key.path or ""))
    numbers = {key: number for number, key in enumerate(used)}
    versions = np.array([0 if key is None else numbers[key] for key in keys])
    counts = np.bincount(versions, minlength=len(used))
    order = np.argsort(versions, kind="stable")
    most = int(counts.max())
    places = np.empty(len(keys), dtype=np.int64)
    begins = np.arange(len(used)) * most - (counts.cumsum() - counts)
    places[order] = np.arange(len(keys)) + begins[versions[order]]
    padded = np.zeros(len(used) * most, dtype=np.int64)
    padded[places] = np.arange(len(keys))
    in_order, back = (torch.from_numpy(each).to(device) for each in (padded, places))
    return _Rows(list(keys), used, in_order, back)


def all_factors(model: nn.Module) -> dict[str, Factors]:
    """Factors by name of each layer that PEFT wraps in ``model``."""
    found = ((name, _factors_of(module)) for name, module in model.named_modules())
    return {name: factors for name, factors in found if factors is not None}


def keep_factors(model: nn.Module, factors: Mapping[str, Factors]) -> None:
    """Note in the layers of ``model`` the factors of the adapter that was merged into them."""
    for name, (into, back) in factors.items():
        layer = model.get_submodule(name)
        layer.register_buffer("adapter_into", into, persistent=False)
        layer.register_buffer("adapter_back", back, persistent=False)


def _factors_of(layer: Any) -> Factors | None:
    """Factors of plain LoRA in a layer that PEFT wraps or ``keep_factors`` marked."""
    from peft.tuners.lora import Linear

    if type(layer) in LINEAR and hasattr(layer, "adapter_into"):
        into, back = layer.adapter_into, layer.adapter_back
        return into, back
    if type(layer) is not Linear or type(layer.get_base_layer()) not in LINEAR:
        return None
    (name,) = layer.active_adapters
    if name not in layer.lora_A or name in layer.lora_variant or layer.lora_bias[name]:
        return None
    into, back = layer.lora_A[name].weight, layer.lora_B[name].weight
    return into.t().contiguous(), (back.t() * layer.scaling[name]).contiguous()


def _stacked(layers: Sequence[nn.Module | None]) -> Factors:
    """Factors of all layers in two tensors, zero for None and beyond a lower rank."""
    found = [None if layer is None else _factors_of(layer) for layer in layers]
    some = [each for each in found if each is not None]
    rank = max(into.shape[1] for into, _ in some)
    nothing = tuple(torch.zeros_like(each) for each in some[0])
    into, back = zip(*(each or nothing for each in found), strict=True)
    return (
        torch.stack([pad(each, (0, rank - each.shape[1])) for each in into]),
        torch.stack([pad(each, (0, 0, 0, rank - each.shape[0])) for each in back]),
    )


def _shares_all(module: nn.Module, other: nn.Module) -> bool:
    """Whether two modules, without those below them, have one kind and the same tensors."""
    own, others = (
        [
            (name, tensor.data_ptr())
            for held in (each.named_parameters(recurse=False), each.named_buffers(recurse=False))
            for name, tensor in held
        ]
        for each in (module, other)
    )
    return type(module) is type(other) and own == others
