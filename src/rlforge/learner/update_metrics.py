"""Metrics of an update: loss, log-probs, lags, and the speed of its phases.

==================== =============================================================================
``loss``             of an optimizer step, averaged over those applied; nan if none was
``grad_norm``        global norm before clipping, averaged likewise
``lr``               learning rate of the policy
``nonfinite_steps``  optimizer steps skipped because loss or gradient was not finite;
                     ``skipped_no_signal`` 1 where the batch had no signal, and the policy no step
``tokens``           answer tokens in the loss
``seconds``          of the update; also ``seconds_scoring`` (critic and log-probs before it),
                     ``seconds_targets`` (advantages), ``seconds_gradient``, ``seconds_optimizer``
``tokens_per_s``     prompt and answer tokens trained per second
``tflops``           10^12 operations a second; ``mfu`` as a share of the card's peak, if known
``memory_peak_gb``   most memory of the card in the update; of the process so far on a CPU
``padding_share``    share of the computed positions that were padding
``reused_share``     share of tokens that a shared prefix or a joint row saved
``samples_empty``    samples without tokens; ``samples_too_long`` prompts beyond ``max_train_len``;
                     ``samples_truncated`` answers cut to it. Only the last are trained on
``samples_seen``     samples trained on since the start
``logprob_gap_mean`` |learner - engine| log-prob of tokens of the version that is updated or, where
                     they are few, of an earlier one (``rlforge.learner.gap``); ``logprob_gap_max``
``entropy``          mean of -log p of the sampled tokens before the update, in nats
``entropy_share``    the same under the engines that sampled them, as a share of the log of the
                     vocabulary: 1 for answers at random, 0 for answers that are certain
``answer_entropy``   mean of -log p of whole answers under the engines that sampled them, in nats
``moved``            KL divergence from the policy before the update to that after it, in nats a
                     token, over some turns of the batch (``rlforge.learner.gap.movement``)
``reward_mean``      after the transforms; ``raw_reward_mean`` before; ``advantage_mean``;
                     ``no_advantage_share`` of the turns have an advantage of 0
``reward_spread``    largest return that is trained on less the smallest
                     (``rlforge.algorithms.advantages``); ``raw_reward_spread`` of raw rewards
``seat_gap``         mean raw reward of the first seat's turns, less that of the others
``seat_share_min``   share of the samples that the seat with the fewest has, of the seats that have
                     any; ``seat_share_max`` of the one with the most
``lag_mean``         versions of the policy made since the one that sampled; ``lag_max``
``dropped_stale``    samples dropped as too old since the last update; ``dropped_stale_share``
``info/NAME``        mean of a number in ``Sample.info`` over the samples that have it
==================== =============================================================================

The metrics of the algorithm follow, averaged over the optimizer steps applied.
"""

from __future__ import annotations

import contextlib
import math
import re
import resource
import sys
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlforge.algorithms.advantages import reward_spread
from rlforge.algorithms.base import Algorithm
from rlforge.learner.batching import Row, Selection
from rlforge.models.targets import LINEAR
from rlforge.samples import Sample, TrainBatch
from rlforge.types import OTHER_RUN, value

#: Dense bfloat16 operations a second, with float32 sums, by NVIDIA's data sheets and white papers.
_PEAKS = {
    "A10": 125e12,
    "A10G": 70e12,
    "A30": 165e12,
    "A40": 149.7e12,
    "A100": 312e12,
    "A800": 312e12,
    "RTX A6000": 154.8e12,
    "RTX 3090": 71e12,
    "RTX 3090 Ti": 80e12,
    "L4": 121e12,
    "L40": 181e12,
    "L40S": 362e12,
    "RTX 6000 Ada": 364e12,
    "RTX 4090": 165e12,
    "H20": 148e12,
    "H100": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200": 989e12,
    "H200 NVL": 835e12,
    "H800": 989e12,
    "H800 PCIe": 756e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "RTX 5090": 209.5e12,
}

#: Advantages nearer to 0 than this are rounding errors of it.
_NO_ADVANTAGE = 1e-6

#: Words of a card's name that do not change its speed. Any other (``Laptop``, ``Ti``, a MIG slice)
#: makes it another card.
_NEUTRAL = re.compile(
    r"NVIDIA|GeForce|Tesla|Generation|SXM\d?|PCIe|NVL|HBM\d\w?|\d+GB?", flags=re.IGNORECASE
)


@value
class OptimizerStep:
    """One optimizer step.

    Attributes:
        applied: False when it was skipped as not finite.
        positions: Computed ones, ``padding`` included.
        reused: Tokens not computed again (see ``MicroBatch``).
        operations: Arithmetic (see ``Operations``).
    """

    loss: float
    grad_norm: float
    applied: bool
    trained_tokens: int
    positions: int
    padding: int
    reused: int
    operations: float
    metrics: Mapping[str, float]


def optimizer_metrics(steps: Sequence[OptimizerStep]) -> dict[str, float]:
    """Means over the optimizer steps of an update, including the algorithm's metrics."""
    applied = [step for step in steps if step.applied]
    positions = sum(step.positions for step in steps)
    padding, reused = sum(step.padding for step in steps), sum(step.reused for step in steps)
    metrics = {
        name: _mean([step.metrics[name] for step in applied if name in step.metrics])
        for name in {name: None for step in applied for name in step.metrics}
    }
    return {
        **metrics,
        "loss": _mean([step.loss for step in applied]),
        "grad_norm": _mean([step.grad_norm for step in applied]),
        "nonfinite_steps": float(len(steps) - len(applied)),
        "padding_share": padding / positions if positions else 0.0,
        "reused_share": reused / (positions - padding + reused) if positions else 0.0,
    }


def batch_metrics(
    batch: TrainBatch, selection: Selection, made: Sequence[int], algorithm: Algorithm
) -> dict[str, float]:
    """Rewards and lags of the batch, and counts of samples that are not trained on.

    Args:
        batch, selection: Samples, and those of them that are trained on.
        made: Versions of the policy that updates have made, in order.
        algorithm: It says which returns are trained on.
    """
    versions = [batch.samples[row.sample].policy_version for row in selection.turns]
    lags = [len(made) - bisect_right(made, one) for one in versions if one != OTHER_RUN]
    raw = [sample.raw_reward for sample in batch.samples]
    first = [sample.raw_reward for sample in batch.samples if sample.player_id == 0]
    others = [sample.raw_reward for sample in batch.samples if sample.player_id != 0]
    shares = [n / len(raw) for n in Counter(one.player_id for one in batch.samples).values()]
    return {
        "tokens": float(selection.tokens),
        "samples_empty": float(selection.empty),
        "samples_too_long": float(selection.too_long),
        "samples_truncated": float(selection.truncated),
        "reward_mean": _mean([sample.reward for sample in batch.samples]),
        "raw_reward_mean": _mean(raw),
        **({"reward_spread": reward_spread(algorithm, batch.samples)} if raw else {}),
        **({"raw_reward_spread": max(raw) - min(raw)} if raw else {}),
        **({"seat_share_min": min(shares), "seat_share_max": max(shares)} if shares else {}),
        **({"seat_gap": _mean(first) - _mean(others)} if first and others else {}),
        **({"lag_mean": _mean(lags), "lag_max": float(max(lags))} if lags else {}),
        "dropped_stale": float(batch.dropped_stale),
        "dropped_stale_share": batch.dropped_stale
        / max(1, batch.dropped_stale + len(batch.samples)),
        **_info_means(batch.samples),
    }


def _info_means(samples: Iterable[Sample]) -> dict[str, float]:
    numbers: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        for name, noted in sample.info.items():
            if isinstance(noted, int | float) and not isinstance(noted, bool):
                numbers[f"info/{name}"].append(noted)
    return {name: _mean(noted) for name, noted in numbers.items()}


def advantage_metrics(advantages: Tensor) -> dict[str, float]:
    if not len(advantages):
        return {"advantage_mean": float("nan")}
    none = advantages.abs() < _NO_ADVANTAGE
    return {
        "advantage_mean": float(advantages.mean()),
        "no_advantage_share": float(none.float().mean()),
    }


def logprob_metrics(
    selection: Selection,
    batch: Sequence[Sample],
    proximal: Tensor,
    behaviour: Tensor,
    vocabulary: int,
    version: int,
) -> dict[str, float]:
    """Entropies, and |proximal - behaviour| log-prob [N] over the tokens at lag 0.

    Args:
        selection, batch: Rows that are trained on, and the samples that they are of.
        proximal, behaviour: Log-probs [N] of their answer tokens before the update, and under the
            engines that sampled them.
        vocabulary: Number of tokens among which an engine draws.
        version: The one that is updated.
    """
    if not selection.tokens:
        return {}
    # At tokens of an earlier version the policy has changed, so the gap is not the engine's alone.
    current = np.repeat(
        [batch[row.sample].policy_version == version for row in selection.turns],
        [len(row.answer) for row in selection.turns],
    )
    # Under the version that drew them, -log p of tokens estimates an entropy without bias: after
    # large steps tokens of earlier versions look unlikely, and a sharp policy would seem uniform.
    sampled = float(-behaviour.mean())
    metrics = {
        "entropy": float(-proximal.mean()),
        "entropy_share": sampled / math.log(max(2, vocabulary)),
        "answer_entropy": sampled * len(behaviour) / len(selection.turns),
    }
    gap = (proximal - behaviour).abs().cpu()[torch.from_numpy(current)]
    return metrics | gap_metrics(gap) if len(gap) else metrics


def gap_metrics(gap: Tensor) -> dict[str, float]:
    """Mean and maximum of the ``gap`` [n] between log-probs of n > 0 tokens."""
    return {"logprob_gap_mean": float(gap.mean()), "logprob_gap_max": float(gap.max())}


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else float("nan")


def peak_operations(device: torch.device) -> float | None:
    """Peak operations per second of the card, in bfloat16; None where that is not known.

    All words of an entry must be in the card's name; the longest such entry counts.
    """
    if device.type != "cuda":
        return None
    words = re.split(r"[ -]", torch.cuda.get_device_name(device).casefold())
    fitting = [name for name in _PEAKS if _is_named(words, name.casefold().split())]
    return _PEAKS[max(fitting, key=len)] if fitting else None


def _is_named(words: Sequence[str], name: Sequence[str]) -> bool:
    """Whether ``words`` contain ``name`` and otherwise only neutral words."""
    return set(name) <= set(words) and all(
        word in name or _NEUTRAL.fullmatch(word) for word in words
    )


@value
class Operations:
    """Counts from which the operations of a pass over one model follow.

    As in PaLM (Chowdhery et al. 2022, appendix B), without recomputation and padding: per token, N
    weights of linear layers take 2 N forward and 2 N for the gradient of their inputs; trained
    weights another 2 each. Causal attention over n tokens takes 2 n^2 d forward, d = layers x heads
    x head size, and twice that backward.

    Attributes:
        linear: Weights of linear layers without the head.
        trained: Parameters, of the model or an adapter, that get a gradient.
        head: Weights of the head, which is computed at answer tokens only.
        attention: The d above.
        left_out: Linear and trained weights of modules that compute only positions that are read.

    Example:
        >>> model = Operations(linear=100, trained=10, head=1000, attention=7)
        >>> model.training([Row(sample=0, prompt=(1, 2), answer=(3,))], reused=0, scored=1)
        5008.0
    """

    linear: int
    trained: int
    head: int
    attention: int
    left_out: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, model: Any, narrowed: Iterable[nn.Module] = ()) -> Operations:
        """Counts of ``model`` with adapters; ``narrowed`` modules compute only read positions."""
        head = model.get_output_embeddings()
        inside = {id(p) for p in head.parameters()}
        matrices = [each for each in _matrices(model) if id(each) not in inside]
        narrow = [each for module in narrowed for each in _matrices(module)]
        config = model.config.get_text_config()
        attention = 0
        # The config of a model in parts (BLT) lacks the number of layers: attention is not counted.
        if layers := getattr(config, "num_hidden_layers", 0):
            heads = config.num_attention_heads
            # By ``vars``: the attribute raises an error where layers differ (Gemma 4).
            attention = (
                layers * heads * (vars(config).get("head_dim") or config.hidden_size // heads)
            )
        return cls(
            linear=sum(weight.numel() for weight in matrices),
            trained=sum(weight.numel() for weight in matrices if weight.requires_grad),
            head=sum(p.numel() for p in head.parameters() if p.ndim == 2),
            attention=attention,
            left_out=(
                sum(weight.numel() for weight in narrow),
                sum(weight.numel() for weight in narrow if weight.requires_grad),
            ),
        )

    def training(self, rows: Sequence[Row], reused: int, scored: int, unread: int = 0) -> float:
        """Operations of one pass over ``rows`` with its gradient.

        ``reused`` tokens cost nothing, ``unread`` ones less: the last layer leaves them out. The
        head computes ``scored`` answer tokens.
        """
        turns = [turn for row in rows for turn in row.turns]
        tokens = sum(turn.input_length for turn in turns) - reused
        # Attention in common prefixes counts for each row, because the error is small.
        squares = sum(row.input_length**2 for row in rows)
        linear, trained = self.left_out
        return float(
            tokens * (4 * self.linear + 2 * self.trained)
            - unread * (4 * linear + 2 * trained)
            + scored * 4 * self.head
            + squares * 6 * self.attention
        )


def _matrices(module: nn.Module) -> list[Tensor]:
    return [each.weight for each in module.modules() if isinstance(each, LINEAR)]


class Stopwatch:
    """Seconds by phase; synchronises with the device at the start and end of each."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        self._started = self._now()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = self._now()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - started

    def metrics(self, tokens: int, operations: float, devices: int = 1) -> dict[str, float]:
        """Speed since the start, in which ``devices`` together trained ``tokens``."""
        seconds = self._now() - self._started
        if self._device.type == "cuda":
            peak_bytes = torch.cuda.max_memory_allocated(self._device)
        else:
            # macOS gives this in bytes, Linux in KiB.
            unit = 1 if sys.platform == "darwin" else 1024
            peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        metrics = {
            "seconds": seconds,
            "tokens_per_s": tokens / seconds,
            "tflops": operations / seconds / 1e12,
            "memory_peak_gb": peak_bytes / 1e9,
        }
        peak = peak_operations(self._device)
        if peak is not None:
            metrics["mfu"] = operations / seconds / peak / devices
        return metrics | {f"seconds_{name}": took for name, took in self.seconds.items()}

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
