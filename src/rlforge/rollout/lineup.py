"""The environments and opponents that a configuration names, as the collector takes them."""

from __future__ import annotations

from functools import cache

from rlforge.config.compose import compose
from rlforge.config.schema import EnvEntry, GamesConfig, PolicyConfig, RunConfig
from rlforge.errors import ConfigError
from rlforge.games.players import check_player
from rlforge.league.names import parse_opponent
from rlforge.rollout.evaluation import Pairing
from rlforge.types import EnvSpec, Form, PolicyRef


def train_envs(config: GamesConfig) -> tuple[EnvSpec, ...]:
    """The training environments."""
    return tuple(env_spec(entry, config) for entry in config.env.train)


def eval_envs(config: GamesConfig) -> tuple[EnvSpec, ...]:
    """The evaluation environments; those of training when the configuration names none."""
    return tuple(env_spec(entry, config) for entry, _, _ in eval_opponents(config))


def eval_opponents(config: GamesConfig) -> list[tuple[EnvEntry, str, list[str]]]:
    """The evaluation environments, each with the key and names of the opponents met in it."""
    if not config.env.eval:
        return [(entry, *_shared(entry, config)) for entry in config.env.train]
    return [
        (entry, f"env.eval.{index}.opponents", entry.opponents)
        if entry.opponents
        else (entry, *_shared(entry, config))
        for index, entry in enumerate(config.env.eval)
    ]


def _shared(entry: EnvEntry, config: GamesConfig) -> tuple[str, list[str]]:
    """The key and names of the opponents that are met in an environment without its own."""
    if config.eval.opponents is not None:
        return "eval.opponents", config.eval.opponents
    env = env_spec(entry, config)
    names = config.env.opponents
    return "env.opponents", [name for name in names if can_play(parse_opponent(name), env)]


def can_play(policy: PolicyRef, env: EnvSpec) -> bool:
    """Whether ``policy`` knows the game; only scripted players may not."""
    try:
        if policy.kind == "scripted":
            check_player(policy.path_or_name or policy.uid, env)
    except ConfigError:
        return False
    return True


def eval_pairings(config: GamesConfig) -> tuple[Pairing, ...]:
    """The evaluation environments with their opponents: first ``base``, unless it is left out."""
    base = ["base"] if config.eval.base else []
    return tuple(
        Pairing(
            env=env_spec(entry, config),
            opponents=tuple(parse_opponent(name) for name in dict.fromkeys([*base, *names])),
            key=key,
        )
        for entry, key, names in eval_opponents(config)
    )


def fixed_opponents(config: GamesConfig) -> tuple[PolicyRef, ...]:
    """The pool's fixed opponents."""
    return tuple(parse_opponent(name) for name in config.pool.fixed_opponents)


@cache
def env_named(name: str) -> EnvSpec:
    """The environment of an option of the group ``env``; ConfigError where there is none."""
    config = compose([f"env={name}"]).config
    return env_spec(config.env.train[0], config)


def env_spec(entry: EnvEntry, config: GamesConfig) -> EnvSpec:
    """One environment; what its entry leaves open comes from the model."""
    model, api = config.model, config.pool.api
    template = entry.prompt_template or model.prompt_template
    extraction = entry.action_extraction or model.action_extraction
    policies = config.policies if isinstance(config, RunConfig) else {}
    return EnvSpec(
        id=entry.id,
        source=entry.source,  # checked before the run starts
        num_players=entry.num_players,
        max_turns=entry.max_turns,
        timeout_s=entry.timeout_s,
        error_allowance=entry.error_allowance,
        weight=entry.weight,
        win_score=entry.win_score,
        winners=entry.winners,
        actions=entry.actions,
        prompt_template=template,
        action_extraction=extraction,
        api_prompt_template=api.prompt_template,
        api_action_extraction=api.action_extraction,
        context=config.env.context,
        overflow=config.env.overflow,
        forms=tuple(
            Form(
                name=name,
                prompt_template=own.prompt_template or template,
                action_extraction=own.action_extraction or extraction,
            )
            for name, own in policies.items()
            if own.prompt_template or own.action_extraction
        ),
    )


def asked_as(config: PolicyConfig, env_id: str | None = None, policy: str = "") -> tuple[str, str]:
    """The template and the extraction with which a run asks its policy in a game.

    env_id: None, or a game that is not one of the run, is asked as its first training game.
    policy: of several policies the one that is asked, by name.
    """
    if not isinstance(config, GamesConfig):
        return config.model.prompt_template, config.model.action_extraction
    envs = (*train_envs(config), *eval_envs(config))
    env = next((env for env in envs if env.id == env_id), envs[0])
    return env.asked(PolicyRef(uid=policy, kind="checkpoint", name=policy))
