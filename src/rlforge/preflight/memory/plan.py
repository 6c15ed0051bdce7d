"""The memory plan of a run: bytes per process and card, and whether they fit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from rlforge.config.per_policy import policy_names
from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.models.shape import ModelShape
from rlforge.preflight.memory import engine as engine_memory
from rlforge.preflight.memory import learner as learner_memory
from rlforge.preflight.memory.cards import Card, place
from rlforge.preflight.memory.engine import EngineJob
from rlforge.preflight.memory.learner import LearnerJob
from rlforge.system.limits import (
    PROMPT_TOKENS,
    VLLM_CPU_CACHE_GB,
    VLLM_SHARE,
    kept_versions,
    vllm_share,
)
from rlforge.types import value

GIB = 2**30

#: Bytes of a process without its tensors. cuda: context, libraries and their workspace, a usual
#: figure that is not measured here. cpu: Python with torch, transformers and Ray, measured.
PROCESS_BYTES = {"cuda": 640 * 2**20, "cpu": 420 * 2**20}

#: Tokens that vLLM reads in a step unless ``engine.vllm.max_num_batched_tokens`` is set.
VLLM_STEP_TOKENS = 8192

Verdict = Literal["fits", "tight", "does not fit"]


@value
class Part:
    """A named part of a process's memory."""

    name: str
    bytes: int


@value
class Need:
    """Memory of one process at its peak, part by part."""

    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(part.bytes for part in self.parts)


#: Parts that outlast the turn of an engine or learner, and can wait on the host for the next one.
LASTING = frozenset({"weights", "versions", "other models", "adapter", "AdamW states"})


def _stored(need: Need, idle: Need) -> int:
    """Bytes that wait on the host: lasting parts that are not kept on the card."""
    kept = {part.name for part in idle.parts}
    return sum(part.bytes for part in need.parts if part.name in LASTING - kept)


@value
class Plan:
    """A run's memory. least: an engine with one running sequence of full length; no parts without
    engines.

    learner_idle, engine_idle: held by the one while the other works, where they take turns
    (``alternate``). sequences: full-length sequences that each engine has room for, on the fullest
    card. wanted: sequences that it may have to run at once. shortage: bytes that a cache of fixed
    size lacks for one sequence. left: share of its card that each engine can have next to the
    learner, working or idle. share: share of its card that a vLLM engine reserves at its start;
    None for engines that reserve nothing.
    """

    shape: ModelShape
    learner: Need
    least: Need
    engine: Need
    learner_idle: Need
    engine_idle: Need
    alternate: bool
    cards: tuple[Card, ...]
    sequences: int
    wanted: int
    sequence_bytes: int
    shortage: int
    left: float
    share: float | None

    def need(self, card: Card) -> int:
        """Bytes on ``card`` at least, for the run to work."""
        if self.alternate:
            return max(self.learning(card), self.playing(card))
        return self.learner.total * card.learners + self.least.total * card.engines

    def learning(self, card: Card) -> int:
        """Bytes on ``card`` while the learner has its turn."""
        return self.learner.total * card.learners + self.engine_idle.total * card.engines

    def playing(self, card: Card) -> int:
        """Bytes on ``card`` at least, while the engines have their turn."""
        return self.learner_idle.total * card.learners + self.least.total * card.engines

    @property
    def gained_by_turns(self) -> int:
        """Bytes of the learner's card that turns save, or would; 0 where no engine shares it.

        vLLM's engines count with what they reserve.
        """
        card = self.cards[0]
        together = self.learner.total * card.learners + self.least.total * card.engines
        return together - max(self.learning(card), self.playing(card)) if card.engines else 0

    @property
    def on_host(self) -> int:
        """Bytes of host memory for the parts that leave the card in turns, at the peak."""
        card = self.cards[0]
        engines = _stored(self.engine, self.engine_idle) * card.engines
        return max(engines, _stored(self.learner, self.learner_idle)) if self.alternate else 0

    @property
    def excess(self) -> int:
        """Bytes that are missing, on the fullest card or in an engine's cache; 0 when all fit."""
        return max(self.shortage, *(self.need(card) - card.usable for card in self.cards))

    @property
    def verdict(self) -> Verdict:
        """``tight``: it runs, but not with every sequence at full length at the same time."""
        if self.excess:
            return "does not fit"
        return "fits" if self.sequences >= self.wanted else "tight"


def make_plan(
    config: PolicyConfig,
    shape: ModelShape,
    hardware: HardwareConfig,
    capacity: int,
    *,
    bf16: bool,
    others: Sequence[EngineJob] = (),
) -> Plan:
    """The plan of ``config`` on cards (or a machine) of ``capacity`` bytes.

    hardware: resolved, without ``auto`` or null. bf16: the model is loaded in bfloat16. others:
    those of the other models that every engine holds. A vLLM engine, which takes all that is left,
    leaves room for all their sequences.
    """
    device = "cuda" if hardware.device == "cuda" else "cpu"
    process = Part(name="process", bytes=PROCESS_BYTES[device])
    # Earlier versions are kept on the host.
    versions = kept_versions(config) if device == "cpu" else 0
    policies = len(policy_names(config))
    learner = learner_need(learner_job(config, shape, bf16=bf16), process, versions, policies)
    job = engine_job(config, shape, device, bf16=bf16, gpus=hardware.engine_gpus)
    cards = place(hardware, config.learner.num_learners, config.engine.num_engines, capacity)
    alternate = config.hardware.alternate
    idle = learner_idle(learner, device, offload=config.hardware.offload_learner)
    resting = idle if alternate else learner
    per_sequence = engine_memory.sequence_bytes(job)
    beside, whole = (_beside(others, every=every) for every in (job.paged, True))
    room = min(
        (
            (card.usable - resting.total * card.learners) // card.engines - beside.total
            for card in cards
            if card.engines
        ),
        default=0,  # supervised fine-tuning has no engine
    )
    left = max(0.0, room / capacity)
    share = None
    if job.paged:
        if device == "cuda":
            share = engine_share(config, hardware, cards, left, alone=not others)
        reserved = None if share is None else int(share * capacity)
        engine = least = reserved_need(config, job, process, reserved)
        cache = next(part.bytes for part in least.parts if part.name == "KV cache")
        sequences, shortage = cache // per_sequence, max(0, per_sequence - cache)
    else:
        one = dataclasses.replace(job, sequences=1)
        least, engine, shortage = engine_need(one, process), engine_need(job, process), 0
        rows = 12 * shape.vocab  # of logits, one more with each sequence
        sequences = max(0, 1 + (room - least.total) // (per_sequence + rows))
    least = Need(parts=(*least.parts, *beside.parts))
    engine = Need(parts=(*engine.parts, *whole.parts))
    if not config.engine.num_engines:
        least = engine = Need(parts=())
        sequences = 0
    return Plan(
        shape=shape,
        learner=learner,
        least=least,
        engine=engine,
        learner_idle=idle,
        engine_idle=engine_idle(least, device, paged=job.paged),
        alternate=alternate,
        cards=cards,
        sequences=sequences,
        wanted=0 if not engine.parts else 1 if job.paged else job.sequences,
        sequence_bytes=per_sequence,
        shortage=shortage,
        left=left,
        share=share,
    )


def learner_job(config: PolicyConfig, shape: ModelShape, *, bf16: bool) -> LearnerJob:
    """The longest pass that the configuration allows.

    Steps are ``engine.max_model_len`` tokens long, at most ``learner.max_train_len``. Passes are
    filled up to ``learner.micro_batch_tokens``; a longer step has a pass of its own.
    """
    learner, length = config.learner, train_length(config)
    rows = learner.mini_batch_size or learner.micro_batch_tokens
    tokens = max(length, min(learner.micro_batch_tokens, rows * length))
    whole = learner.train == "full"
    copied = whole or learner.initial_adapter is not None
    return LearnerJob(
        shape=shape,
        lora=None if whole else config.model.lora,
        tokens=tokens,
        length=length,
        answers=min(tokens, -(-tokens // length) * min(length, config.engine.max_tokens)),
        bf16=bf16,
        layer_checkpoints=learner.gradient_checkpointing,
        module_checkpoints=learner.activation_checkpointing,
        reference=copied and config.algorithm.kl.coef > 0 and config.algorithm.kl.to == "base",
        fp32_head=learner.fp32_head,
        entropy=config.algorithm.entropy_coef != 0,
        ranks=learner.num_learners if learner.shard_weights else 1,
    )


def train_length(config: PolicyConfig) -> int:
    """Tokens of the longest step that is trained on."""
    longest, cut = config.engine.max_model_len, config.learner.max_train_len
    return longest if cut is None else min(longest, cut)


def engine_job(
    config: PolicyConfig, shape: ModelShape, device: str, *, bf16: bool, gpus: float = 1.0
) -> EngineJob:
    """One engine with all sequences it may run at once; ``gpus``: cards that divide the model."""
    engine, paged = config.engine, config.engine.name == "vllm"
    read = max(PROMPT_TOKENS[device], engine.max_model_len)  # a longer prompt has its own pass
    if paged:
        read = engine.vllm.max_num_batched_tokens or VLLM_STEP_TOKENS
    return EngineJob(
        shape=shape,
        lora=None if config.learner.train == "full" else config.model.lora,
        bf16=bf16,
        versions=engine.max_loras,
        sequences=engine.max_parallel_seq,
        length=engine.max_model_len,
        prompt_tokens=min(read, engine.max_parallel_seq * engine.max_model_len),
        paged=paged,
        cards=max(1, int(gpus)) if device == "cuda" else 1,
    )


def learner_need(job: LearnerJob, process: Part, versions: int = 0, policies: int = 1) -> Need:
    """The learner at the peak of its longest pass, with ``versions`` earlier adapters.

    policies: each has an adapter and optimizer states of its own, which stay.

    The peak may come when no logits exist; then the workspace is what exceeds their room.
    """
    kept, workspace = learner_memory.pass_bytes(job)
    logits, adapter = learner_memory.logits_bytes(job), learner_memory.adapter_bytes(job)
    earlier = versions * policies
    kept_adapters = (Part(name="versions", bytes=earlier * adapter),) if earlier else ()
    return Need(
        parts=(
            Part(name="weights", bytes=learner_memory.weight_bytes(job)),
            Part(name="adapter", bytes=policies * adapter),
            *kept_adapters,
            Part(name="gradients", bytes=learner_memory.gradient_bytes(job)),
            Part(name="AdamW states", bytes=policies * learner_memory.optimizer_bytes(job)),
            Part(name="activations", bytes=kept),
            Part(name="logits", bytes=logits),
            Part(name="workspace", bytes=workspace - logits),
            process,
        )
    )


def engine_need(job: EngineJob, process: Part) -> Need:
    """One engine with all its sequences at full length."""
    return Need(
        parts=(
            Part(name="weights", bytes=engine_memory.weight_bytes(job)),
            Part(name="versions", bytes=engine_memory.version_bytes(job)),
            Part(name="KV cache", bytes=engine_memory.sequence_bytes(job) * job.sequences),
            Part(name="workspace", bytes=engine_memory.workspace_bytes(job)),
            process,
        )
    )


def _beside(jobs: Sequence[EngineJob], *, every: bool) -> Need:
    """The other models of an engine with one sequence of full length each, or with ``every``."""
    running = [job if every else dataclasses.replace(job, sequences=1) for job in jobs]
    caches = (
        engine_memory.sequence_bytes(job) * job.sequences + engine_memory.workspace_bytes(job)
        for job in running
    )
    weights = Part(name="other models", bytes=sum(map(engine_memory.weight_bytes, jobs)))
    return Need(parts=(weights, Part(name="their caches", bytes=sum(caches))) if jobs else ())


def learner_idle(need: Need, device: str, *, offload: bool) -> Need:
    """What the learner keeps in the engines' turn: weights and states, unless a GPU offloads them.

    Gradients and activations are freed by then.
    """
    kept = {"process"}
    if device != "cuda" or not offload:
        kept |= LASTING
    return Need(parts=tuple(part for part in need.parts if part.name in kept))


def engine_idle(need: Need, device: str, *, paged: bool) -> Need:
    """What an engine keeps while the learner works: on a GPU only its process.

    On a CPU weights and adapters stay too, and the cache that vLLM divides among sequences.
    """
    kept = {"process"}
    if device != "cuda":
        kept |= LASTING | ({"KV cache"} if paged else set())
    return Need(parts=tuple(part for part in need.parts if part.name in kept))


def engine_share(
    config: PolicyConfig,
    hardware: HardwareConfig,
    cards: tuple[Card, ...],
    left: float,
    *,
    alone: bool,
) -> float:
    """Share of its card that a vLLM engine takes: as configured, or what is left.

    left: share of the fullest card that the learner and other models leave each engine on it.
    alone: there are no other models.
    """
    most = vllm_share(config, hardware.engine_gpus)
    if config.engine.vllm.gpu_memory_utilization is not None:
        return most
    if any(card.learners and card.engines for card in cards) and not config.hardware.alternate:
        most = VLLM_SHARE
    elif alone:
        return most
    return min(most, math.floor(left * 100) / 100)


def reserved_need(
    config: PolicyConfig, job: EngineJob, process: Part, reserved: int | None
) -> Need:
    """A vLLM engine, which takes its memory at the start and divides it among sequences.

    reserved: bytes of a GPU for everything together, of which the cache takes the rest unless its
    size is given; None on a CPU (``rlforge.engines.vllm_settings``).
    """
    none = dataclasses.replace(job, sequences=0)
    parts = [part for part in engine_need(none, process).parts if part.name != "KV cache"]
    given = config.engine.vllm.kv_cache_gb
    if given is None and reserved is not None:
        cache = max(0, reserved - sum(part.bytes for part in parts))
    else:
        cache = int((VLLM_CPU_CACHE_GB if given is None else given) * GIB)
    return Need(parts=(*parts, Part(name="KV cache", bytes=cache)))
