"""One update: a batch of steps in, a better policy and its measurements out."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlforge.algorithms.base import Algorithm, LossInputs
from rlforge.config.schema import LearnerConfig, LoraConfig
from rlforge.errors import CheckpointError, ConfigError, RunError
from rlforge.learner.batching import MicroBatch, Row, Selection, select_rows, split_rows
from rlforge.learner.optim import (
    learning_rate_factor,
    make_optimizer,
    set_learning_rate,
    steps_per_pass,
)
from rlforge.learner.policy import Policy
from rlforge.learner.ranks import Ranks
from rlforge.learner.scorer import Scores
from rlforge.learner.sharding import clip_gradient, cpu_copy, spread_optimizer_state
from rlforge.learner.update_metrics import (
    Operations,
    OptimizerStep,
    Stopwatch,
    batch_metrics,
    logprob_metrics,
    optimizer_metrics,
)
from rlforge.models.devices import give_back, move
from rlforge.types import Step, TrainBatch, UpdateResult, value

STATE_FILE = "learner.pt"


@value
class Evidence:
    """What the loss needs beside the policy, for the S steps and N answer tokens of a batch.

    behaviour [N]: the engine's log-probs. start [N]: the policy's before the update; where the
    update is a single optimizer step, that step fills it in. reference [N]: of the model before
    training. advantages [S]. values [S], returns [S]: with a critic.
    """

    behaviour: Tensor
    start: Tensor
    reference: Tensor | None
    advantages: Tensor
    values: Tensor | None
    returns: Tensor | None
    metrics: Mapping[str, float]


class Learner:
    """Trains a policy on batches of sampled tokens.

    The tokens are those the engine drew; their log-probs are computed again here, at the engine's
    temperature. Prompts and padding are never in the loss, every answer token is, the end of the
    turn included. The random state of an update (shuffling, dropout) follows from ``seed`` and
    ``version`` alone, so that a resumed run goes on as if it had not stopped.

    With several ranks each holds a learner of its own: all are given the same batches and called
    alike, divide the rows of every pass among them, and make the same update (see ``Ranks``).

    version: number of updates done. samples_seen: steps trained on so far.
    """

    def __init__(
        self,
        model: Any,
        config: LearnerConfig,
        lora: LoraConfig,
        algorithm: Algorithm,
        *,
        temperature: float,
        pad_token_id: int,
        device: torch.device | str,
        seed: int,
        total_updates: int | None = None,
        ranks: Ranks | None = None,
        value_learning_rate: float | None = None,
        initial_value_head: Mapping[str, Tensor] | None = None,
        max_nonfinite: int = 5,
    ) -> None:
        """Take over ``model``, a transformers causal LM as loaded; it is changed in place.

        With ``train: lora`` a float32 adapter is attached and alone trained; with ``full`` all
        weights are, in float32. A model that came in bfloat16 computes under autocast.
        temperature: of the engine's sampling, above 0. total_updates: that schedules of the
        learning rate run over; ranks: the learner's place among others that
        make the same updates; None: it is alone. value_learning_rate: of the critic; None
        takes ``config.learning_rate``. initial_value_head: weight [1, H] and bias [1] that the
        critic starts from; None: zero. max_nonfinite: skipped steps in a row that end the run.
        Raises ConfigError for options that contradict each other, CheckpointError for initial
        weights that are missing or do not fit.
        """
        _check(config, temperature)
        self.version = 0
        self.samples_seen = 0
        self._config = config
        self._algorithm = algorithm
        self._device = torch.device(device)
        self._seed = seed
        self._total_updates = total_updates
        self._ranks = ranks or Ranks()
        self._max_nonfinite = max_nonfinite
        self._nonfinite_in_a_row = 0
        self._policy = Policy(
            model,
            config,
            lora,
            temperature=temperature,
            pad_token_id=pad_token_id,
            device=self._device,
            ranks=self._ranks,
            seed=seed,
            needs_values=algorithm.needs_values,
            needs_reference=algorithm.needs_reference,
            initial_value_head=initial_value_head,
        )
        self._optimizer = make_optimizer(
            self._policy.parameters().values(), self._policy.value_head, config, value_learning_rate
        )
        self._operations = Operations.of(model, self._policy.narrowed)
        fixed = config.gradient_accumulation_steps is None
        self._single_step = fixed and config.epochs * config.optimizer_steps == 1

    def update(self, batch: TrainBatch) -> UpdateResult:
        """Learn from ``batch``; the metrics are listed in ``rlforge.learner.update_metrics``.

        Raises RunError when loss or gradient were not finite ``max_nonfinite`` times in a row.
        """
        watch = Stopwatch(self._device)
        config = self._config
        factor = learning_rate_factor(self.version, config, self._total_updates)
        set_learning_rate(self._optimizer, factor)
        selection = select_rows(batch.steps, config.max_train_len)
        with self._random_state() as generator:
            evidence = self._evidence(batch.steps, selection, watch)
            steps = steps_per_pass(config, len(selection.rows))
            done = [
                self._optimizer_step(rows, evidence, watch)
                for _ in range(config.epochs)
                for rows in split_rows(selection.rows, steps, generator)
            ]
        if self._single_step:
            self._ranks.sum_(evidence.start)
        metrics = {
            **evidence.metrics,
            **optimizer_metrics(done),
            **batch_metrics(batch, selection, self.version),
            **logprob_metrics(
                selection, batch.steps, evidence.start, evidence.behaviour, self.version
            ),
        }
        self.version += 1
        self.samples_seen += len(selection.rows)
        return UpdateResult(
            version=self.version,
            samples=len(selection.rows),
            tokens=selection.tokens,
            metrics={
                **metrics,
                "lr": config.learning_rate * factor,
                "advantage_mean": float(evidence.advantages.mean()) if batch.steps else math.nan,
                "samples_seen": float(self.samples_seen),
                **watch.metrics(
                    tokens=sum(step.trained_tokens for step in done),
                    operations=sum(step.operations for step in done),
                    devices=self._ranks.size,
                ),
            },
        )

    def rest(self, *, offload: bool = True) -> None:
        """Leave the device's memory to others until ``wake``; the next ``update`` needs that.

        offload: weights and optimizer state go to the host, and not only what an update leaves
        unused is given back. Saving and loading work at rest, too.
        """
        if offload:
            move(self._tensors(), torch.device("cpu"))
        give_back(self._device)

    def wake(self) -> None:
        """Have everything back on the device; nothing happens where it is there."""
        move(self._tensors(), self._device)

    def _tensors(self) -> Iterator[Tensor]:
        yield from self._policy.tensors()
        for state in self._optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def save(self, directory: Path | None) -> None:
        """Write what the engine loads: adapter or full weights, and the critic if there is one.

        Every rank calls this, and ``save_state``; those other than rank 0 with None.
        """
        self._policy.save(directory)

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything a resumed run needs; see ``save_state``. Whole on rank 0 only."""
        return {
            "version": self.version,
            "samples_seen": self.samples_seen,
            "seed": self._seed,
            "nonfinite_in_a_row": self._nonfinite_in_a_row,
            "policy": self._policy.state_dict(),
            "optimizer": _on_cpu(self._optimizer.state_dict(), keep=self._ranks.rank == 0),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken; CheckpointError if it is of another model."""
        self._policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict(spread_optimizer_state(state["optimizer"], self._optimizer))
        self.version = state["version"]
        self.samples_seen = state["samples_seen"]
        self._seed = state["seed"]
        self._nonfinite_in_a_row = state["nonfinite_in_a_row"]

    def save_state(self, directory: Path | None) -> None:
        """Write ``state_dict`` as ``learner.pt`` into ``directory``."""
        state = self.state_dict()
        if directory is None:
            return
        # An open file, because torch names a full disk as the cause only when Python writes.
        with (directory / STATE_FILE).open("wb") as file:
            torch.save(state, file)

    def load_state(self, directory: Path) -> None:
        """Go on from what ``save_state`` wrote; CheckpointError if it is absent or unfit."""
        file = directory / STATE_FILE
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise CheckpointError(f"{directory} holds no {STATE_FILE} to resume from") from None
        self.load_state_dict(state)

    def _evidence(self, steps: Sequence[Step], selection: Selection, watch: Stopwatch) -> Evidence:
        """Everything that is fixed before the first optimizer step."""
        rows, total = selection.rows, selection.tokens
        policy, algorithm = self._policy, self._algorithm
        policy.train(False)
        with watch.phase("targets"):
            values = policy.values(steps) if algorithm.needs_values else None
            targets = algorithm.targets(steps, values)
        with watch.phase("scoring"):
            start = torch.zeros(total, device=self._device)
            if not self._single_step:
                start = policy.logprobs(rows, total)
            reference = None
            if algorithm.needs_reference:
                reference = policy.reference_logprobs(rows, total)
        policy.train()
        return Evidence(
            behaviour=self._tensor([logprob for row in rows for logprob in row.behaviour]),
            start=start,
            reference=reference,
            advantages=self._tensor(targets.advantages),
            values=None if values is None else self._tensor(values),
            returns=None if targets.returns is None else self._tensor(targets.returns),
            metrics=targets.metrics,
        )

    def _optimizer_step(
        self, rows: Sequence[Row], evidence: Evidence, watch: Stopwatch
    ) -> OptimizerStep:
        """Accumulate the gradient over the micro-batches of ``rows`` and apply it if finite."""
        total_tokens = sum(len(row.answer) for row in rows)
        counts = {"positions": 0, "padding": 0, "reused": 0, "unread": 0}
        # Sums on the device, read once: a GPU need not wait between one pass and the next.
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        sums: dict[str, Tensor] = {}
        with watch.phase("gradient"):
            for part in self._policy.passes(rows):
                micro = part.micro
                scores = self._policy.score(micro, entropy=self._algorithm.needs_entropy)
                if self._single_step and part.counts:
                    evidence.start[micro.flat] = scores.logprobs.detach()
                output = self._algorithm.loss(
                    _loss_inputs(micro, scores, evidence, total_tokens, len(rows))
                )
                (output.loss * float(part.counts)).backward()  # type: ignore[no-untyped-call]
                if not part.counts:
                    continue
                loss += output.loss.detach()
                counts["positions"] += micro.input_ids.numel()
                counts["padding"] += micro.padding
                counts["reused"] += micro.reused
                counts["unread"] += scores.unread
                for name, number in output.metrics.items():
                    sums[name] = sums.get(name, torch.zeros_like(loss)) + number
        with watch.phase("optimizer"):
            total_loss, *numbers = torch.stack([loss, *sums.values()]).tolist()
            metrics = self._ranks.add_up(dict(zip(sums, numbers, strict=True)))
            totals = self._ranks.add_up({"loss": total_loss, **counts})
            total_loss = totals.pop("loss")
            counts = {name: round(number) for name, number in totals.items()}
            grad_norm = self._clip_gradient()
            applied = math.isfinite(total_loss) and math.isfinite(grad_norm)
            if applied:
                self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        self._count_nonfinite(applied, total_loss, grad_norm)
        return OptimizerStep(
            loss=total_loss,
            grad_norm=grad_norm,
            applied=applied,
            trained_tokens=total_tokens + sum(len(row.prompt) for row in rows),
            positions=counts["positions"],
            padding=counts["padding"],
            reused=counts["reused"],
            operations=self._operations.training(rows, counts["reused"], counts["unread"]),
            metrics=metrics,
        )

    def _clip_gradient(self) -> float:
        """Add up the ranks' gradients, scaled to ``grad_clip`` at most; the norm before that."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._ranks.sum_gradients(parameters)
        return clip_gradient(parameters, self._config.grad_clip, self._ranks)

    def _count_nonfinite(self, applied: bool, loss: float, grad_norm: float) -> None:
        self._nonfinite_in_a_row = 0 if applied else self._nonfinite_in_a_row + 1
        if self._nonfinite_in_a_row >= self._max_nonfinite:
            raise RunError(
                f"update {self.version + 1}: loss {loss} and gradient norm {grad_norm} were not "
                f"finite {self._nonfinite_in_a_row} times in a row; lower learner.learning_rate, "
                "or look at the rewards of the last batch"
            )

    @contextlib.contextmanager
    def _random_state(self) -> Iterator[np.random.Generator]:
        """The randomness of this update; torch's own is put back afterwards."""
        sequence = np.random.SeedSequence([self._seed, self.version])
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            # Shuffled alike everywhere; dropout differs from rank to rank.
            seeds = sequence.generate_state(self._ranks.size, np.uint64)
            torch.manual_seed(int(seeds[self._ranks.rank]))
            yield np.random.default_rng(sequence)

    def _tensor(self, numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float32, device=self._device)


def _loss_inputs(
    micro: MicroBatch, scores: Scores, evidence: Evidence, total_tokens: int, total_sequences: int
) -> LossInputs:
    def of_tokens(numbers: Tensor) -> Tensor:
        return micro.padded(numbers[micro.flat])

    def of_steps(numbers: Tensor | None) -> Tensor | None:
        return None if numbers is None else numbers[micro.steps]

    return LossInputs(
        logprobs=micro.padded(scores.logprobs),
        behaviour_logprobs=of_tokens(evidence.behaviour),
        proximal_logprobs=of_tokens(evidence.start),
        mask=micro.mask,
        advantages=evidence.advantages[micro.steps],
        reference_logprobs=None if evidence.reference is None else of_tokens(evidence.reference),
        entropy=None if scores.entropy is None else micro.padded(scores.entropy),
        values=scores.values,
        old_values=of_steps(evidence.values),
        returns=of_steps(evidence.returns),
        total_tokens=total_tokens,
        total_sequences=total_sequences,
    )


def _on_cpu(optimizer_state: Mapping[str, Any], keep: bool) -> dict[str, Any]:
    """A copy of an optimizer's state, made without a second copy on the device."""
    return {
        "state": {
            index: {name: cpu_copy(tensor, keep) for name, tensor in entry.items()}
            for index, entry in optimizer_state["state"].items()
        },
        "param_groups": copy.deepcopy(optimizer_state["param_groups"]),
    }


def _check(config: LearnerConfig, temperature: float) -> None:
    # An unknown schedule would show only once the warm-up is over.
    learning_rate_factor(config.warmup_updates, config)
    if config.train not in ("lora", "full"):
        raise ConfigError(f"learner.train: {config.train!r} is neither lora nor full")
    if config.train == "full" and config.initial_adapter is not None:
        raise ConfigError("learner.initial_adapter: needs learner.train=lora, not full")
    if temperature <= 0:
        raise ConfigError(
            f"engine.temperature: {temperature} has no log-probs to learn from; set it above 0"
        )
