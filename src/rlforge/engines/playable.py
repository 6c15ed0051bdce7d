"""Saved policies that the engine of a configuration can play, known before it starts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rlforge.config.schema import PolicyConfig
from rlforge.engines.vllm_settings import lora_rank
from rlforge.errors import ConfigError
from rlforge.models.fit import (
    check_adapter_fits,
    check_lora,
    check_model_fits,
    kind_of_weights,
)
from rlforge.models.load import resolve_model
from rlforge.types import PolicyRef


def check_playable(policies: Iterable[PolicyRef], config: PolicyConfig) -> None:
    """Raise ConfigError for the first of ``policies`` whose files the engine could not play.

    With ``engine=transformers`` these are adapters of any rank over the configured model, and full
    weights of any model that reads the same tokens; with ``engine=vllm``, adapters of at most the
    rank that it makes room for, which follows from ``model.lora.rank``. Others than saved policies
    are not looked at. The message names the policy, its directory and the mend.
    """
    for policy in policies:
        if policy.kind != "checkpoint" or policy.path_or_name is None:
            continue
        try:
            _check(Path(policy.path_or_name), config)
        except ConfigError as error:
            raise ConfigError(f"{policy.uid!r} cannot be played: {error}") from None


def _check(path: Path, config: PolicyConfig) -> None:
    mend = "name a version saved over this model, such as RUN/checkpoints/step-40"
    try:
        if kind_of_weights(path) == "adapter":
            check_adapter_fits(path, config.model, resolve_model(config.model))
        else:
            check_model_fits(path, config.model)
    except ConfigError as error:
        raise ConfigError(f"{error}; {mend}") from None
    if config.engine.name == "vllm":
        check_lora(path, config.model, lora_rank(config.model.lora.rank), vllm=True)
