"""Ranks: the processes that make one update together, and their communication.

Every rank holds the whole batch and the same trained weights, and computes its share of the rows.
Losses and metrics are normalised by the totals of the whole optimizer step, so their sums over
ranks (never means) equal the results of one rank. From equal sums every rank takes the same step,
or skips it where a sum is not finite.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

PATIENCE = timedelta(minutes=30)
"""Longest wait for another rank, whose share of an update may take long."""

MAX_BUCKET = 2**26
"""Most gradient numbers in one collective: 256 MiB in float32, of which a copy must fit."""


class Ranks:
    """A single rank: every sum has one term, so the methods change nothing.

    ``rank`` counts from 0, the only one that writes files; ``size`` is the number of ranks.
    """

    rank = 0
    size = 1

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace ``tensor`` by its sum over the ranks, and return it."""
        return tensor

    def add_up(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Sums by name, in float64; a name that a rank lacks counts as 0."""
        return dict(numbers)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over the ranks; one that no rank has stays None."""

    def share_from_first(self, parameters: Iterable[nn.Parameter]) -> None:
        """Copy the values of rank 0 to every rank, except for parameters spread over the ranks."""

    def mesh(self) -> DeviceMesh:
        """Device mesh of all ranks, for FSDP."""
        raise ValueError("a model cannot be spread over one rank")


class ConnectedRanks(Ranks):
    """One of several ranks, connected by gloo for tensors on the CPU and NCCL for GPUs."""

    def __init__(self, store: Store, rank: int, size: int, device: torch.device) -> None:
        """Wait until all ``size`` ranks are connected through ``store``."""
        self.rank, self.size = rank, size
        self._device = device
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)

    def sum_(self, tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor)
        return tensor

    def add_up(self, numbers: Mapping[str, float]) -> dict[str, float]:
        gathered: list[Mapping[str, float]] = [{}] * self.size
        dist.all_gather_object(gathered, dict(numbers))
        # In order of first appearance: a set would order the names differently on each rank.
        names = {name: None for each in gathered for name in each}
        return {name: sum(each.get(name, 0.0) for each in gathered) for name in names}

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        # FSDP has already summed the gradients of parameters that are spread over the ranks.
        copies = [p for p in parameters if not isinstance(p, DTensor)]
        # A rank whose rows miss a parameter has no gradient of it, but must join in each sum.
        present = self.sum_(torch.tensor([p.grad is not None for p in copies], dtype=torch.int32))
        wanted = [p for p, count in zip(copies, present.tolist(), strict=True) if count]
        # Few large collectives are faster than one per parameter.
        for bucket in _buckets(wanted):
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            self.sum_(flat)
            parts = torch.split(flat, [parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad = part.view_as(parameter)

    @torch.no_grad()
    def share_from_first(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            if not isinstance(parameter, DTensor):
                dist.broadcast(parameter.detach(), src=0)

    def mesh(self) -> DeviceMesh:
        return init_device_mesh(self._device.type, (self.size,))


def meeting_point(host: str, size: int) -> TCPStore:
    """Store through which ``size`` ranks connect, served by rank 0 at a free port of ``host``."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.bind((host, 0))
    listener.listen(size)
    port = listener.getsockname()[1]
    # The store takes over the open socket; its own would listen on every interface.
    return TCPStore(
        host,
        port,
        size,
        is_master=True,
        timeout=PATIENCE,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def join(host: str, port: int, size: int) -> TCPStore:
    return TCPStore(host, port, size, is_master=False, timeout=PATIENCE, wait_for_workers=False)


def stay_local(host: str) -> None:
    """Restrict gloo and NCCL to the loopback interface if ``host`` is a loopback address."""
    if host.startswith("127."):
        # NCCL would otherwise open its connections through another interface.
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, "lo")


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Cut ``parameters``, in order, into lists of at most ``MAX_BUCKET`` numbers or one of them."""
    bucket: list[nn.Parameter] = []
    filled = 0
    for parameter in parameters:
        if bucket and filled + parameter.numel() > MAX_BUCKET:
            yield bucket
            bucket, filled = [], 0
        bucket.append(parameter)
        filled += parameter.numel()
    if bucket:
        yield bucket
