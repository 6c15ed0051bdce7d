"""Values of the configuration to try where a condition holds, by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlforge.config.engine import EngineConfig
from rlforge.config.plugins import FINAL_REWARDS, SAMPLING_REWARDS, STEP_REWARDS
from rlforge.config.schema import GamesConfig
from rlforge.config.training import LearnerConfig

Change = Mapping[str, Any]

#: Turns that nearly all games end within, and seconds.
_TURNS, _SECONDS = 200, 600.0


def rate(config: GamesConfig, factor: float) -> Change:
    return {"learner.learning_rate": float(f"{factor * config.learner.learning_rate:.1g}")}


def rewards(config: GamesConfig) -> Change:
    """The transforms that rlforge has, where there are others."""
    found: Change = {}
    stacks = getattr(config, "rewards", None)
    for kind in (FINAL_REWARDS, STEP_REWARDS, SAMPLING_REWARDS) if stacks is not None else ():
        stack = getattr(stacks, kind.key.partition(".")[2])
        kept = [dict(entry) for entry in stack if kind.has_own(str(entry["name"]))]
        if len(kept) < len(stack):
            found = {**found, kind.key: kept}
    return found


def opponents(config: GamesConfig) -> Change:
    """Games against itself, of which a policy wins some and loses some."""
    return {"pool.mode": "mirror"} if config.pool.mode == "fixed" else {}


def seats(config: GamesConfig) -> Change:
    """All seats, for policies that have some."""
    policies: Mapping[str, Any] = getattr(config, "policies", {})
    named = (name for name, policy in policies.items() if policy.seats is not None)
    return {f"policies.{name}.seats": None for name in named}


def agreeing(config: GamesConfig) -> Change:
    """An engine that computes as the learner does."""
    if config.engine.name != "transformers":
        return {"engine.name": "transformers"}
    return {"model.dtype": "float32"} if config.model.dtype == "bfloat16" else {}


def turns(config: GamesConfig, env: str) -> Change:
    """More turns for the games of ``env``."""
    return {
        f"env.train.{place}.max_turns": max(_TURNS, 2 * entry.max_turns)
        for place, entry in enumerate(config.env.train)
        if entry.id == env and entry.max_turns is not None
    }


def seconds(config: GamesConfig, env: str) -> Change:
    """More time for the games of ``env``."""
    return {
        f"env.train.{place}.timeout_s": max(_SECONDS, 4 * entry.timeout_s)
        for place, entry in enumerate(config.env.train)
        if entry.id == env and entry.timeout_s is not None
    }


def conversations(config: GamesConfig) -> Change:
    """More room for what a player has seen and said."""
    if config.env.context == "conversation" and config.env.overflow == "end":
        return {"env.overflow": "drop_oldest"}
    return {"engine.max_model_len": 2 * config.engine.max_model_len}


def answers(config: GamesConfig) -> Change:
    """Longer answers; prompts keep their room."""
    tokens, room = config.engine.max_tokens, config.engine.max_model_len
    return {"engine.max_tokens": 4 * tokens, "engine.max_model_len": room + 3 * tokens}


def whole(config: GamesConfig) -> Change:
    """All tokens, where an engine draws from the likeliest ones only."""
    full = EngineConfig()
    return {
        f"engine.{name}": getattr(full, name)
        for name in ("top_p", "top_k", "min_p")
        if getattr(config.engine, name) != getattr(full, name)
    }


def wider(config: GamesConfig) -> Change:
    """The model's own distribution, where the engines draw from a narrower one."""
    cold = config.engine.temperature < 1
    return {**({"engine.temperature": 1.0} if cold else {}), **whole(config)}


def colder(config: GamesConfig) -> Change:
    """The model's own distribution, where the engines draw from one nearer to random tokens."""
    return {"engine.temperature": 1.0} if config.engine.temperature > 1 else {}


def variety(config: GamesConfig) -> Change:
    """Games of a group that end differently."""
    size = getattr(config.algorithm, "group_size", None)
    return wider(config) or ({"algorithm.group_size": 2 * size} if size else {})


def samples(config: GamesConfig) -> Change:
    """Samples of any length that the engine gives."""
    return {"learner.max_train_len": config.engine.max_model_len}


def batches(config: GamesConfig) -> Change:
    size = getattr(config.learner, "batch_size", None)
    return {"learner.batch_size": 2 * size} if size else {}


def warmup(config: GamesConfig) -> Change:
    return {"learner.warmup_updates": (config.total_updates or 0) // 10}


def clip(config: GamesConfig) -> Change:
    return {"learner.grad_clip": LearnerConfig().grad_clip}
