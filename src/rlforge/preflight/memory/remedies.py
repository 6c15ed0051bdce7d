"""Ways to save memory: how much each key saves, and which changes make a run fit."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from rlforge.config.schema import PolicyConfig
from rlforge.preflight.memory.plan import Plan, train_length
from rlforge.types import value

#: The plan of a changed configuration on the same hardware.
Replan = Callable[[PolicyConfig], Plan]

#: New values of keys.
Changes = Mapping[str, Any]

C = TypeVar("C", bound=PolicyConfig)

TURNS: Changes = {"hardware.alternate": True, "hardware.offload_learner": True}

CHECKPOINTS = ("learner.gradient_checkpointing", "learner.activation_checkpointing")
SIZES = (
    *("learner.micro_batch_tokens", "model.lora.rank"),
    *("engine.max_parallel_seq", "engine.max_model_len", "engine.max_loras"),
    *("pool.hf.max_parallel_seq", "pool.hf.max_model_len"),
)


@value
class Option:
    """A change of one key, and the bytes that it saves of the learner or of one full engine.

    ``hardware.alternate`` saves them on the card that both share.
    """

    key: str
    value: str
    saves: int


def with_keys(config: C, changes: Changes) -> C:
    # ``rules.changed`` validates, which takes 50 ms; a search plans hundreds of configurations.
    for key, new in changes.items():
        groups, inside = key.split("."), new
        while groups:
            name = groups.pop()
            group = attrgetter(".".join(groups))(config) if groups else config
            inside = dataclasses.replace(group, **{name: inside})
        config = inside
    return config


def can_take_turns(config: PolicyConfig, plan: Plan) -> bool:
    # Engines and learner take turns only on one card of this machine that both share.
    alone = len(plan.cards) == plan.cards[0].count == plan.cards[0].learners == 1
    here = config.hardware.ray_address is None
    return alone and here and not plan.alternate and plan.gained_by_turns > 0


def options(config: PolicyConfig, replan: Replan) -> tuple[Option, ...]:
    now = replan(config)
    found = []
    if can_take_turns(config, now):
        found.append(Option(key="hardware.alternate", value="true", saves=now.gained_by_turns))
    if now.alternate:
        saved = now.learner_idle.total - replan(with_keys(config, TURNS)).learner_idle.total
        found.append(Option(key="hardware.offload_learner", value="true", saves=saved))
    halved = {"learner.max_train_len": train_length(config)}
    for key in SIZES:
        lora, other = key == "model.lora.rank", key.startswith("pool.")
        if not (lora and config.learner.train == "full") and not (other and config.games is None):
            halved[key] = attrgetter(key)(config)
    single: dict[str, Any] = {key: True for key in CHECKPOINTS if not attrgetter(key)(config)}
    single |= {key: size // 2 for key, size in halved.items() if size > 1}
    for key, new in single.items():
        then = replan(with_keys(config, {key: new}))
        saved = now.learner.total - then.learner.total
        if key.startswith(("engine.", "model.", "pool.")):
            saved += now.engine.total - then.engine.total
        found.append(Option(key=key, value=_text(new), saves=saved))
    return tuple(sorted((o for o in found if o.saves > 0), key=lambda option: -option.saves))


def largest_pass(config: PolicyConfig, fits: Callable[[PolicyConfig], bool]) -> int:
    """Most tokens of one pass for which ``fits`` holds, ``engine.max_model_len`` at most; or 0."""
    return bisect.bisect_left(
        range(1, config.engine.max_model_len + 1),
        True,
        key=lambda tokens: not fits(with_keys(config, pass_of(tokens))),
    )


def pass_of(tokens: int) -> Changes:
    return {"learner.max_train_len": tokens, "learner.micro_batch_tokens": tokens}


def mend(config: PolicyConfig, replan: Replan) -> tuple[str, ...]:
    """Overrides (``key=value``) with which the plan fits; () if none do."""
    # First come changes that leave results equal: a card's division, offloading, checkpoints,
    # turns. Shorter steps change what is learned.
    said: Changes = {}
    for said in _same_results(config, replan):
        if (share := _share_that_fits(with_keys(config, said), replan)) is not None:
            return _overrides({**said, **share})
    shorter = _shorter_steps(with_keys(config, said), replan)
    return _overrides({**said, **shorter}) if shorter else ()


def _same_results(config: PolicyConfig, replan: Replan) -> Iterator[Changes]:
    """Yield growing sets of changes that change no result; the first is empty."""
    said: Changes = {}
    yield said
    if config.hardware.alternate and not config.hardware.offload_learner:
        yield (said := {"hardware.offload_learner": True})
    if not config.learner.gradient_checkpointing:
        yield (said := {**said, "learner.gradient_checkpointing": True})
    if can_take_turns(config, replan(with_keys(config, said))):
        offload = {} if config.hardware.offload_learner else {"hardware.offload_learner": True}
        yield {**said, "hardware.alternate": True, **offload}


def _shorter_steps(config: PolicyConfig, replan: Replan) -> Changes:
    """Find the longest steps of at least 512 trained tokens that fit; none if none do."""
    now = config.engine.max_model_len
    for longest in (now, *(length for length in (4096, 2048, 1024) if length <= now)):
        shorter = with_keys(config, {"engine.max_model_len": longest})
        tokens = largest_pass(shorter, lambda c: _share_that_fits(c, replan) is not None) // 64 * 64
        if tokens < 512:
            continue
        sizes = {
            "engine.max_model_len": (longest, now),
            "learner.max_train_len": (tokens, train_length(shorter)),
            "learner.micro_batch_tokens": (tokens, config.learner.micro_batch_tokens),
        }
        cut = {key: new for key, (new, old) in sizes.items() if new < old}
        return {**cut, **(_share_that_fits(with_keys(shorter, pass_of(tokens)), replan) or {})}
    return {}


def _share_that_fits(config: PolicyConfig, replan: Replan) -> Changes | None:
    """Changes that make the plan fit: none, or vLLM's share of the card; None if neither does."""
    plan, engine = replan(config), config.engine
    if not plan.excess:
        return {}
    if engine.name != "vllm" or engine.vllm.kv_cache_gb is not None:
        return None
    share = {"engine.vllm.gpu_memory_utilization": math.floor(plan.left * 100) / 100}
    return None if replan(with_keys(config, share)).excess else share


def _overrides(changes: Changes) -> tuple[str, ...]:
    return tuple(f"{key}={_text(new)}" for key, new in changes.items())


def _text(new: object) -> str:
    return "true" if new is True else f"{new:g}" if isinstance(new, float) else str(new)
