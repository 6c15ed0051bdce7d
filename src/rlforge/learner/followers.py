"""Copies of trained weights: their average, and an algorithm's reference."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from rlforge.algorithms.base import Reference
from rlforge.config.training import LearnerConfig
from rlforge.errors import CheckpointError
from rlforge.learner.sharding import cpu_copy, spread_like
from rlforge.learner.weights import check_fit

Weights = dict[str, Tensor]
"""Trained weights by name, without the critic's."""


class Followers:
    """Copies of the trained weights that follow them from update to update."""

    def __init__(
        self,
        parameters: Callable[[], Mapping[str, nn.Parameter]],
        config: LearnerConfig,
        reference: Reference | None,
        *,
        fresh_adapter: bool,
    ) -> None:
        """Take the present weights of ``parameters``, the trained ones, as version 0."""
        self._parameters = parameters
        self._config = config
        self._reference_of = reference
        self.average = None if config.average == "off" else self.copy()
        # Switching off a fresh adapter gives the weights of the start, so they need no copy.
        own = reference is not None and reference.to != "average" and not fresh_adapter
        self._snapshot = self.copy() if own else None

    @property
    def reference(self) -> Weights | None:
        if self._reference_of is not None and self._reference_of.to == "average":
            return self.average
        return self._snapshot

    def copy(self, device: str | None = None) -> Weights:
        """Copy of the trained weights, on ``device`` or their own."""
        return {
            name: p.detach().to(device or p.device, copy=True)
            for name, p in self._parameters().items()
        }

    @torch.no_grad()
    def put(self, weights: Weights) -> None:
        for name, parameter in self._parameters().items():
            parameter.copy_(weights[name])

    @contextlib.contextmanager
    def worn(self, weights: Weights) -> Iterator[None]:
        """Put ``weights`` into the model within the block, and hold its own in them meanwhile."""
        self._exchange(weights)
        try:
            yield
        finally:
            self._exchange(weights)

    @torch.no_grad()
    def _exchange(self, weights: Weights) -> None:
        # One tensor at a time: a second copy of all weights may not fit.
        for name, parameter in self._parameters().items():
            own = parameter.detach().clone()
            parameter.copy_(weights[name])
            weights[name].copy_(own)

    @torch.no_grad()
    def follow(self, updates: int) -> None:
        """Move on after update number ``updates`` of these weights."""
        config, reference = self._config, self._reference_of
        if self.average is not None:
            # Keeping u / (u + 1) at update u gives the plain mean of all weights so far.
            kept = config.average_decay if config.average == "moving" else updates / (updates + 1)
            for name, parameter in self._parameters().items():
                self.average[name].lerp_(parameter.detach(), 1.0 - kept)
        if reference is not None and reference.to == "snapshot" and updates % reference.every == 0:
            self.refresh()

    def refresh(self) -> None:
        self._snapshot = self.copy()

    def begin_anew(self) -> None:
        """Take the present weights as version 0."""
        if self.average is not None:
            self.average = self.copy()
        if self._snapshot is not None:
            self.refresh()

    def state_dict(self, *, keep: bool) -> dict[str, Weights]:
        """CPU copies of average and snapshot; empty tensors on ranks that do not ``keep`` them.

        Every rank calls it, because spread weights are gathered.
        """
        made = {"average": self.average}
        if self._reference_of is not None and self._reference_of.to == "snapshot":
            made["snapshot"] = self._snapshot
        return {
            kind: {name: cpu_copy(tensor, keep) for name, tensor in weights.items()}
            for kind, weights in made.items()
            if weights is not None
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore a ``state_dict``; CheckpointError without an average or for unfit weights."""
        if self.average is not None and "average" not in state:
            raise CheckpointError(
                "the learner state has no average of the weights: it was saved with "
                "learner.average=off"
            )
        own, reference = self._parameters(), self._reference_of
        takes = {
            "average": self.average is not None,
            "snapshot": reference is not None and reference.to == "snapshot",
        }
        for kind, weights in state.items():
            # The user may have switched this copy off since the state was saved.
            if not takes[kind]:
                continue
            check_fit(weights, own, f"{kind} in the learner state")
            loaded = {
                name: spread_like(weights[name], p).detach().to(p.device, copy=True)
                for name, p in own.items()
            }
            if kind == "average":
                self.average = loaded
            else:
                self._snapshot = loaded

    def tensors(self) -> Iterator[Tensor]:
        for weights in (self.average, self._snapshot):
            if weights is not None:
                yield from weights.values()
