"""The model being trained, its adapter and critic, and the frozen model it is compared with."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlforge.config.schema import LearnerConfig, LoraConfig
from rlforge.learner.batching import Layout, MicroBatch, Row, collate, whole
from rlforge.learner.kernels import fuse_lora_add, fuse_norms, merge_small_lora
from rlforge.learner.layers import apply_memory_options, check_compiling, compile_layers
from rlforge.learner.partition import deal, parts, segments, shares
from rlforge.learner.ranks import Ranks
from rlforge.learner.scorer import Scorer, Scores
from rlforge.learner.sharding import SpreadScorer, cpu_copy, spread_like
from rlforge.learner.weights import (
    check_fit,
    load_adapter,
    load_value_head,
    save_adapter,
    save_model,
    save_value_head,
)
from rlforge.models.files import VALUE_HEAD
from rlforge.models.lora import attach_lora, leave_inputs_alone
from rlforge.types import Step, value

#: Mean tokens of a step from which packing pays without a kernel for it, sequence by sequence.
PACKED_LENGTH = 64


@value
class Pass:
    """One forward pass. counts: False where it only keeps the ranks in step."""

    micro: MicroBatch
    counts: bool


class Policy:
    """Weights in training: an adapter (``train: lora``) or the whole model (``train: full``).

    The reference is the model as it is now, before training. It costs nothing for a fresh
    adapter, which is switched off for it; otherwise it is a frozen copy.

    With ``shard_weights`` the model is spread over the ranks, an adapter excepted. What is computed
    for a whole batch is divided among the ranks; every rank gets all of it. Every rank must call
    the same methods in the same order.
    """

    def __init__(
        self,
        model: Any,
        config: LearnerConfig,
        lora: LoraConfig,
        *,
        temperature: float,
        pad_token_id: int,
        device: torch.device,
        ranks: Ranks,
        seed: int,
        needs_values: bool,
        needs_reference: bool,
        initial_value_head: Mapping[str, Tensor] | None,
    ) -> None:
        check_compiling(config, device.type)
        self._dtype: torch.dtype = model.dtype
        self._max_rows = config.mini_batch_size
        self._max_tokens = config.micro_batch_tokens
        self._max_train_len = config.max_train_len
        self._pad_token_id = pad_token_id
        self._device = device
        self._ranks = ranks
        self._spread = config.shard_weights
        self._model = model if self._spread else model.to(device)
        fuse_norms(model)
        self.value_head = (
            _new_value_head(model, device, initial_value_head) if needs_values else None
        )
        self._adapter = attach_lora(model, lora, seed) if config.train == "lora" else None
        autocast = self._dtype if self._dtype == torch.bfloat16 else None
        if self._adapter is not None:
            merge_small_lora(self._adapter)
            fuse_lora_add(self._adapter)
            if autocast is not None:
                leave_inputs_alone(self._adapter)
        if config.initial_adapter is not None:
            self._warm_start(Path(config.initial_adapter))
        if self._adapter is None:
            model.float().requires_grad_(True)
        copied = self._adapter is None or config.initial_adapter is not None
        frozen = copy.deepcopy(model).requires_grad_(False) if needs_reference and copied else None

        make_scorer: Callable[..., Scorer] = Scorer
        if self._spread:
            copies = set(self.parameters()) if self._adapter is not None else set()
            make_scorer = functools.partial(SpreadScorer, ranks=ranks, device=device, copies=copies)

        recomputed = config.gradient_checkpointing or config.activation_checkpointing

        def scorer(scored: Any, value_head: nn.Module | None) -> Scorer:
            return make_scorer(
                scored,
                temperature=temperature,
                use_cache=config.use_trainer_cache,
                autocast=autocast,
                fp32_head=config.fp32_head,
                value_head=value_head,
                narrow=not (recomputed or config.compile or self._spread),
            )

        self._scorer = scorer(model, self.value_head)
        self._frozen = frozen
        self._reference = None if frozen is None else scorer(frozen.eval(), None)
        scorers = [s for s in (self._scorer, self._reference) if s is not None]
        wanted = config.packing != "off" and not config.use_trainer_cache
        self._packs = wanted and all(s.can_pack() for s in scorers)
        kernel = device.type == "cuda" and self._dtype in (torch.bfloat16, torch.float16)
        self._packs_from = 0 if kernel or config.packing == "on" else PACKED_LENGTH
        # Dropout would hit the shared beginning once for all rows.
        undisturbed = self._adapter is None or lora.dropout == 0
        self._shares = config.share_prefixes and undisturbed
        apply_memory_options(model, config)
        if config.compile:
            for compiled in (model,) if frozen is None else (model, frozen):
                compile_layers(compiled)
        ranks.share_from_first(self._trained().values())

    @property
    def narrowed(self) -> tuple[nn.Module, ...]:
        """Modules that are computed only where they are read (``rlforge.models.last_layer``)."""
        return self._scorer.narrowed

    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name, without the critic."""
        return {name: p for name, p in self._model.named_parameters() if p.requires_grad}

    def train(self, mode: bool = True) -> None:
        """Dropout and checkpointing on for the training pass, off for measurements."""
        self._model.train(mode)

    def passes(self, rows: Sequence[Row]) -> Iterator[Pass]:
        """This rank's share of ``rows`` as forward passes within the limits of rows and tokens."""
        tokens = sum(row.input_length for row in rows)
        packed = self._packs and tokens >= self._packs_from * len(rows)
        layout: Layout = "padded" if not packed else "shared" if self._shares else "packed"
        build = {"padded": lambda rows: None, "packed": whole, "shared": segments}[layout]

        def cut(rows: Sequence[Row]) -> Iterator[list[Row]]:
            return parts(rows, self._max_rows, self._max_tokens, layout)

        dealt = deal(rows, self._ranks.size, layout)
        for share in shares(dealt, self._ranks.rank, cut, in_step=self._spread):
            micro = collate(share.rows, self._pad_token_id, self._device, build(share.rows))
            yield Pass(micro=micro, counts=share.counts)

    def score(self, micro: MicroBatch, *, entropy: bool) -> Scores:
        """Scores with gradient."""
        return self._scorer.score(micro, entropy=entropy)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row], total: int) -> Tensor:
        """Log-probs [total] of all answer tokens of ``rows`` under the policy as it is."""
        return self._all_logprobs(self._scorer, rows, total)

    @torch.no_grad()
    def reference_logprobs(self, rows: Sequence[Row], total: int) -> Tensor:
        """The same under the model before training."""
        if self._reference is not None:
            return self._all_logprobs(self._reference, rows, total)
        assert self._adapter is not None
        with self._adapter.disable_adapter():
            return self._all_logprobs(self._scorer, rows, total)

    @torch.no_grad()
    def values(self, steps: Sequence[Step]) -> list[float]:
        """The critic's estimate for every step, trained on or not; 0 for a step without a prompt.

        A prompt beyond ``max_train_len`` is read from its end.
        """
        limit = self._max_train_len or 0
        rows = [
            Row(step=index, prompt=step.prompt_token_ids[-limit:], answer=())
            for index, step in enumerate(steps)
            if step.prompt_token_ids
        ]
        values = torch.zeros(len(steps), device=self._device)
        for part in self.passes(rows):
            computed = self._scorer.values(part.micro)
            if part.counts:
                values[part.micro.steps] = computed
        return self._ranks.sum_(values).tolist()

    def save(self, directory: Path | None) -> None:
        """Write adapter or full weights, and the critic if there is one; None writes nothing.

        Every rank must take part: only together they have all weights.
        """
        if self._adapter is None:
            save_model(self._model, directory, self._dtype)
        elif directory is not None:
            save_adapter(self._adapter, directory)
        if self.value_head is not None and directory is not None:
            save_value_head(self.value_head, directory)

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of everything trained, on the CPU; whole on rank 0, empty tensors elsewhere."""
        keep = self._ranks.rank == 0
        return {name: cpu_copy(p, keep) for name, p in self._trained().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over ``state``; CheckpointError naming the first tensor that does not fit."""
        trained = self._trained()
        check_fit(state, trained, "learner state")
        for name, parameter in trained.items():
            parameter.copy_(spread_like(state[name], parameter))

    def tensors(self) -> Iterator[Tensor]:
        """Everything on the device: weights and buffers, the critic's and the reference's too."""
        for module in (self._model, self.value_head, self._frozen):
            if module is not None:
                yield from module.parameters()
                yield from module.buffers()

    def _trained(self) -> dict[str, nn.Parameter]:
        trained = self.parameters()
        if self.value_head is not None:
            trained.update({f"value_head.{n}": p for n, p in self.value_head.named_parameters()})
        return trained

    def _warm_start(self, directory: Path) -> None:
        load_adapter(self._adapter, directory)
        if self.value_head is not None and (directory / VALUE_HEAD).exists():
            load_value_head(self.value_head, directory)

    def _all_logprobs(self, scorer: Scorer, rows: Sequence[Row], total: int) -> Tensor:
        logprobs = torch.zeros(total, device=self._device)
        for part in self.passes(rows):
            scores = scorer.score(part.micro)
            if part.counts:
                logprobs[part.micro.flat] = scores.logprobs
        return self._ranks.sum_(logprobs)


def _new_value_head(
    model: Any, device: torch.device, initial: Mapping[str, Tensor] | None
) -> nn.Module:
    """Linear on the hidden state; starts from ``initial``, or from zero and no prejudice."""
    head = nn.Linear(model.config.get_text_config().hidden_size, 1, device=device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    if initial is not None:
        check_fit(initial, head.state_dict(), "initial value head")
        head.load_state_dict(dict(initial))
    return head
