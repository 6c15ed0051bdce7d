"""Ways to save memory: how much each key saves, and which changes make a run fit."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Iterator

from rlforge.config.schema import PolicyConfig
from rlforge.config.training import LearnerConfig
from rlforge.preflight.memory.plan import Plan, train_length
from rlforge.types import value

#: The plan of a changed configuration on the same hardware.
Replan = Callable[[PolicyConfig], Plan]


@value
class Option:
    """A change of one key, and the bytes that it saves of the learner or of one full engine.

    ``hardware.alternate`` saves them on the card that engines and learner share.
    """

    key: str
    value: str
    saves: int


def with_learner(config: PolicyConfig, **changes: object) -> PolicyConfig:
    """``config`` with other ``learner`` values."""
    learner: LearnerConfig = dataclasses.replace(config.learner, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(config, learner=learner)


def with_engine(config: PolicyConfig, **changes: object) -> PolicyConfig:
    """``config`` with other ``engine`` values."""
    engine = dataclasses.replace(config.engine, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(config, engine=engine)


def with_turns(config: PolicyConfig) -> PolicyConfig:
    """``config`` with engines and learner taking turns, the learner offloaded in between."""
    hardware = dataclasses.replace(config.hardware, alternate=True, offload_learner=True)
    return dataclasses.replace(config, hardware=hardware)


def can_take_turns(config: PolicyConfig, plan: Plan) -> bool:
    """Whether engines and learner share one card of this machine at the same time."""
    alone = len(plan.cards) == plan.cards[0].count == plan.cards[0].learners == 1
    here = config.hardware.ray_address is None
    return alone and here and not plan.alternate and plan.gained_by_turns > 0


def options(config: PolicyConfig, replan: Replan) -> tuple[Option, ...]:
    """Changes of one key each that save memory, the most first."""
    now = replan(config)
    found = []
    if can_take_turns(config, now):
        found.append(Option(key="hardware.alternate", value="true", saves=now.gained_by_turns))
    if now.alternate:
        saved = now.learner_idle.total - replan(with_turns(config)).learner_idle.total
        found.append(Option(key="hardware.offload_learner", value="true", saves=saved))
    for key, text, changed in _changes(config):
        then = replan(changed)
        saved = now.learner.total - then.learner.total
        if key.startswith(("engine.", "model.", "pool.")):
            saved += now.engine.total - then.engine.total
        found.append(Option(key=key, value=text, saves=saved))
    return tuple(sorted((o for o in found if o.saves > 0), key=lambda option: -option.saves))


def _changes(config: PolicyConfig) -> list[tuple[str, str, PolicyConfig]]:
    learner, engine, length = config.learner, config.engine, train_length(config)
    changes = []
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        if not getattr(learner, name):
            changes.append((f"learner.{name}", "true", with_learner(config, **{name: True})))
    for name, whole in (("max_train_len", length), ("micro_batch_tokens", 0)):
        half = (whole or learner.micro_batch_tokens) // 2
        if half:
            changes.append((f"learner.{name}", str(half), with_learner(config, **{name: half})))
    if learner.train == "lora" and config.model.lora.rank > 1:
        rank = config.model.lora.rank // 2
        lora = dataclasses.replace(config.model.lora, rank=rank)
        model = dataclasses.replace(config.model, lora=lora)
        changes.append(("model.lora.rank", str(rank), dataclasses.replace(config, model=model)))
    for name in ("max_parallel_seq", "max_model_len", "max_loras"):
        half = getattr(engine, name) // 2
        if half:
            changes.append((f"engine.{name}", str(half), with_engine(config, **{name: half})))
    if (games := config.games) is None:
        return changes
    for name in ("max_parallel_seq", "max_model_len"):
        if half := getattr(games.pool.hf, name) // 2:
            hf = dataclasses.replace(games.pool.hf, **{name: half})
            pool = dataclasses.replace(games.pool, hf=hf)
            changes.append((f"pool.hf.{name}", str(half), dataclasses.replace(games, pool=pool)))
    return changes


def largest_pass(config: PolicyConfig, fits: Callable[[PolicyConfig], bool]) -> int:
    """Most tokens of one pass (``max_train_len``, ``micro_batch_tokens``) for which ``fits`` holds.

    0 when it never does, ``engine.max_model_len`` at most.
    """

    def too_long(tokens: int) -> bool:
        return not fits(with_learner(config, max_train_len=tokens, micro_batch_tokens=tokens))

    return bisect.bisect_left(range(1, config.engine.max_model_len + 1), True, key=too_long)


def mend(config: PolicyConfig, replan: Replan) -> tuple[str, ...]:
    """Overrides (``key=value``) with which the plan fits, the cheapest changes first; () if none.

    First the division of a card between learner and vLLM, then offloading, checkpoints and turns,
    which change no result; last the length of steps.
    """
    overrides: tuple[str, ...] = ()
    for override, changed in _same_results(config, replan):
        overrides += override
        if (share := share_that_fits(changed, replan)) is not None:
            return (*overrides, *share)
    shorter = _shorter_steps(changed, replan)
    return (*overrides, *shorter) if shorter else ()


def _same_results(
    config: PolicyConfig, replan: Replan
) -> Iterator[tuple[tuple[str, ...], PolicyConfig]]:
    """Overrides that change no result, none first, each with the configuration up to it."""
    yield (), config
    if config.hardware.alternate and not config.hardware.offload_learner:
        config = with_turns(config)
        yield ("hardware.offload_learner=true",), config
    if not config.learner.gradient_checkpointing:
        config = with_learner(config, gradient_checkpointing=True)
        yield ("learner.gradient_checkpointing=true",), config
    if can_take_turns(config, replan(config)):
        config = with_turns(config)
        yield ("hardware.alternate=true",), config


def _shorter_steps(config: PolicyConfig, replan: Replan) -> tuple[str, ...]:
    """Overrides for the longest steps of at least 512 trained tokens that fit; () if none do."""
    now = config.engine.max_model_len
    for longest in (now, *(length for length in (4096, 2048, 1024) if length <= now)):
        shorter = with_engine(config, max_model_len=longest)
        tokens = largest_pass(shorter, lambda c: share_that_fits(c, replan) is not None) // 64 * 64
        if tokens < 512:
            continue
        texts = [f"engine.max_model_len={longest}"] if longest < now else []
        if tokens < train_length(shorter):
            texts.append(f"learner.max_train_len={tokens}")
        if tokens < config.learner.micro_batch_tokens:
            texts.append(f"learner.micro_batch_tokens={tokens}")
        cut = with_learner(shorter, max_train_len=tokens, micro_batch_tokens=tokens)
        return (*texts, *(share_that_fits(cut, replan) or ()))
    return ()


def share_that_fits(config: PolicyConfig, replan: Replan) -> tuple[str, ...] | None:
    """() when the plan fits; for vLLM, the share of its card that makes it fit; None if neither."""
    plan = replan(config)
    if not plan.excess:
        return ()
    engine = config.engine
    if engine.name != "vllm" or engine.vllm.kv_cache_gb is not None:
        return None
    share = math.floor(plan.left * 100) / 100
    vllm = dataclasses.replace(engine.vllm, gpu_memory_utilization=share)
    if replan(with_engine(config, vllm=vllm)).excess:
        return None
    return (f"engine.vllm.gpu_memory_utilization={share:g}",)
