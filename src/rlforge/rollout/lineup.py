"""The environments and opponents that a configuration names, as the collector takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import TypeVar

from rlforge.config.compose import compose
from rlforge.config.games import EnvEntry
from rlforge.config.model import ModelConfig
from rlforge.config.per_policy import asked_by_model, entries
from rlforge.config.policies import PolicyEntry
from rlforge.config.pool import ApiConfig, HfConfig
from rlforge.config.schema import GamesConfig, PolicyConfig
from rlforge.errors import ConfigError
from rlforge.games.players import check_player
from rlforge.kinds import kind_of
from rlforge.league.names import parse_opponent
from rlforge.rollout.evaluation import Pairing
from rlforge.types import EnvSpec, Form, PolicyForm, PolicyRef

P = TypeVar("P", bound=PolicyConfig)


def train_envs(config: GamesConfig) -> tuple[EnvSpec, ...]:
    return tuple(env_spec(entry, config) for entry in config.env.train)


def eval_envs(config: GamesConfig) -> tuple[EnvSpec, ...]:
    """The evaluation environments; those of training when none are named."""
    return tuple(env_spec(entry, config) for entry, _, _ in eval_opponents(config))


def eval_opponents(config: GamesConfig) -> list[tuple[EnvEntry, str, list[str]]]:
    """The evaluation environments, each with the key and names of its opponents."""
    if not config.env.eval:
        return [(entry, *_shared(entry, config)) for entry in config.env.train]
    return [
        (entry, f"env.eval.{index}.opponents", entry.opponents)
        if entry.opponents
        else (entry, *_shared(entry, config))
        for index, entry in enumerate(config.env.eval)
    ]


def _shared(entry: EnvEntry, config: GamesConfig) -> tuple[str, list[str]]:
    """Key and names of the opponents of an environment that names none itself."""
    if config.eval.opponents is not None:
        return "eval.opponents", config.eval.opponents
    env = env_spec(entry, config)
    # Presets name opponents for many games, so some may not know this one.
    names = config.env.opponents
    return "env.opponents", [name for name in names if can_play(parse_opponent(name), env)]


def check_plays(policy: PolicyRef, env: EnvSpec) -> None:
    """Raise ConfigError where ``policy`` does not know the game."""
    # Models are asked about any game; only a scripted player may not know it.
    if policy.kind == "scripted":
        check_player(policy.path_or_name or policy.uid, env)


def can_play(policy: PolicyRef, env: EnvSpec) -> bool:
    try:
        check_plays(policy, env)
    except ConfigError:
        return False
    return True


def eval_pairings(config: GamesConfig) -> tuple[Pairing, ...]:
    """The evaluation environments with their opponents, ``base`` first."""
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
    return tuple(parse_opponent(name) for name in config.pool.fixed_opponents)


def other_models(config: PolicyConfig) -> dict[PolicyRef, str]:
    """The other models (``hf:``) of a run or service, each with the key that names it."""
    met = kind_of(config).opponents(config)
    return {one: key for key, opponents in met.items() for one in opponents if one.kind == "hf"}


def as_played_by(config: P, policies: Iterable[PolicyRef]) -> dict[str, P]:
    """``config`` as if each other model of ``policies`` were the run's, by uid."""
    named = {one.uid: one.path_or_name for one in policies if one.kind == "hf"}
    if not named:
        return {}
    own = config.other_hf
    changed = dataclasses.replace(
        config,
        # No prompt of theirs is shortened, because none is learned from.
        learner=dataclasses.replace(
            config.learner, train="full", initial_adapter=None, max_train_len=None
        ),
        engine=dataclasses.replace(
            config.engine,
            name="transformers",
            # Not the trained model's sampling: other models are the same yardstick in every run.
            max_tokens=own.max_tokens,
            max_model_len=own.max_model_len,
            max_parallel_seq=own.max_parallel_seq,
            max_loras=1,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
        ),
    )
    # Traders have no action extraction: the market reads their answers.
    shared = {each.name for each in fields(own)} & {each.name for each in fields(ModelConfig)}
    model = ModelConfig(**{name: getattr(own, name) for name in shared})
    changed = asked_by_model(changed)
    return {
        uid: dataclasses.replace(changed, model=dataclasses.replace(model, name=name))
        for uid, name in named.items()
    }


@cache
def env_named(name: str) -> EnvSpec:
    """The environment of an option of the group ``env``; ConfigError where there is none."""
    config = compose([f"env={name}"]).config
    return env_spec(config.env.train[0], config)


def env_spec(entry: EnvEntry, config: GamesConfig) -> EnvSpec:
    given = {**vars(config.env), **vars(entry)}
    return EnvSpec(
        **{each.name: given[each.name] for each in fields(EnvSpec) if each.name in given},
        form=form_of(entry, config.model),
        api_form=form_of(config.pool.api),
        hf_form=form_of(config.pool.hf),
        forms=tuple(
            PolicyForm(name=name, form=form_of(own, entry, config.model))
            for name, own in entries(config).items()
            if own.prompt_template or own.action_extraction
        ),
    )


def form_of(*groups: ModelConfig | EnvEntry | PolicyEntry | ApiConfig | HfConfig) -> Form:
    """How seats are asked: by the first group that has a template, or an extraction."""
    return Form(
        template=next(filter(None, (each.prompt_template for each in groups)), ""),
        extraction=next(filter(None, (each.action_extraction for each in groups)), ""),
    )


def asked_as(config: PolicyConfig, env_id: str | None = None, policy: str = "") -> Form:
    """How a run asks its ``policy`` in a game; any other game as its first training game."""
    env = env_of(config, env_id)
    if env is None:
        return form_of(config.model)
    return env.asked(PolicyRef(uid=policy, kind="checkpoint", name=policy))


def env_of(config: PolicyConfig, env_id: str | None = None) -> EnvSpec | None:
    """The run's environment of this id, or its first one; None where it has no games."""
    if (games := config.games) is None:
        return None
    envs = (*train_envs(games), *eval_envs(games))
    return next((env for env in envs if env.id == env_id), envs[0])
