"""Ways from hidden states to log-probs and back, compared on a GPU.

Used by ``benchmarks/logits.py --device cuda``; needs torch and transformers, no game and no Ray.
The loss weighs every token by a number of its own, as advantages do. Each way runs forward and
backward in bfloat16 over the same frozen head, as an adapter trains it:

- rlforge: the learner's own function (``rlforge.learner.logprobs``), by chunks;
- full_logits: all logits at once, log softmax, gather;
- liger: Liger's fused linear cross entropy with ``reduction="none"``, where ``liger_kernel`` is
  installed. Older versions multiply every gradient by the first token's weight, so each way's
  gradient error is reported with its time: as a distance from the float32 one, relative to that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from common import record, shown, spread
from torch import Tensor

from rlforge.learner.logprobs import Head, Reading, chunked_logprobs
from rlforge.system.limits import MAX_LOGITS

Way = Callable[[Tensor, Tensor, Tensor], Tensor]
NAMES = ("rlforge", "full_logits", "liger")
#: Of gradients in bfloat16; a wrong weight shows as about 1.
LARGEST_ERROR = 0.05


def own(hidden: Tensor, weight: Tensor, token_ids: Tensor) -> Tensor:
    """Log-probs [N] of ``token_ids`` [N] after ``hidden`` [N, H], the head being [V, H]."""
    head = Head(
        weight=weight,
        bias=None,
        dtype=weight.dtype,
        reading=Reading(),
        chunk=max(1, MAX_LOGITS // len(weight)),
    )
    return chunked_logprobs(hidden, token_ids, head, entropy=False)[0]


def full_logits(hidden: Tensor, weight: Tensor, token_ids: Tensor) -> Tensor:
    """The same from all logits."""
    logits = torch.nn.functional.linear(hidden, weight).float()
    return logits.log_softmax(-1).gather(-1, token_ids[:, None]).squeeze(-1)


def ways() -> dict[str, Way]:
    """Every way that is installed here, by name."""
    found: dict[str, Way] = {"rlforge": own, "full_logits": full_logits}
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError:
        return found
    loss = LigerFusedLinearCrossEntropyLoss(reduction="none")
    return found | {"liger": lambda hidden, weight, ids: -loss(weight, hidden, ids)}


def compare(
    device: str, tokens: int, vocabulary: int, width: int, repeats: int
) -> dict[str, dict[str, Any]]:
    """Of each way: time, peak memory (of GPUs only) and distance from the float32 gradient.

    width: of the hidden states.
    """
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    hidden, weight = draw(tokens, width).to(dtype), draw(vocabulary, width).to(dtype) / width**0.5
    token_ids = torch.randint(vocabulary, (tokens,), generator=generator, device=device)
    weights = draw(tokens)

    def gradient(way: Way, states: Tensor, head: Tensor) -> Tensor:
        states = states.detach().requires_grad_()
        (way(states, head, token_ids) * weights).sum().backward()
        assert states.grad is not None
        return states.grad

    exact = gradient(own, hidden.float(), weight.float())
    rows = {}
    for name, way in ways().items():
        gradient(way, hidden, weight)  # kernels are chosen and compiled
        before = _start(device)
        error = float((gradient(way, hidden, weight).float() - exact).norm() / exact.norm())
        row: dict[str, Any] = {"gradient_relative_error": error}
        if device == "cuda":
            row["peak_bytes"] = torch.cuda.max_memory_allocated() - before
        times = []
        for _ in range(repeats):
            _start(device)
            began = time.perf_counter()
            gradient(way, hidden, weight)
            _start(device)
            times.append(time.perf_counter() - began)
        rows[name] = row | {"forward_and_backward": spread(times)}
    return rows


def measure_heads(tokens: int, vocabulary: int, width: int, repeats: int) -> None:
    """Compares the ways on this machine's GPU, prints and records them."""
    if not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no CUDA device here; this needs a GPU")
    rows = compare("cuda", tokens, vocabulary, width, repeats)
    show(rows)
    sizes = {"tokens": tokens, "vocabulary": vocabulary, "width": width, "dtype": "bfloat16"}
    card = {"card": torch.cuda.get_device_name()}
    record("logits_cuda", {**card, **sizes, "ways": rows}, script="logits")


def show(rows: dict[str, dict[str, Any]]) -> None:
    """A line for each way, and which are absent or wrong."""
    for name, row in rows.items():
        took = shown(row["forward_and_backward"], scale=1e3)
        peak = f"{row['peak_bytes'] / 2**20:10.0f} MiB" if "peak_bytes" in row else ""
        error = row["gradient_relative_error"]
        wrong = "  wrong gradient" if error > LARGEST_ERROR else ""
        print(f"{name:12}{took:>24} ms{peak}  gradient off by {error:.1e}{wrong}")
    if absent := [name for name in NAMES if name not in rows]:
        print(f"absent: {', '.join(absent)}; to install: pip install liger-kernel")


def _start(device: str) -> int:
    """Waits for the device; peak memory counts from here. Bytes that are allocated now."""
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()
