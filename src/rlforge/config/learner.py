"""The configuration of the learner (group ``learner``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlforge.config.rules import Group


@dataclass
class LearnerConfig(Group):
    """How the policy is updated (group ``learner``)."""

    #: ``lora`` or ``full``.
    train: str = "lora"
    #: Most steps per forward pass; gradients accumulate over the batch. null: only tokens count.
    mini_batch_size: int | None = None
    #: Most tokens per forward pass, padding included; a longer step goes alone.
    micro_batch_tokens: int = 4096
    #: Read only once what prompts begin with alike, where sequences are packed.
    share_prefixes: bool = True
    #: Sequences behind each other instead of padded: ``on``, ``off``, or ``auto``, always on GPUs
    #: that have the kernel for it, and elsewhere where steps have 64 tokens or more on average.
    #: Models that need more of their attention than that it is causal keep their padding.
    packing: str = "auto"
    #: Compute logits in float32 where the model computes in bfloat16.
    fp32_head: bool = False
    #: Optimizer steps per pass over a batch.
    optimizer_steps: int = 1
    #: Forward passes of ``mini_batch_size`` steps behind each optimizer step, for batches whose
    #: size varies, as windows do: a pass makes as many optimizer steps as that takes. null:
    #: ``optimizer_steps`` says how many.
    gradient_accumulation_steps: int | None = None
    #: Passes over each batch.
    epochs: int = 1
    #: AdamW learning rate.
    learning_rate: float = 1e-5
    #: Schedule after warm-up: constant, linear or cosine.
    schedule: str = "constant"
    #: Updates of linear warm-up.
    warmup_updates: int = 0
    #: Learning rate at the end of linear and cosine, relative to the start.
    final_lr_ratio: float = 0.0
    #: AdamW weight decay.
    weight_decay: float = 0.0
    #: AdamW betas.
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    #: Largest global gradient norm.
    grad_clip: float = 0.2
    #: Most tokens of prompt and answer that the loss sees; null: all.
    max_train_len: int | None = None
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
    initial_adapter: str | None = None
    #: Saved versions kept beside those that games, evaluations or --resume may ask for; null: all.
    keep_checkpoints: int | None = None
    #: Learner ranks: processes that divide the rows of every update by tokens.
    num_learners: int = 1
    #: Divide the weights over the ranks (FSDP2) instead of keeping a copy on each.
    shard_weights: bool = False


@dataclass
class GameLearnerConfig(LearnerConfig):
    """How the policy is updated (group ``learner``), and how often, in a run that plays games."""

    #: Updates until the run is done.
    total_updates: int = 200
    #: Samples per update: steps, or episodes with ``buffer.kind: episode``.
    batch_size: int = 384
    #: The learner waits for batch_size times this many samples.
    batch_delay_buffer: float = 1.0
    #: Save and register a version every this many updates.
    save_every: int = 1
    #: Save optimizer, RNG, pool and buffer for --resume every this many updates.
    state_every: int = 10
