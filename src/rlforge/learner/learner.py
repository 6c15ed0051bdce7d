"""One update: a batch of samples in, a better policy and its metrics out."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlforge.algorithms.advantages import has_signal
from rlforge.algorithms.base import Algorithm
from rlforge.config.training import LearnerConfig
from rlforge.errors import CheckpointError
from rlforge.learner.batching import (
    Row,
    Selection,
    most_legal,
    rows_of,
    select_rows,
    split_rows,
    sums_of,
)
from rlforge.learner.gap import EarlierVersions, movement
from rlforge.learner.inputs import UpdateInputs, loss_inputs
from rlforge.learner.optim import Optimizer, steps_per_pass
from rlforge.learner.policy import Policy, PolicySpec, TokenLogprobs
from rlforge.learner.ranks import Ranks
from rlforge.learner.update_metrics import (
    Operations,
    OptimizerStep,
    Stopwatch,
    advantage_metrics,
    batch_metrics,
    logprob_metrics,
    optimizer_metrics,
)
from rlforge.learner.weights import digest_of_weights
from rlforge.models.devices import give_back, move
from rlforge.samples import Sample, TrainBatch, UpdateResult

STATE_FILE = "learner.pt"


class Learner:
    """Trains a policy on batches of sampled tokens.

    Log-probs of the sampled tokens are computed again, at the engine's temperature. The loss covers
    every answer token, the end of the turn included, and neither prompts nor padding. The random
    state of an update (shuffling, dropout) follows from ``seed`` and ``version`` alone, so a
    resumed run continues exactly. Each rank holds a learner, and all get the same batches and calls
    (see ``Ranks``).

    Attributes:
        version: Number of the newest update, of any policy of the run.
        updates: Updates since its weights began.
        samples_seen: Samples trained on so far.

    Example: one update of a random model on one turn of two tokens:
        >>> from rlforge.algorithms import make_algorithm
        >>> from rlforge.config.training import AlgorithmConfig
        >>> from rlforge.config.model import LoraConfig
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_attention_heads=2, **sizes))
        >>> lora = LoraConfig(rank=4, alpha=4)
        >>> spec = PolicySpec(model=model, lora=lora, temperature=1.0, pad_token_id=0, seed=0)
        >>> algorithm = make_algorithm(AlgorithmConfig(), max_tokens=2)
        >>> learner = Learner(spec, LearnerConfig(), algorithm, device="cpu")
        >>> sample = Sample(
        ...     origin="g", turn_index=0, last_turn=True, prompt_token_ids=(5,), token_ids=(7, 8),
        ...     logprobs=(-4.2, -4.2), raw_reward=1, reward=1, policy_uid="", policy_version=0,
        ... )
        >>> batch = TrainBatch(samples=(sample,), whole_episodes=False)
        >>> learner.update(batch).version
        1
    """

    def __init__(
        self,
        spec: PolicySpec,
        config: LearnerConfig,
        algorithm: Algorithm,
        *,
        device: torch.device | str,
        total_updates: int | None = None,
        ranks: Ranks | None = None,
        value_learning_rate: float | None = None,
        max_nonfinite: int = 5,
        kept_versions: int = 0,
        name: str = "",
        beside: Learner | None = None,
    ) -> None:
        """Take over the model of ``spec``, which is changed in place.

        Args:
            total_updates: Length of the learning rate's schedule.
            ranks: Place among learners that make the same updates; None: it is alone.
            value_learning_rate: Learning rate of the critic; None: ``config.learning_rate``.
            max_nonfinite: Skipped optimizer steps in a row that end the run.
            kept_versions: Earlier adapters kept to measure the log-prob gap of their tokens.
            beside: Learner of another policy, which shares the model and has stepped aside.

        Raises ConfigError for options that the model or the device does not support,
        CheckpointError for initial weights that are missing or do not fit.
        """
        self.version = 0
        self.updates = 0
        self.samples_seen = 0
        # After ``go_back``, and updates without signal, the weights are of an earlier version,
        # while ``version`` counts on.
        self._weights_version = 0
        #: Numbers of the updates that made a version.
        self._made = list[int]()
        self._config = config
        self._algorithm = algorithm
        self._device = torch.device(device)
        self._seed = spec.seed
        self._total_updates = total_updates
        self._ranks = ranks or Ranks()
        self._policy: Policy = Policy(
            spec,
            config,
            device=self._device,
            ranks=self._ranks,
            needs_values=algorithm.needs_values,
            reference=algorithm.reference,
            beside=None if beside is None else beside._policy,
        )
        self._state_file = f"learner-{name}.pt" if name else STATE_FILE
        # One of several policies may go back to these weights (``begin_anew``).
        self._start = self._policy.followers.copy("cpu") if name else None
        self._earlier = EarlierVersions(self._policy, kept_versions, name)
        self._earlier.keep(0)
        self._optimizer = Optimizer(
            self._policy.parameters().values(),
            self._policy.value_head,
            config,
            value_learning_rate,
            total_updates=total_updates,
            ranks=self._ranks,
            max_nonfinite=max_nonfinite,
        )
        self._operations = Operations.of(spec.model, self._policy.narrowed)
        fixed = config.gradient_accumulation_steps is None
        #: Model in training, adapter layers included.
        self.model = spec.model
        one_step = fixed and config.epochs * config.optimizer_steps == 1
        # The engine plays without dropout: passes with it cannot give the old log-probs.
        self._single_step = one_step and not self._policy.drops

    def update(self, batch: TrainBatch) -> UpdateResult:
        """Learn from ``batch``; its metrics are listed in ``rlforge.learner.update_metrics``.

        A batch without signal (``has_signal``) leaves the policy as it is, and a critic learns from
        it. Raises RunError when loss or gradient were not finite ``max_nonfinite`` times in a row.
        """
        watch = Stopwatch(self._device)
        config = self._config
        learning_rate = self._optimizer.begin(self.version)
        selection = select_rows(batch.samples, config.max_train_len)
        with self._random_state() as generator:
            with watch.phase("scoring"):
                gap = self._earlier.gap(selection, batch.samples, self._weights_version)
            self._earlier.keep(self._weights_version)
            inputs = self._inputs(batch.samples, selection, watch)
            # Every rank has the whole batch, so that all decide alike.
            advantages = inputs.advantages.tolist()
            trained = [advantages[turn.sample] for turn in selection.turns]
            moves = has_signal(self._algorithm, batch.samples, trained)
            epochs, steps = config.epochs, steps_per_pass(config, len(selection.rows))
            if not (moves or self._algorithm.needs_values):
                # Nothing is learned: one pass measures the loss.
                epochs = steps = 1
            done = [
                self._optimizer_step(rows, inputs, watch, selection.share, moves)
                for _ in range(epochs)
                for rows in split_rows(selection.rows, steps, generator)
            ]
        if self._single_step:
            inputs.proximal.sum_(self._ranks)
        with watch.phase("scoring"):
            moved = {"moved": 0.0}
            if moves:
                moved = movement(self._policy, selection, batch.samples, inputs.proximal.sampled)
        metrics = {
            **inputs.metrics,
            **moved,
            **optimizer_metrics(done),
            **batch_metrics(batch, selection, self._made, self._algorithm),
            **logprob_metrics(
                selection,
                batch.samples,
                inputs.proximal.sampled,
                inputs.behaviour,
                self.model.config.get_text_config().vocab_size,
                self._weights_version,
            ),
            **gap,
        }
        self.version += 1
        self.updates += 1
        if moves:
            self._weights_version = self.version
            self._made.append(self.version)
        self._policy.followers.follow(self.updates)
        self.samples_seen += len(selection.turns)
        return UpdateResult(
            version=self.version,
            samples=len(selection.turns),
            tokens=selection.tokens,
            advantages=tuple(advantages),
            new_policy=moves,
            metrics={
                **metrics,
                "skipped_no_signal": float(not moves),
                "lr": learning_rate,
                **advantage_metrics(inputs.advantages),
                "samples_seen": float(self.samples_seen),
                **watch.metrics(
                    tokens=sum(step.trained_tokens for step in done),
                    operations=sum(step.operations for step in done),
                    devices=self._ranks.size,
                ),
            },
        )

    def update_with_digests(self, batch: TrainBatch) -> UpdateResult:
        """Update as ``update``, with digests of the weights before, and of the state after."""
        # With a digest from before, a check can tell a fault of this update from an earlier one.
        before = digest_of_weights(self._policy.trained())
        result = self.update(batch)
        return dataclasses.replace(result, digests={"policy_before": before, **self.digests()})

    def measure(self, samples: Sequence[Sample]) -> list[float]:
        """Log-probs of the answers of ``samples`` under the policy; every rank calls it."""
        selection = select_rows(samples, None)
        self._policy.train(False)
        logprobs = self._policy.logprobs(selection.rows, selection.tokens).sampled
        self._policy.train()
        return sums_of(selection.turns, logprobs)

    def answer_logprobs(
        self, answers: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], *, averaged: bool = False
    ) -> list[float]:
        """Log-probs of whole answers, given pairs of prompt and answer; every rank calls it.

        averaged: by the average of the weights, which ``learner.average`` keeps.
        """
        rows, total = rows_of(answers)
        average = self._policy.followers.average if averaged else None
        self._policy.train(False)
        with contextlib.nullcontext() if average is None else self._policy.followers.worn(average):
            logprobs = self._policy.logprobs(rows, total).sampled
        self._policy.train()
        return sums_of(rows, logprobs)

    def take_smaller_steps(self, factor: float) -> None:
        """Multiply the learning rate by ``factor`` from here on, beside its schedule."""
        self._optimizer.factor *= factor

    def refresh_reference(self) -> None:
        """Take a new snapshot as the algorithm's reference (``algorithm.kl.to=snapshot``)."""
        self._policy.followers.refresh()

    def go_back(self, directory: Path | None, version: int) -> None:
        """Train on from the adapter of ``version`` in ``directory``; None: from the plain model.

        Updates are counted on; every rank calls it. Raises CheckpointError for an adapter that is
        missing or does not fit.
        """
        self._earlier.keep(self._weights_version)
        self._policy.load_adapter(directory)
        self._weights_version = version
        # The optimizer's moments belong to the weights that are given up.
        self._optimizer.forget()

    def begin_anew(self, version: int, like: Learner | None = None) -> None:
        """Take as ``version`` the weights of the start, or the present ones of another learner.

        Optimizer, averages and factor of the learning rate begin anew; a critic stays. For one of
        several policies only.
        """
        weights = self._start if like is None else like._policy.weights()
        assert weights is not None
        self._earlier.keep(self._weights_version)
        self._policy.followers.put(weights)
        self._policy.followers.begin_anew()
        self._optimizer.forget()
        self._optimizer.factor = 1.0
        self.version = self._weights_version = version
        self._made.append(version)
        self.updates = 0

    def step_aside(self) -> None:
        """Leave the model to another learner, until ``step_in``."""
        self._policy.step_aside()

    def step_in(self) -> None:
        """Take the model back, after another learner has stepped aside."""
        self._policy.step_in()

    def rest(self, *, offload: bool = True) -> None:
        """Free device memory for other processes until ``wake``; ``update`` works only after it.

        ``offload`` moves weights and optimizer state to the host; otherwise only cached memory is
        freed. Saving and loading work at rest, too.
        """
        if offload:
            move(self._tensors(), torch.device("cpu"))
        give_back(self._device)

    def wake(self) -> None:
        """Move everything back to the device; does nothing where it is there already."""
        move(self._tensors(), self._device)

    def _tensors(self) -> Iterator[Tensor]:
        yield from self._policy.tensors()
        yield from self._optimizer.tensors()

    def save(self, directory: Path | None) -> None:
        """Write what the engine loads: adapter or full weights, and the critic if there is one.

        Every rank calls this, and ``save_state``; those other than rank 0 with None.
        """
        self._policy.save(directory)

    def digests(self) -> dict[str, str]:
        """SHA-256 of this rank's trained weights (``policy``) and state of the ``optimizer``."""
        return {
            "policy": digest_of_weights(self._policy.trained()),
            "optimizer": digest_of_weights(self._optimizer.adamw.state_dict()),
        }

    def state_dict(self) -> dict[str, Any]:
        """Copy of the state that a resumed run needs; complete on rank 0 only."""
        keep = self._ranks.rank == 0
        return {
            "version": self.version,
            "weights_version": self._weights_version,
            "made": [*self._made],
            "updates": self.updates,
            "samples_seen": self.samples_seen,
            "seed": self._seed,
            "policy": self._policy.state_dict(),
            "followers": self._policy.followers.state_dict(keep=keep),
            **self._optimizer.state_dict(keep=keep),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``; CheckpointError if it is of another model."""
        self._policy.load_state_dict(state["policy"])
        self._policy.followers.load_state_dict(state["followers"])
        self._optimizer.load_state_dict(state)
        self.version = state["version"]
        # States of earlier versions of rlforge lack both.
        self._weights_version = state.get("weights_version", self.version)
        self._made = list(state.get("made", range(1, self.version + 1)))
        self.updates = state["updates"]
        self.samples_seen = state["samples_seen"]
        self._seed = state["seed"]

    def save_state(self, directory: Path | None) -> None:
        """Write ``state_dict`` into ``directory``: ``learner.pt``, or ``learner-NAME.pt``."""
        state = self.state_dict()
        if directory is None:
            return
        # Given an open file, not a path, torch's error names a full disk as the cause.
        with (directory / self._state_file).open("wb") as file:
            torch.save(state, file)

    def load_state(self, directory: Path) -> None:
        """Continue from a ``save_state``; CheckpointError if it is absent or unfit."""
        file = directory / self._state_file
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise CheckpointError(f"{directory} holds no {file.name} to resume from") from None
        self.load_state_dict(state)

    def recall(self, saved: Callable[[str], Path | None]) -> None:
        """Keep the earlier versions that the run saved, as if this learner had made them.

        ``saved`` finds the folder of a checkpoint by its name, or None. Every rank calls it, after
        ``load_state``.
        """
        self._earlier.recall(saved, self.version, self._weights_version)

    def _inputs(
        self, samples: Sequence[Sample], selection: Selection, watch: Stopwatch
    ) -> UpdateInputs:
        """Targets and log-probs, computed before the first optimizer step."""
        rows, total = selection.rows, selection.tokens
        policy, algorithm = self._policy, self._algorithm
        policy.train(False)
        with watch.phase("scoring"):
            # An update of one step takes the log-probs from its training pass: a pass less.
            proximal, values = TokenLogprobs.zeros(total, most_legal(rows), self._device), None
            if algorithm.needs_values and not self._single_step:
                proximal, values = policy.logprobs_and_values(rows, total, samples)
            elif algorithm.needs_values:
                values = policy.values(samples)
            elif not self._single_step:
                proximal = policy.logprobs(rows, total)
            reference = None
            if algorithm.reference is not None:
                reference = policy.reference_logprobs(rows, total)
        with watch.phase("targets"):
            targets = algorithm.targets(samples, values)
        policy.train()
        return UpdateInputs(
            behaviour=self._tensor([logp for turn in selection.turns for logp in turn.behaviour]),
            proximal=proximal,
            reference=reference,
            advantages=self._tensor(targets.advantages),
            values=None if values is None else self._tensor(values),
            returns=None if targets.returns is None else self._tensor(targets.returns),
            progress=min(1.0, self.version / self._total_updates) if self._total_updates else 0.0,
            metrics=targets.metrics,
        )

    def _optimizer_step(
        self, rows: Sequence[Row], inputs: UpdateInputs, watch: Stopwatch, share: float, moves: bool
    ) -> OptimizerStep:
        """Accumulate the gradient over the micro-batches of ``rows`` and apply it if finite.

        Where the policy does not move (``moves``), that is the gradient of the critic; without one
        there is none, and the loss is only measured.
        """
        learns = moves or self._policy.value_head is not None
        turns = [turn for row in rows for turn in row.turns]
        total_tokens = sum(len(turn.answer) for turn in turns)
        counts = {"positions": 0, "padding": 0, "reused": 0, "unread": 0, "scored": 0}
        # Sums stay on the device and are read once: passes follow without synchronisation.
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        sums: dict[str, Tensor] = {}
        with watch.phase("gradient"), torch.set_grad_enabled(learns):
            for part in self._policy.passes(rows):
                micro = part.micro
                present = self._policy.present(micro)
                scores = self._policy.score(micro, entropy=self._algorithm.needs_entropy)
                if self._single_step and part.counts:
                    inputs.proximal.fill(micro, scores)
                output = self._algorithm.loss(
                    loss_inputs(micro, scores, inputs, total_tokens, len(turns) / share, present)
                )
                if learns:
                    (output.loss * float(part.counts)).backward()  # type: ignore[no-untyped-call]
                # A pass that only keeps ranks in step repeats a row, which must not count twice.
                if not part.counts:
                    continue
                loss += output.loss.detach()
                counts["positions"] += micro.input_ids.numel()
                counts["padding"] += micro.padding
                counts["reused"] += micro.reused
                counts["unread"] += scores.unread
                counts["scored"] += micro.token_ids.numel()
                for name, number in output.metrics.items():
                    sums[name] = sums.get(name, torch.zeros_like(loss)) + number
        with watch.phase("optimizer"):
            total_loss, *numbers = torch.stack([loss, *sums.values()]).tolist()
            metrics = self._ranks.add_up(dict(zip(sums, numbers, strict=True)))
            totals = self._ranks.add_up({"loss": total_loss, **counts})
            total_loss = totals.pop("loss")
            counts = {name: round(number) for name, number in totals.items()}
            grad_norm, applied = 0.0, True
            if learns:
                update = self.version + 1
                grad_norm, applied = self._optimizer.step(total_loss, update, policy=moves)
        return OptimizerStep(
            loss=total_loss,
            grad_norm=grad_norm,
            applied=applied,
            trained_tokens=total_tokens + sum(len(turn.prompt) for turn in turns),
            positions=counts["positions"],
            padding=counts["padding"],
            reused=counts["reused"],
            operations=self._operations.training(
                rows, counts["reused"], counts["scored"], counts["unread"]
            ),
            metrics=metrics,
        )

    @contextlib.contextmanager
    def _random_state(self) -> Iterator[np.random.Generator]:
        """Random generator of this update; torch's state is restored afterwards."""
        sequence = np.random.SeedSequence([self._seed, self.version])
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            # All ranks must shuffle alike, so only torch's generator, for dropout, differs.
            seeds = sequence.generate_state(self._ranks.size, np.uint64)
            torch.manual_seed(int(seeds[self._ranks.rank]))
            yield np.random.default_rng(sequence)

    def _tensor(self, numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float32, device=self._device)
