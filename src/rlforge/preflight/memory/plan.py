"""The memory plan of a run: which processes share a card, their bytes, and whether they fit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from rlforge.config.per_policy import policy_names
from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.kinds import kind_of
from rlforge.models.shape import ModelShape
from rlforge.preflight.memory.needs import (
    GIB,
    LASTING,
    EngineJob,
    LearnerJob,
    Need,
    engine_need,
    learner_need,
    reading_bytes,
    sequence_bytes,
    with_pieces,
)
from rlforge.system.limits import (
    PROMPT_TOKENS,
    VLLM_CPU_CACHE_GB,
    VLLM_SHARE,
    kept_versions,
    vllm_share,
)
from rlforge.types import value

# Allocators lose some memory to fragments, and drivers keep some.
#: Share of a card that a plan may use.
USABLE = 0.95

#: Bytes of a process without its tensors.
# The figure for cuda is a usual one, not measured. The CPU's is measured: Python with torch,
# transformers, PEFT and Ray has 330 MiB for itself, and compiled products of matrices take 60
# (``rlforge.models.devices.KEPT_SHAPES``). Files of libraries are not counted: all processes share
# them, and the kernel takes their pages back.
PROCESS_BYTES = {"cuda": 640 * 2**20, "cpu": 390 * 2**20}

#: Tokens that vLLM reads in a step unless ``engine.vllm.max_num_batched_tokens`` is set.
VLLM_STEP_TOKENS = 8192

Verdict = Literal["fits", "tight", "does not fit"]


@value
class Card:
    """A kind of card, or the RAM, and how many learner ranks and engines share one."""

    learners: int
    engines: int
    count: int  #: cards of this kind
    capacity: int  #: bytes of one
    others: int = 0  #: bytes that other processes of the run take

    @property
    def usable(self) -> int:
        return max(0, int(self.capacity * USABLE) - self.others)


def place(hardware: HardwareConfig, learners: int, engines: int, capacity: int) -> tuple[Card, ...]:
    """Processes that share a card: first the cards of the learner's ranks, then all others."""
    if hardware.device != "cuda":
        return (Card(learners=learners, engines=engines, count=1, capacity=capacity),)
    # Fractions of a card fill cards in order, as Ray packs them; other processes have cards of
    # their own.
    share, sharing = hardware.engine_gpus, 0
    if hardware.learner_gpus < 1 and 0 < share < 1:
        sharing = min(engines, int((1 - hardware.learner_gpus) / share + 1e-9))
    cards = [Card(learners=1, engines=sharing, count=learners, capacity=capacity)]
    left = engines - sharing
    if left:
        together = min(left, int(1 / share + 1e-9)) if 0 < share < 1 else 1
        count = -(-left // together) * max(1, int(share))
        cards.append(Card(learners=0, engines=together, count=count, capacity=capacity))
    return tuple(cards)


@value
class Plan:
    """A run's memory."""

    shape: ModelShape
    learner: Need
    least: Need  #: an engine with one running sequence of full length; empty without engines
    engine: Need
    learner_idle: Need  #: held while the other works, where they take turns
    engine_idle: Need
    alternate: bool
    cards: tuple[Card, ...]
    sequences: int  #: of full length that each engine has room for, on the fullest card
    wanted: int  #: sequences that it may have to run at once
    sequence_bytes: int
    shortage: int  #: bytes that a cache of fixed size lacks for one sequence
    left: float  #: share of its card that each engine can have next to the learner
    share: float | None  #: of its card, which a vLLM engine reserves at its start; else None

    def need(self, card: Card) -> int:
        if self.alternate:
            return max(self.learning(card), self.playing(card))
        return self.learner.total * card.learners + self.least.total * card.engines

    def learning(self, card: Card) -> int:
        return self.learner.total * card.learners + self.engine_idle.total * card.engines

    def playing(self, card: Card) -> int:
        return self.learner_idle.total * card.learners + self.least.total * card.engines

    @property
    def gained_by_turns(self) -> int:
        """Bytes of the learner's card that turns save, or would; 0 where no engine shares it."""
        card = self.cards[0]
        together = self.learner.total * card.learners + self.least.total * card.engines
        return together - max(self.learning(card), self.playing(card)) if card.engines else 0

    @property
    def on_host(self) -> int:
        engine, learner = (
            need.only(*LASTING - idle.keys()).total
            for need, idle in ((self.engine, self.engine_idle), (self.learner, self.learner_idle))
        )
        # Parts that leave the card in turns wait on the host, one side's at a time.
        return max(engine * self.cards[0].engines, learner) if self.alternate else 0

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
    """Plan the memory of ``config``.

    hardware: resolved, without ``auto`` or null. capacity: bytes of each card, or of the machine.
    bf16: the model is loaded in bfloat16. others: other models that every engine holds.
    """
    device = "cuda" if hardware.device == "cuda" else "cpu"
    process, alternate = PROCESS_BYTES[device], config.hardware.alternate
    # With a GPU, earlier versions are kept on the host and take nothing of the card.
    versions = kept_versions(config) if device == "cpu" else 0
    trained = learner_job(config, shape, bf16=bf16)
    learner = learner_need(trained, process, versions, len(policy_names(config)))
    if device == "cpu":
        learner = with_pieces(learner)
    offloads = device == "cuda" and config.hardware.offload_learner
    idle = learner.only("process", "allocator", *(() if offloads else LASTING))
    resting = idle if alternate else learner
    job = engine_job(config, shape, device, bf16=bf16, gpus=hardware.engine_gpus)
    cards = place(hardware, config.learner.num_learners, config.engine.num_engines, capacity)
    if device == "cpu":
        cards = (dataclasses.replace(cards[0], others=kind_of(config).host_bytes),)
    per_sequence = sequence_bytes(job)
    one_each = [dataclasses.replace(other, sequences=1) for other in others]
    # A vLLM engine takes all that is left at its start, so other models need room for all
    # sequences.
    beside, whole = _beside(others if job.paged else one_each), _beside(others)
    room = min(
        (
            (card.usable - resting.total * card.learners) // card.engines - beside.total
            for card in cards
            if card.engines
        ),
        # Supervised fine-tuning has no engine.
        default=0,
    )
    left = max(0.0, room / capacity)
    share, shortage = None, 0
    if job.paged:
        if device == "cuda":
            share = _engine_share(config, hardware, cards, left, alone=not others)
        reserved = None if share is None else int(share * capacity)
        engine = least = _reserved(config, job, process, reserved)
        cache = least["KV cache"]
        sequences, shortage = cache // per_sequence, max(0, per_sequence - cache)
    else:
        least = engine_need(dataclasses.replace(job, sequences=1), process)
        engine = engine_need(job, process)
        # Each further sequence has rows of logits, too.
        rows = 12 * shape.vocab
        sequences = max(0, 1 + (room - least.total) // (per_sequence + rows))
    least, engine = Need(least | beside), Need(engine | whole)
    if not config.engine.num_engines:
        least, engine, sequences = Need(), Need(), 0
    # On a GPU a waiting engine is only its process; on a CPU its weights and vLLM's cache stay.
    stays = () if device == "cuda" else (*LASTING, *(("KV cache",) if job.paged else ()))
    return Plan(
        shape=shape,
        learner=learner,
        least=least,
        engine=engine,
        learner_idle=idle,
        engine_idle=least.only("process", *stays),
        alternate=alternate,
        cards=cards,
        sequences=sequences,
        wanted=0 if not engine else 1 if job.paged else job.sequences,
        sequence_bytes=per_sequence,
        shortage=shortage,
        left=left,
        share=share,
    )


def learner_job(config: PolicyConfig, shape: ModelShape, *, bf16: bool) -> LearnerJob:
    learner, length = config.learner, train_length(config)
    rows = learner.mini_batch_size or learner.micro_batch_tokens
    # Passes are filled with steps; a step that is longer has a pass of its own.
    tokens = max(length, min(learner.micro_batch_tokens, rows * length))
    whole = learner.train == "full"
    copied = whole or learner.initial_adapter is not None
    return LearnerJob(
        shape=shape,
        lora=None if whole else config.model.lora,
        tokens=tokens,
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
    longest, cut = config.engine.max_model_len, config.learner.max_train_len
    return longest if cut is None else min(longest, cut)


def engine_job(
    config: PolicyConfig, shape: ModelShape, device: str, *, bf16: bool, gpus: float = 1.0
) -> EngineJob:
    """One engine with all sequences it may run at once. gpus: cards that divide the model."""
    engine, paged = config.engine, config.engine.name == "vllm"
    # A prompt that is longer than a pass has a pass of its own.
    read = max(PROMPT_TOKENS[device], engine.max_model_len)
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


def _beside(jobs: Sequence[EngineJob]) -> Need:
    if not jobs:
        return Need()
    caches = sum(sequence_bytes(job) * job.sequences + reading_bytes(job) for job in jobs)
    return Need({"other models": sum(job.weights for job in jobs), "their caches": caches})


def _engine_share(
    config: PolicyConfig,
    hardware: HardwareConfig,
    cards: tuple[Card, ...],
    left: float,
    *,
    alone: bool,
) -> float:
    """Share of its card that a vLLM engine takes: as configured, or what is left.

    left: share of the fullest card that is left for each engine. alone: there are no other models.
    """
    most = vllm_share(config, hardware.engine_gpus)
    if config.engine.vllm.gpu_memory_utilization is not None:
        return most
    if any(card.learners and card.engines for card in cards) and not config.hardware.alternate:
        most = VLLM_SHARE
    elif alone:
        return most
    return min(most, math.floor(left * 100) / 100)


def _reserved(config: PolicyConfig, job: EngineJob, process: int, reserved: int | None) -> Need:
    """A vLLM engine, which takes its memory at once. reserved: bytes of a GPU; None on a CPU."""
    # On a GPU the cache takes the rest of the share unless its size is given.
    need = engine_need(dataclasses.replace(job, sequences=0), process)
    given = config.engine.vllm.kv_cache_gb
    if given is None and reserved is not None:
        return Need(need | {"KV cache": max(0, reserved - need.total)})
    return Need(need | {"KV cache": int((VLLM_CPU_CACHE_GB if given is None else given) * GIB)})
