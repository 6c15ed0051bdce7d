"""Saved policies that the engine of a configuration can play, known before it starts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rlforge.config.schema import RunConfig
from rlforge.engines.vllm_settings import lora_rank
from rlforge.errors import ConfigError
from rlforge.models.files import ADAPTER_CONFIG, MODEL_CONFIG
from rlforge.models.fit import check_adapter_fits, check_model_fits, largest_rank, read_adapter
from rlforge.models.load import resolve_model
from rlforge.types import PolicyRef

#: Settings of PEFT that make an adapter more than A and B, which is what vLLM plays.
_BEYOND_VLLM = ("use_dora", "lora_bias", "modules_to_save", "layer_replication")


def check_playable(policies: Iterable[PolicyRef], config: RunConfig) -> None:
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


def _check(path: Path, config: RunConfig) -> None:
    mend = "name a version saved over this model, such as RUN/checkpoints/step-40"
    try:
        if (path / ADAPTER_CONFIG).is_file():
            check_adapter_fits(path, config.model, resolve_model(config.model))
        elif not (path / MODEL_CONFIG).is_file():
            raise ConfigError(f"{path} has neither {ADAPTER_CONFIG} nor {MODEL_CONFIG}")
        else:
            check_model_fits(path, config.model)
    except ConfigError as error:
        raise ConfigError(f"{error}; {mend}") from None
    if config.engine.name == "vllm":
        _check_vllm(path, config)


def _check_vllm(path: Path, config: RunConfig) -> None:
    if not (path / ADAPTER_CONFIG).is_file():
        raise ConfigError(
            f"{path} holds full weights; vLLM plays adapters only: use engine=transformers"
        )
    described = read_adapter(path)
    beyond = [name for name in _BEYOND_VLLM if described.get(name)]
    if described["peft_type"] != "LORA" or beyond:
        raise ConfigError(
            f"the adapter in {path} is of kind {described['peft_type']}"
            f"{''.join(f', with {name}' for name in beyond)}; vLLM plays plain LORA only: use "
            "engine=transformers"
        )
    rank, most = largest_rank(described), lora_rank(config.model.lora.rank)
    if rank > most:
        raise ConfigError(
            f"the adapter in {path} has rank {rank}, and vLLM makes room for {most} with "
            f"model.lora.rank={config.model.lora.rank}; raise that, or use engine=transformers"
        )
