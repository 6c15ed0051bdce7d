"""The configuration of the learner (group ``learner``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from rlforge.config.rules import (
    Beta,
    Count,
    Group,
    Length,
    NotNegative,
    Positive,
    Problem,
    Range,
    Text,
    Whole,
)


@dataclass
class LearnerConfig(Group):
    """How the policy is updated (group ``learner``)."""

    #: Train a low-rank adapter (``lora``) or all weights (``full``).
    train: Literal["lora", "full"] = "lora"
    #: Most turns per forward pass; gradients accumulate over the batch. null: only
    #: ``micro_batch_tokens`` limits a pass.
    mini_batch_size: Count | None = None
    #: Most tokens per forward pass, padding included; a longer turn is a pass of its own.
    micro_batch_tokens: Count = 4096
    #: Compute the prompt prefix that samples share only once per forward pass (needs packed
    #: sequences).
    share_prefixes: bool = True
    #: Concatenate sequences instead of padding them. ``auto``: on GPUs with a variable-length
    #: attention kernel; elsewhere if turns average 64 tokens or more. Models with anything but
    #: plain causal attention (soft caps, sinks, sliding windows, position bias) are always padded.
    packing: Literal["auto", "on", "off"] = "auto"
    #: Compute logits in float32 where the model computes in bfloat16.
    fp32_head: bool = False
    #: Optimizer steps per pass over a batch.
    optimizer_steps: Count = 1
    #: Micro-batches of ``mini_batch_size`` samples per optimizer step. The number of optimizer
    #: steps per epoch then follows from the batch's size. null: use ``optimizer_steps``.
    gradient_accumulation_steps: Count | None = None
    #: Passes over each batch.
    epochs: Count = 1
    #: AdamW learning rate.
    learning_rate: Positive = 1e-5
    #: Learning-rate schedule after warm-up.
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    #: Updates of linear warm-up.
    warmup_updates: Whole = 0
    #: Learning rate at the end of linear and cosine, relative to the start.
    final_lr_ratio: NotNegative = 0.0
    #: AdamW weight decay.
    weight_decay: NotNegative = 0.0
    #: AdamW betas.
    betas: Annotated[list[Beta], Length(2)] = field(default_factory=lambda: [0.9, 0.999])
    #: Largest global gradient norm.
    grad_clip: Positive = 0.2
    #: Most tokens of prompt and answer that the loss sees; null: all.
    max_train_len: Count | None = None
    #: Hugging Face gradient checkpointing (recompute each layer).
    gradient_checkpointing: bool = False
    #: Checkpoint every module's activations.
    activation_checkpointing: bool = False
    #: Compile the decoder layers (torch.compile). It takes a minute or more at the start, and
    #: needs a C++ compiler, or Triton on GPUs; not with ``shard_weights``.
    compile: bool = False
    #: Keep the KV cache in training passes.
    use_trainer_cache: bool = False
    #: Adapter directory to start from.
    initial_adapter: Text | None = None
    #: Saved versions to keep, besides those that games, evaluations or --resume may need; null:
    #: all.
    keep_checkpoints: Whole | None = None
    #: Learner ranks: processes that share the samples of every update, divided by tokens.
    num_learners: Count = 1
    #: Shard the weights over the ranks (FSDP2) instead of keeping a copy on each.
    shard_weights: bool = False

    def clashes(self) -> Iterator[Problem]:
        passes = self.gradient_accumulation_steps
        if self.train == "full" and self.initial_adapter is not None:
            yield "initial_adapter", "needs learner.train=lora, not full"
        recomputed = self.gradient_checkpointing or self.activation_checkpointing
        if self.use_trainer_cache and recomputed:
            yield (
                "use_trainer_cache",
                "a KV cache cannot be kept while activations are recomputed; switch it off, or "
                "gradient_checkpointing and activation_checkpointing",
            )
        if self.packing == "on" and self.use_trainer_cache:
            yield "packing", "keeps no cache; set learner.use_trainer_cache=false"
        if passes is not None and self.mini_batch_size is None:
            yield (
                "gradient_accumulation_steps",
                "counts forward passes of learner.mini_batch_size steps; set that, too",
            )
        if passes is not None and self.optimizer_steps != 1:
            yield (
                "optimizer_steps",
                "follows from learner.gradient_accumulation_steps; drop one",
            )
        if self.shard_weights and self.num_learners == 1:
            yield (
                "shard_weights",
                "divides the weights over several ranks; raise learner.num_learners, or switch it "
                "off",
            )
        if self.compile and self.use_trainer_cache:
            yield "compile", "compiled layers keep no cache; set learner.use_trainer_cache=false"
        if self.compile and self.shard_weights:
            yield (
                "compile",
                "not together with weights that are divided over ranks; set learner.compile=false "
                "or learner.shard_weights=false",
            )
        if self.compile and self.activation_checkpointing:
            yield (
                "compile",
                "modules of a compiled layer are not recomputed one by one; use "
                "learner.gradient_checkpointing instead of learner.activation_checkpointing",
            )


@dataclass
class GameLearnerConfig(LearnerConfig):
    """How the policy is updated (group ``learner``), and how often, in a run that plays games."""

    #: Updates until the run is done.
    total_updates: Count = 200
    #: Samples per update: turns, or episodes with ``buffer.kind: episode``.
    batch_size: Count = 384
    #: The learner waits for batch_size times this many samples.
    batch_delay_buffer: Annotated[float, Range(1)] = 1.0
    #: Save and register a version every this many updates.
    save_every: Count = 1
    #: Save optimizer, RNG, pool and buffer for --resume every this many updates.
    state_every: Count = 10

    def clashes(self) -> Iterator[Problem]:
        yield from super().clashes()
        if self.batch_size % self.optimizer_steps:
            yield "optimizer_steps", f"does not divide learner.batch_size={self.batch_size}"
