"""Model in training with its adapter and critic, and the reference model for the KL."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlforge.algorithms.base import Reference
from rlforge.config.model import LoraConfig
from rlforge.config.training import LearnerConfig
from rlforge.learner.attention import has_kernel
from rlforge.learner.batching import Layout, MicroBatch, Row, collate, join_turns, most_legal, whole
from rlforge.learner.followers import Followers, Weights
from rlforge.learner.kernels import fuse_lora_add, fuse_norms, merge_small_lora, skip_input_casts
from rlforge.learner.layers import apply_memory_options, check_compiling, compile_layers
from rlforge.learner.partition import deal, parts, segments, shares
from rlforge.learner.ranks import Ranks
from rlforge.learner.scorer import Scorer, ScorerOptions, Scores
from rlforge.learner.sharding import SpreadScorer, cpu_copy, spread_like
from rlforge.learner.trial import Trial, plain_logprobs, replace_forwards, stirred
from rlforge.learner.weights import (
    attach_lora,
    check_fit,
    load_adapter,
    load_value_head,
    save_adapter,
    save_model,
    save_value_head,
)
from rlforge.models.files import AVERAGE, VALUE_HEAD
from rlforge.models.last_layer import difference
from rlforge.models.products import speed_up_linear_layers
from rlforge.samples import Sample
from rlforge.types import value

log = logging.getLogger(__name__)

#: Mean tokens of a row from which packing pays without a variable-length kernel.
PACKED_LENGTH = 64


@value
class Pass:
    """One forward pass. ``counts`` is False where it only keeps this rank in step with others."""

    micro: MicroBatch
    counts: bool


@value
class TokenLogprobs:
    """Log-probs of the N answer tokens of a batch under one policy.

    Attributes:
        sampled [N]: Tokens that were drawn.
        legal [N, K]: Tokens with which a legal answer goes on, padded with minus infinity; None
            where none are known.
    """

    sampled: Tensor
    legal: Tensor | None = None

    @classmethod
    def zeros(cls, total: int, legal: int, device: torch.device) -> TokenLogprobs:
        """Zeros for ``total`` tokens, each with up to ``legal`` alternatives."""
        return cls(
            sampled=torch.zeros(total, device=device),
            legal=torch.zeros(total, legal, device=device) if legal else None,
        )

    def fill(self, micro: MicroBatch, scores: Scores) -> None:
        self.sampled[micro.flat] = scores.logprobs.detach()
        if self.legal is None:
            return
        self.legal[micro.flat] = -math.inf
        if (legal := scores.legal_logprobs) is not None:
            self.legal[micro.flat, : legal.shape[1]] = legal.detach()

    def sum_(self, ranks: Ranks) -> TokenLogprobs:
        """Add up the parts that the ranks have filled in, in place."""
        ranks.sum_(self.sampled)
        if self.legal is not None:
            ranks.sum_(self.legal)
        return self


@value
class PolicySpec:
    """Model to train, as loaded, and what goes with it.

    Attributes:
        model: A transformers causal LM, which is changed in place.
        temperature: Temperature of the engine's sampling, above 0.
        seed: Seed of the adapter's initial weights.
        initial_value_head: Weight [1, H] and bias [1] of a critic; None: zero.
        start: Folder of an adapter to go on from; None: a fresh one.
    """

    model: Any
    lora: LoraConfig
    temperature: float
    pad_token_id: int
    seed: int
    initial_value_head: Mapping[str, Tensor] | None = None
    start: Path | None = None


class Policy:
    """Weights in training: an adapter (``train: lora``) or the whole model (``full``), in float32.

    A model loaded in bfloat16 computes under autocast. The weights of the algorithm's reference
    take the place of those in training while they are scored; the model before a fresh adapter is
    the model with it switched off.

    With ``shard_weights`` the model, but no adapter, is spread over the ranks. Ranks divide the
    passes over a batch and all get all results; each must call the same methods in the same order.
    """

    def __init__(
        self,
        spec: PolicySpec,
        config: LearnerConfig,
        *,
        device: torch.device,
        ranks: Ranks,
        needs_values: bool = False,
        reference: Reference | None = None,
        beside: Policy | None = None,
    ) -> None:
        """Take over the model of ``spec``, or share that of ``beside``, which has stepped aside."""
        if config.compile:
            check_compiling(device.type)
        model = spec.model.eval()
        self._config, self._device, self._ranks = config, device, ranks
        self._dtype: torch.dtype = model.dtype
        self._pad_token_id = spec.pad_token_id
        if beside is None:
            self._model = model if config.shard_weights else model.to(device)
            lora = config.train == "lora"
            self._adapter = attach_lora(model, spec.lora, spec.seed) if lora else None
        else:
            self._model, self._adapter = beside._model, beside._adapter
            self.load_adapter(None)
        #: Whether training passes have dropout.
        self.drops = self._adapter is not None and spec.lora.dropout > 0
        #: Trained weights while another policy is in the model.
        self._aside: Weights | None = None
        self.value_head = (
            _new_value_head(model, device, spec.initial_value_head) if needs_values else None
        )
        # A fresh adapter changes nothing, so trials with it would not see faults of its layers.
        with stirred(model):
            trial = self._speed_up() if beside is None else None
            if beside is None and self._adapter is None:
                model.float().requires_grad_(True)
            self._scorer = self._new_scorer(model, spec.temperature, self.value_head, trial)
            self._packs_from = self._least_packed_length()
        if spec.start is not None:
            load_adapter(self._adapter, spec.start)
            if self.value_head is not None and (spec.start / VALUE_HEAD).exists():
                load_value_head(self.value_head, spec.start)
        #: Rows that were scored last, and their passes.
        self._scored: tuple[Sequence[Row], tuple[Pass, ...]] | None = None
        # With dropout, rows that share a prefix would share one mask there.
        self._shares = config.share_prefixes and not self.drops
        if beside is None:
            if config.compile:
                compile_layers(model)
            apply_memory_options(model, config)
        ranks.share_from_first(self.trained().values())
        self.followers = Followers(
            self.parameters,
            config,
            reference,
            fresh_adapter=self._adapter is not None and spec.start is None,
        )

    def _speed_up(self) -> Trial | None:
        """Replace layers of the model by faster ones; returns the trial of the former.

        A model in whose trial these compute differently keeps its own. None, and no trial, where
        the weights are to be spread.
        """
        model, adapter = self._model, self._adapter
        autocast = self._dtype == torch.bfloat16

        def replace() -> None:
            fuse_norms(model)
            if adapter is not None:
                merge_small_lora(adapter)
                fuse_lora_add(adapter)
                speed_up_linear_layers(adapter)

        if self._config.shard_weights:
            replace()
            trial = None
        else:
            trial = Trial.of(model)
            undo = replace_forwards(model, replace)
            with torch.autocast(self._device.type, torch.bfloat16, autocast):
                problem = difference(
                    lambda: plain_logprobs(model), lambda: trial.plain, trial.exact
                )
            if problem:
                name = type(model).__name__
                log.warning(
                    "%s keeps its own norms and adapter layers: faster ones %s", name, problem
                )
                undo()
        if adapter is not None and autocast:
            skip_input_casts(adapter)
        return trial

    def _new_scorer(
        self, model: Any, temperature: float, value_head: nn.Module | None, trial: Trial | None
    ) -> Scorer:
        config = self._config
        recomputed = config.gradient_checkpointing or config.activation_checkpointing
        options = ScorerOptions(
            temperature=temperature,
            use_cache=config.use_trainer_cache,
            autocast=self._dtype if self._dtype == torch.bfloat16 else None,
            fp32_head=config.fp32_head,
            narrow=not (recomputed or config.compile or config.shard_weights),
        )
        if not config.shard_weights:
            return Scorer(model, options, value_head, trial)
        # An adapter is small: copied to all ranks, its optimizer and files need no gathering.
        copies = set(self.parameters()) if self._adapter is not None else set()
        return SpreadScorer(
            model, options, value_head, ranks=self._ranks, device=self._device, copies=copies
        )

    def _least_packed_length(self) -> float:
        """Mean tokens of a row from which passes are packed; infinite where they never are."""
        config = self._config
        wanted = config.packing != "off" and not config.use_trainer_cache
        if not (wanted and self._scorer.can_pack()):
            return math.inf
        pays = config.packing == "on" or has_kernel(self._device, self._dtype)
        return 0 if pays else PACKED_LENGTH

    @property
    def narrowed(self) -> tuple[nn.Module, ...]:
        """Modules that compute only positions that are read."""
        return self._scorer.narrowed

    def parameters(self) -> dict[str, nn.Parameter]:
        """Trained parameters by name, without those of the critic."""
        return {name: p for name, p in self._model.named_parameters() if p.requires_grad}

    def step_aside(self) -> None:
        self._aside = self.followers.copy()

    def weights(self) -> Weights:
        return self.followers.copy() if self._aside is None else self._aside

    def step_in(self) -> None:
        assert self._aside is not None
        self.followers.put(self._aside)
        self._aside = None

    def train(self, mode: bool = True) -> None:
        """Switch dropout of the adapter on for training passes, off for scoring."""
        # All else stays in evaluation mode, in which the engine samples: no dropout of the model's
        # own, no dropped layers, no noise in routers.
        for name, module in self._model.named_modules():
            if name.endswith(".lora_dropout"):
                module.train(mode)

    def passes(self, rows: Sequence[Row]) -> Iterator[Pass]:
        """Cut this rank's share of ``rows`` into forward passes within both limits."""
        tokens = sum(row.input_length for row in rows)
        # Short rows lose less to padding than packing costs.
        packed = tokens >= self._packs_from * len(rows)
        layouts: tuple[Layout, Layout] = (
            ("distinct", "shared") if self._shares else ("padded", "packed")
        )
        layout = layouts[packed]
        most_rows = self._scorer.most_rows or self._config.mini_batch_size
        build = {"packed": whole, "shared": segments}.get(layout, lambda rows: None)

        def cut(rows: Sequence[Row]) -> Iterator[list[Row]]:
            return parts(rows, most_rows, self._config.micro_batch_tokens, layout)

        dealt = deal(rows, self._ranks.size, layout)
        spread, distinct = self._config.shard_weights, layout == "distinct"
        for own, counts in shares(dealt, self._ranks.rank, cut, in_step=spread):
            micro = collate(own, self._pad_token_id, self._device, build(own), distinct=distinct)
            yield Pass(micro=micro, counts=counts)

    def score(self, micro: MicroBatch, *, entropy: bool) -> Scores:
        return self._scorer.score(micro, entropy=entropy)

    @torch.no_grad()
    def present(self, micro: MicroBatch) -> Tensor | None:
        """Log-probs [N] without dropout; None where training passes have none."""
        if not self.drops:
            return None
        self.train(False)
        scores = self._scorer.score(micro)
        self.train()
        return scores.logprobs

    @torch.no_grad()
    def logprobs(
        self, rows: Sequence[Row], total: int, values: Tensor | None = None
    ) -> TokenLogprobs:
        """Score all ``total`` answer tokens of ``rows``; this rank's estimates fill ``values``."""
        # The reference scores the same rows right after the policy: passes are built once.
        if self._scored is None or self._scored[0] is not rows:
            self._scored = rows, tuple(self.passes(rows))
        logprobs = TokenLogprobs.zeros(total, most_legal(rows), self._device)
        for part in self._scored[1]:
            scores = self._scorer.score(part.micro)
            if part.counts:
                logprobs.fill(part.micro, scores)
                if values is not None:
                    assert scores.values is not None
                    values[part.micro.samples] = scores.values
        return logprobs.sum_(self._ranks)

    @torch.no_grad()
    def logprobs_and_values(
        self, rows: Sequence[Row], total: int, samples: Sequence[Sample]
    ) -> tuple[TokenLogprobs, list[float]]:
        """``logprobs`` of ``rows``, and ``values`` of their ``samples``, from the same passes."""
        values = torch.zeros(len(samples), device=self._device)
        logprobs = self.logprobs(rows, total, values)
        have = {turn.sample for row in rows for turn in row.turns}
        return logprobs, self.values(samples, self._ranks.sum_(values), have)

    @torch.no_grad()
    def reference_logprobs(self, rows: Sequence[Row], total: int) -> TokenLogprobs:
        if (weights := self.followers.reference) is not None:
            with self.followers.worn(weights):
                return self.logprobs(rows, total)
        assert self._adapter is not None
        with self._adapter.disable_adapter():
            return self.logprobs(rows, total)

    @torch.no_grad()
    def values(
        self, samples: Sequence[Sample], known: Tensor | None = None, have: Collection[int] = ()
    ) -> list[float]:
        """Critic's estimate for every sample, trained on or not; 0 for one without a prompt.

        ``known`` [len(samples)] holds the estimates of the samples that ``have`` lists.
        """
        # A prompt that is too long is cut at its start; ``[-0:]`` cuts nothing.
        limit = self._config.max_train_len or 0
        prompts = [
            Row(sample=index, prompt=sample.prompt_token_ids[-limit:], answer=())
            for index, sample in enumerate(samples)
            if sample.prompt_token_ids and index not in have
        ]
        values = torch.zeros(len(samples), device=self._device)
        known = torch.zeros_like(values) if known is None else known
        for part in self.passes(join_turns(prompts, samples)) if prompts else ():
            computed = self._scorer.values(part.micro)
            if part.counts:
                values[part.micro.samples] = computed
        return (known + self._ranks.sum_(values)).tolist()

    def save(self, directory: Path | None) -> None:
        """Write adapter or full weights, critic and average; ranks other than 0 pass None."""
        self._save_weights(directory)
        if self.value_head is not None and directory is not None:
            save_value_head(self.value_head, directory)
        if self.followers.average is not None:
            averaged = None if directory is None else directory / AVERAGE
            if averaged is not None:
                averaged.mkdir()
            with self.followers.worn(self.followers.average):
                self._save_weights(averaged)

    def _save_weights(self, directory: Path | None) -> None:
        if self._adapter is None:
            save_model(self._model, directory, self._dtype)
        elif directory is not None:
            save_adapter(self._adapter, directory)

    @torch.no_grad()
    def load_adapter(self, directory: Path | None) -> None:
        """Load the adapter in ``directory``; None: one that changes nothing. The critic stays."""
        if directory is not None:
            load_adapter(self._adapter, directory)
            return
        for name, parameter in self.parameters().items():
            if ".lora_B." in name:
                parameter.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        """CPU copies of trained parameters; on ranks other than 0 empty tensors."""
        keep = self._ranks.rank == 0
        return {name: cpu_copy(p, keep) for name, p in self.trained().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        trained = self.trained()
        check_fit(state, trained, "learner state")
        for name, parameter in trained.items():
            parameter.copy_(spread_like(state[name], parameter))

    def tensors(self) -> Iterator[Tensor]:
        """All weights and buffers, also those of followers and of a policy aside."""
        for module in (self._model, self.value_head):
            if module is not None:
                yield from module.parameters()
                yield from module.buffers()
        yield from self.followers.tensors()
        yield from (self._aside or {}).values()

    def trained(self) -> dict[str, nn.Parameter]:
        """Parameters in training by name, with those of the critic."""
        trained = self.parameters()
        if self.value_head is not None:
            trained.update({f"value_head.{n}": p for n, p in self.value_head.named_parameters()})
        return trained


def _new_value_head(
    model: Any, device: torch.device, initial: Mapping[str, Tensor] | None
) -> nn.Module:
    """Linear layer on the inputs of the output layer, starting from ``initial`` or from zero."""
    # The config's hidden size may differ: some models project hidden states before the output
    # layer (OPT-350m, RemBERT).
    head = nn.Linear(model.get_output_embeddings().weight.shape[-1], 1, device=device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    if initial is not None:
        check_fit(initial, head.state_dict(), "initial value head")
        head.load_state_dict(dict(initial))
    return head
