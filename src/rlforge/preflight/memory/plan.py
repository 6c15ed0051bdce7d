"""A run on its cards: what every process needs, and whether it fits."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.models.shape import ModelShape
from rlforge.preflight.memory import engine as engine_memory
from rlforge.preflight.memory import learner as learner_memory
from rlforge.preflight.memory.engine import PROMPT_TOKENS, EngineJob
from rlforge.preflight.memory.learner import LearnerJob
from rlforge.types import value

GIB = 2**30

#: Share of a card that a plan may use: allocators lose some to fragments, drivers keep some.
USABLE = 0.95

#: Of a process beside tensors, in bytes. cuda: context, libraries and their workspace, a usual
#: figure that is not measured here. cpu: Python with torch, transformers and Ray, measured.
PROCESS_BYTES = {"cuda": 640 * 2**20, "cpu": 420 * 2**20}

#: What vLLM takes where nothing is said: of its share of a card that engines have for themselves,
#: of the whole card where they have it in turns with the learner, tokens read in a step, and GiB of
#: cache on a CPU. Beside a learner at work it takes what that leaves, and no more than alone.
VLLM_SHARE = 0.9
VLLM_TURN_SHARE = 0.85
VLLM_STEP_TOKENS = 8192
VLLM_CPU_CACHE_GB = 1.0

Verdict = Literal["fits", "tight", "does not fit"]


@value
class Part:
    """A named share of a process's memory."""

    name: str
    bytes: int


@value
class Need:
    """What one process needs at its fullest moment."""

    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(part.bytes for part in self.parts)


#: What outlasts an engine's or learner's turn, and can wait on the host for the next one.
LASTING = frozenset({"weights", "versions", "adapter", "AdamW states"})


def _stored(need: Need, idle: Need) -> int:
    """Bytes that wait on the host: what lasts, and is not kept on the card."""
    kept = {part.name for part in idle.parts}
    return sum(part.bytes for part in need.parts if part.name in LASTING - kept)


@value
class Card:
    """One kind of card and what shares it. learners: ranks. count: cards alike.

    capacity: bytes, usable or not.
    """

    learners: int
    engines: int
    count: int
    capacity: int

    @property
    def usable(self) -> int:
        """Bytes that a plan may use."""
        return int(self.capacity * USABLE)


@value
class Plan:
    """A run's memory. least: an engine with one running sequence of full length.

    learner_idle, engine_idle: what the one keeps while the other works, where they take turns
    (``alternate``). sequences: full-length sequences that each engine has room for on its card, on
    the fullest one. wanted: those it may have to run at once. shortage: bytes that a cache of fixed
    size lacks for one sequence. left: share of its card that each engine can have beside the
    learner, at work or at rest. share: what each takes of its card ahead of its need, as vLLM does;
    None for engines that do not.
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
        """The least that works on ``card``, in bytes."""
        if self.alternate:
            return max(self.learning(card), self.playing(card))
        return self.learner.total * card.learners + self.least.total * card.engines

    def learning(self, card: Card) -> int:
        """Bytes on ``card`` while the learner has its turn."""
        return self.learner.total * card.learners + self.engine_idle.total * card.engines

    def playing(self, card: Card) -> int:
        """The least bytes on ``card`` while the engines have theirs."""
        return self.learner_idle.total * card.learners + self.least.total * card.engines

    @property
    def gained_by_turns(self) -> int:
        """Bytes of the learner's card that turns save, or would; 0 where it has it for itself.

        Of engines as they are: those of vLLM fill what they are given.
        """
        card = self.cards[0]
        together = self.learner.total * card.learners + self.least.total * card.engines
        return together - max(self.learning(card), self.playing(card)) if card.engines else 0

    @property
    def on_host(self) -> int:
        """Bytes of host memory for what leaves the card in turns, at most at one time."""
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
    config: PolicyConfig, shape: ModelShape, hardware: HardwareConfig, capacity: int, *, bf16: bool
) -> Plan:
    """The plan of ``config`` on cards (or a machine) of ``capacity`` bytes.

    hardware: with every ``auto`` and null decided. bf16: the model is loaded in bfloat16.
    """
    device = "cuda" if hardware.device == "cuda" else "cpu"
    process = Part(name="process", bytes=PROCESS_BYTES[device])
    learner = learner_need(learner_job(config, shape, bf16=bf16), process)
    job = engine_job(config, shape, device, bf16=bf16, gpus=hardware.engine_gpus)
    cards = place(hardware, config.learner.num_learners, config.engine.num_engines, capacity)
    alternate = config.hardware.alternate
    idle = learner_idle(learner, device, offload=config.hardware.offload_learner)
    beside = idle if alternate else learner
    per_sequence = engine_memory.sequence_bytes(job)
    room = min(
        (card.usable - beside.total * card.learners) // card.engines
        for card in cards
        if card.engines
    )
    left = max(0.0, room / capacity)
    share = None
    if job.paged:
        if device == "cuda":
            share = engine_share(config, hardware, cards, left)
        reserved = None if share is None else int(share * capacity)
        engine = least = reserved_need(config, job, process, reserved)
        cache = next(part.bytes for part in least.parts if part.name == "KV cache")
        sequences, shortage = cache // per_sequence, max(0, per_sequence - cache)
    else:
        one = dataclasses.replace(job, sequences=1)
        least, engine, shortage = engine_need(one, process), engine_need(job, process), 0
        rows = 12 * shape.vocab  # of logits, one more with each sequence
        sequences = max(0, 1 + (room - least.total) // (per_sequence + rows))
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
        wanted=1 if job.paged else job.sequences,
        sequence_bytes=per_sequence,
        shortage=shortage,
        left=left,
        share=share,
    )


def learner_job(config: PolicyConfig, shape: ModelShape, *, bf16: bool) -> LearnerJob:
    """The longest pass that the configuration allows.

    A step is as long as ``engine.max_model_len`` lets it grow, or ``learner.max_train_len``. Passes
    are filled up to ``learner.micro_batch_tokens``, and a longer step goes alone.
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
    """Tokens of the longest step that is learned from."""
    longest, cut = config.engine.max_model_len, config.learner.max_train_len
    return longest if cut is None else min(longest, cut)


def engine_job(
    config: PolicyConfig, shape: ModelShape, device: str, *, bf16: bool, gpus: float = 1.0
) -> EngineJob:
    """One engine with all the sequences it may have to run; ``gpus``: cards that it divides."""
    engine, paged = config.engine, config.engine.name == "vllm"
    read = max(PROMPT_TOKENS[device], engine.max_model_len)  # a longer prompt goes alone
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


def learner_need(job: LearnerJob, process: Part) -> Need:
    """The learner at the fullest moment of its longest pass.

    That may be one without logits: the workspace is what it needs beyond the room that they have at
    another.
    """
    kept, beside = learner_memory.pass_bytes(job)
    logits = learner_memory.logits_bytes(job)
    return Need(
        parts=(
            Part(name="weights", bytes=learner_memory.weight_bytes(job)),
            Part(name="adapter", bytes=learner_memory.adapter_bytes(job)),
            Part(name="gradients", bytes=learner_memory.gradient_bytes(job)),
            Part(name="AdamW states", bytes=learner_memory.optimizer_bytes(job)),
            Part(name="activations", bytes=kept),
            Part(name="logits", bytes=logits),
            Part(name="workspace", bytes=beside - logits),
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


def learner_idle(need: Need, device: str, *, offload: bool) -> Need:
    """What the learner keeps in the engines' turn: weights and states, unless a GPU is rid of them.

    Gradients and activations are gone by then.
    """
    kept = {"process"}
    if device != "cuda" or not offload:
        kept |= LASTING
    return Need(parts=tuple(part for part in need.parts if part.name in kept))


def engine_idle(need: Need, device: str, *, paged: bool) -> Need:
    """What an engine keeps asleep: on a GPU its process, on a CPU all but what sequences need.

    Caches go with the sequences, but for the one that vLLM divides among them.
    """
    kept = {"process"}
    if device != "cuda":
        kept |= LASTING | ({"KV cache"} if paged else set())
    return Need(parts=tuple(part for part in need.parts if part.name in kept))


def engine_share(
    config: PolicyConfig, hardware: HardwareConfig, cards: tuple[Card, ...], left: float
) -> float:
    """Share of its card that an engine of vLLM takes: what is said, or what fits.

    left: of the fullest card, what the learner leaves each engine on it.
    """
    said = config.engine.vllm.gpu_memory_utilization
    if said is not None:
        return said
    if config.hardware.alternate:
        return VLLM_TURN_SHARE / config.engine.num_engines
    if any(card.learners and card.engines for card in cards):
        return min(VLLM_SHARE, math.floor(left * 100) / 100)
    return VLLM_SHARE * min(hardware.engine_gpus, 1.0)


def reserved_need(
    config: PolicyConfig, job: EngineJob, process: Part, reserved: int | None
) -> Need:
    """An engine of vLLM, which takes its memory at the start and divides it among sequences.

    reserved: bytes of a GPU for everything together, of which the cache takes what is left, unless
    its size is given; None on a CPU (``rlforge.engines.vllm_settings``).
    """
    none = dataclasses.replace(job, sequences=0)
    parts = [part for part in engine_need(none, process).parts if part.name != "KV cache"]
    said = config.engine.vllm.kv_cache_gb
    if said is None and reserved is not None:
        cache = max(0, reserved - sum(part.bytes for part in parts))
    else:
        cache = int((VLLM_CPU_CACHE_GB if said is None else said) * GIB)
    return Need(parts=(*parts, Part(name="KV cache", bytes=cache)))


def place(hardware: HardwareConfig, learners: int, engines: int, capacity: int) -> tuple[Card, ...]:
    """What shares a card: those of the learner's ranks, and those of the other engines.

    On a CPU all share the machine. Fractions of a card are filled in order, the learner first, as
    Ray packs them; from one card on, an engine or learner has cards of its own.
    """
    if hardware.device != "cuda":
        return (Card(learners=learners, engines=engines, count=1, capacity=capacity),)
    share = hardware.engine_gpus
    beside = 0
    if hardware.learner_gpus < 1 and 0 < share < 1:
        beside = min(engines, int((1 - hardware.learner_gpus) / share + 1e-9))
    cards = [Card(learners=1, engines=beside, count=learners, capacity=capacity)]
    left = engines - beside
    if left:
        together = min(left, int(1 / share + 1e-9)) if 0 < share < 1 else 1
        count = -(-left // together) * max(1, int(share))
        cards.append(Card(learners=0, engines=together, count=count, capacity=capacity))
    return tuple(cards)
