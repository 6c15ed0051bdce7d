"""The models of the policy versions that the transformers engine holds.

Each is the base model with an adapter, which shares all other parameters with the base, or a
separate model when the checkpoint has full weights.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlforge.engines.cache import share_keys
from rlforge.engines.invariant import check_invariance, make_invariant
from rlforge.engines.mixture import Mixture, all_factors, keep_factors
from rlforge.engines.versions import PolicyKey, Versions
from rlforge.errors import ConfigError, EngineError, PolicyLoadError
from rlforge.models.devices import give_back, is_lost, move
from rlforge.models.files import ADAPTER_WEIGHTS, no_progress_bars
from rlforge.models.fit import copy_adapter, kind_of_weights
from rlforge.models.load import read_model
from rlforge.system.files import unreadable


class PolicyStore(Versions[nn.Module]):
    """Loads, holds and forgets the models of policy versions.

    All models, the base included, are batch-invariant (``rlforge.engines.invariant``), or use
    ``rlforge.engines.cache.grouped_attention`` and may compute one batch together
    (``rlforge.engines.mixture``).
    """

    def __init__(self, base: nn.Module, capacity: int, *, invariant: bool = False) -> None:
        if capacity < 1:
            raise EngineError(
                f"engine.max_loras is {capacity}; at least 1 version must be resident"
            )
        super().__init__(capacity)
        described: Any = base.config
        self._attention = described._attn_implementation
        self._prepare = make_invariant if invariant else share_keys
        self._prepare(base)
        if invariant:
            check_invariance(base)
        self.base = base
        self._mixture = None if invariant else Mixture(_alias(base))

    def use(self, key: PolicyKey) -> nn.Module:
        held = super().use(key)
        return self.base if held is None else held

    def batch_of(self, key: PolicyKey) -> PolicyKey | None:
        """The batch that the rows of a resident policy belong to; equal results share one."""
        return None if self._mixture is not None and key in self._mixture else key

    @contextlib.contextmanager
    def computing(self, keys: Sequence[PolicyKey | None]) -> Iterator[nn.Module]:
        """In the block, a model for a batch whose row b is of ``keys[b]``; None: of any of them."""
        first, *others = {key for key in keys if key is not None}
        if not others:
            yield self.base if first.path is None else self._held[first]
            return
        assert self._mixture is not None  # without it, a batch is of one version
        with self._mixture.of(keys) as model:
            yield model

    @contextlib.contextmanager
    def plain(self) -> Iterator[Any]:
        """In the block, the base model with the attention that it came with."""
        model: Any = self.base
        ours = model.config._attn_implementation
        if ours == self._attention:
            yield model
            return
        model.set_attn_implementation(self._attention)
        try:
            yield model
        finally:
            model.set_attn_implementation(ours)

    def _replace(self, victim: PolicyKey | None, key: PolicyKey, path: str) -> None:
        self._held[key] = load_policy(self.base, path, key.uid)
        self._prepare(self._held[key])
        if self._mixture is not None:
            self._mixture.add(key, self._held[key])
        if victim is not None:
            del self._held[victim]
            if self._mixture is not None:
                self._mixture.remove(victim)

    def move_to(self, device: torch.device) -> None:
        """Move all weights, and free the memory that they used."""
        models = [self.base, *self._held.values()]
        if self._mixture is not None:
            self._mixture.forget()
            models.append(self._mixture.model)
        origin = next(self.base.parameters()).device
        move((t for m in models for t in (*m.parameters(), *m.buffers())), device)
        give_back(origin)


def load_policy(base: nn.Module, path: str, uid: str) -> nn.Module:
    """The model of a checkpoint directory: a PEFT adapter over ``base``, or full weights.

    ``base`` is not changed. Raises PolicyLoadError where nothing in ``path`` fits the base model;
    errors that say that the device is lost pass through.
    """
    try:
        kind = kind_of_weights(Path(path))
    except ConfigError as error:
        raise PolicyLoadError(f"policy {uid!r} cannot be loaded: {error}") from error
    return _with_adapter(base, path, uid) if kind == "adapter" else _full_model(base, path, uid)


def _with_adapter(base: nn.Module, path: str, uid: str) -> nn.Module:
    from peft import PeftModel
    from safetensors.torch import load_file

    try:
        saved = load_file(Path(path) / ADAPTER_WEIGHTS)
        # PEFT draws initial weights from the global generator before it reads the saved ones. Its
        # low_cpu_mem_usage avoids that, but rounds adapters to the dtype of the base.
        with torch.random.fork_rng(devices=[]):
            wrapped: Any = PeftModel.from_pretrained(_alias(base), path)
        # PEFT only warns of missing weights, and leaves them at their random first values.
        problem = copy_adapter(wrapped, saved)
    except Exception as error:  # PEFT, safetensors and torch each raise their own
        if is_lost(error):
            raise
        raise _does_not_load(uid, path, error) from error
    if problem is not None:
        raise _does_not_load(uid, path, problem)
    # Merged, an adapter costs no time. In bfloat16 merging would round small updates away (a weight
    # of 0.02 has a spacing of 1e-4), and another policy would play than the learner trains, which
    # keeps adapters in float32.
    if next(base.parameters()).dtype == torch.float32:
        factors = all_factors(wrapped.get_base_model())
        # safe_merge works on a clone of each weight; the base keeps its own.
        model: nn.Module = wrapped.merge_and_unload(safe_merge=True)
        keep_factors(model, factors)
    else:
        model = wrapped.get_base_model()
    return model.requires_grad_(False).eval()


def _full_model(base: Any, path: str, uid: str) -> nn.Module:
    parameter = next(base.parameters())
    try:
        with no_progress_bars():
            model, lacking = read_model(path, dtype=parameter.dtype, local_files_only=True)
    except Exception as error:  # transformers and safetensors each raise their own
        if is_lost(error):
            raise
        raise _does_not_load(uid, path, error) from error
    found, ours = (each.config.get_text_config().vocab_size for each in (model, base))
    if found != ours:
        raise PolicyLoadError(
            f"policy {uid!r} cannot be loaded from {path}: its vocabulary has {found} tokens, the "
            f"base model's {ours}"
        )
    if lacking:
        raise _does_not_load(uid, path, lacking)
    full: nn.Module = model.to(parameter.device)
    return full.requires_grad_(False).eval()


def _does_not_load(uid: str, path: str, error: Exception | str) -> PolicyLoadError:
    if denied := unreadable(Path(path)):
        return PolicyLoadError(f"policy {uid!r} cannot be loaded: {denied}")
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return PolicyLoadError(
        f"policy {uid!r} cannot be loaded from {path}: {' '.join(reason[:3])}; "
        "is it complete, and an adapter of this base model?"
    )


def _alias(base: nn.Module) -> nn.Module:
    """A copy of the module tree whose parameters share their storage with ``base``."""
    # New Parameter objects, so that merging an adapter replaces a weight of the copy only.
    memo: dict[int, Any] = {
        id(p): nn.Parameter(p.data, requires_grad=False) for p in base.parameters()
    }
    memo.update({id(b): b for b in base.buffers()})
    model: Any = copy.deepcopy(base, memo)
    # A tied output layer gets one of its own: an adapter on it must not change the embedding.
    output, inputs = model.get_output_embeddings(), model.get_input_embeddings()
    if output is not None and output.weight is inputs.weight:
        output.weight = nn.Parameter(output.weight.data, requires_grad=False)
    return model  # type: ignore[no-any-return]
