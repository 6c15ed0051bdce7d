"""What an update reports.

==================== =============================================================================
``loss``             of an optimizer step, averaged over those applied; nan if none was
``grad_norm``        global norm before clipping, averaged likewise
``lr``               learning rate of the policy
``nonfinite_steps``  optimizer steps skipped because loss or gradient was not finite
``tokens``           answer tokens in the loss
``seconds``          of the update; ``seconds_targets`` advantages and critic, ``seconds_scoring``
                     log-probs before the update, ``seconds_gradient``, ``seconds_optimizer``
``tokens_per_s``     prompt and answer tokens trained per second of the whole update
``tflops``           10^12 operations of the model a second; ``mfu`` as a share of what the card
                     can do, where that is known
``memory_peak_gb``   most memory of the card in the update; of the process so far on a CPU
``padding_share``    share of the computed positions that were padding
``reused_share``     share of the tokens that were not computed, as prompts began alike
``samples_empty``    steps without tokens; ``samples_too_long`` prompts beyond ``max_train_len``;
                     ``samples_truncated`` answers cut to it. Only the last are trained on
``samples_seen``     steps trained on since the start
``logprob_gap_mean`` |learner - engine| log-prob over the tokens drawn by the very version that is
                     updated; with ``logprob_gap_max``; both absent when there are no such tokens
``entropy``          estimated from the sampled tokens: mean of -log p before the update, in nats
``reward_mean``      after the transforms; ``raw_reward_mean`` before; ``advantage_mean``
``lag_mean``         updates between a step's policy and the one updated; ``lag_max``
``dropped_stale``    steps thrown away as too old since the update before;
                     ``dropped_stale_share`` of those and the ones learned from
==================== =============================================================================

Beside them stand the algorithm's own, averaged over the optimizer steps applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from rlforge.learner.batching import Selection
from rlforge.types import Step, TrainBatch, value


@value
class OptimizerStep:
    """One optimizer step. applied: False when it was skipped as not finite.

    trained_tokens: of prompts and answers. positions: what the model read, ``padding`` included;
    reused: what it did not read again (see ``MicroBatch``). operations: arithmetic that the model
    took (see ``rlforge.learner.speed``).
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
    """Means over the optimizer steps of an update, the algorithm's metrics among them."""
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


def batch_metrics(batch: TrainBatch, selection: Selection, version: int) -> dict[str, float]:
    """What the batch was like: rewards, lags, and what could not be trained on."""
    lags = [version - batch.steps[row.step].policy_version for row in selection.rows]
    return {
        "tokens": float(selection.tokens),
        "samples_empty": float(selection.empty),
        "samples_too_long": float(selection.too_long),
        "samples_truncated": float(selection.truncated),
        "reward_mean": _mean([step.reward for step in batch.steps]),
        "raw_reward_mean": _mean([step.raw_reward for step in batch.steps]),
        "lag_mean": _mean(lags),
        "lag_max": float(max(lags, default=0)),
        "dropped_stale": float(batch.dropped_stale),
        "dropped_stale_share": batch.dropped_stale / max(1, batch.dropped_stale + len(batch.steps)),
    }


def logprob_metrics(
    selection: Selection, steps: Sequence[Step], start: Tensor, behaviour: Tensor, version: int
) -> dict[str, float]:
    """How far learner (``start`` [N]) and engine (``behaviour`` [N]) disagree at lag 0."""
    if not selection.tokens:
        return {}
    current = np.repeat(
        [steps[row.step].policy_version == version for row in selection.rows],
        [len(row.answer) for row in selection.rows],
    )
    metrics = {"entropy": float(-start.mean())}
    gap = (start - behaviour).abs().cpu().numpy()[current]
    if gap.size:
        metrics |= {"logprob_gap_mean": float(gap.mean()), "logprob_gap_max": float(gap.max())}
    return metrics


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else float("nan")
