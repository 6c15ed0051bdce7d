"""The environments and opponents that a configuration names, as the collector takes them."""

from __future__ import annotations

from rlforge.config.schema import EnvEntry, GamesConfig, ModelConfig
from rlforge.league.names import parse_opponent
from rlforge.types import EnvSpec, PolicyRef


def train_envs(config: GamesConfig) -> tuple[EnvSpec, ...]:
    """The training environments."""
    return tuple(env_spec(entry, config.model) for entry in config.env.train)


def eval_envs(config: GamesConfig) -> tuple[EnvSpec, ...]:
    """The evaluation environments; those of training when the configuration names none."""
    return tuple(env_spec(entry, config.model) for entry in config.env.eval or config.env.train)


def fixed_opponents(config: GamesConfig) -> tuple[PolicyRef, ...]:
    """The pool's fixed opponents."""
    return tuple(parse_opponent(name) for name in config.pool.fixed_opponents)


def eval_opponents(config: GamesConfig) -> tuple[PolicyRef, ...]:
    """The evaluation opponents; the untrained model is always the first."""
    names = dict.fromkeys(["base", *config.eval.opponents])
    return tuple(parse_opponent(name) for name in names)


def env_spec(entry: EnvEntry, model: ModelConfig) -> EnvSpec:
    """One environment; what its entry leaves open comes from the model."""
    return EnvSpec(
        id=entry.id,
        source=entry.source,  # checked before the run starts
        num_players=entry.num_players,
        max_turns=entry.max_turns,
        timeout_s=entry.timeout_s,
        error_allowance=entry.error_allowance,
        weight=entry.weight,
        prompt_template=entry.prompt_template or model.prompt_template,
        action_extraction=entry.action_extraction or model.action_extraction,
    )
