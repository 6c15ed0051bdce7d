"""The engine that a configuration names, and the saved policies that it can play."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from rlforge.config.plugins import ENGINES
from rlforge.config.schema import PolicyConfig
from rlforge.engines.base import LocalEngine
from rlforge.engines.models import ModelsEngine
from rlforge.engines.vllm_settings import lora_rank
from rlforge.errors import ConfigError
from rlforge.models.fit import check_adapter_fits, check_lora, check_model_fits, kind_of_weights
from rlforge.models.load import resolve_model
from rlforge.system.loops import in_thread
from rlforge.types import PolicyRef


def check_playable(policies: Iterable[PolicyRef], config: PolicyConfig) -> None:
    """Raise ConfigError for the first of ``policies`` whose files the engine cannot play.

    ``engine=transformers`` plays adapters of any rank over the configured model, and full weights
    of any model with the same vocabulary; ``engine=vllm`` plays adapters up to the rank that
    follows from ``model.lora.rank``. Only saved policies are checked.

    Example:
        >>> check_playable([PolicyRef(uid="random_legal", kind="scripted")], PolicyConfig())
    """
    for policy in policies:
        if policy.kind != "checkpoint" or policy.path_or_name is None:
            continue
        path = Path(policy.path_or_name)
        mend = "; name a version saved over this model, such as RUN/checkpoints/step-40"
        try:
            if kind_of_weights(path) == "adapter":
                check_adapter_fits(path, config.model, resolve_model(config.model))
            else:
                check_model_fits(path, config.model)
            mend = ""
            if config.engine.name == "vllm":
                check_lora(path, config.model, lora_rank(config.model.lora.rank), vllm=True)
        except ConfigError as error:
            raise ConfigError(f"{policy.uid!r} cannot be played: {error}{mend}") from None


def make_engine(
    config: PolicyConfig,
    *,
    device: str = "auto",
    threads: int | None = None,
    gpus: float = 1.0,
    others: Mapping[str, PolicyConfig] = MappingProxyType({}),
    own: bool = True,
) -> LocalEngine:
    """The engine ``engine.name`` on ``device`` (auto, cpu or cuda), with its model loaded.

    Args:
        threads: OpenMP threads of this process; None leaves them.
        gpus: Share of a GPU, for an engine that reserves memory when it starts.
        others: Further models that it answers for, by uid of their policies.
        own: False leaves the model of ``config`` out.

    Raises ConfigError for a model that does not load and a device that is not there.
    """

    def made(one: PolicyConfig) -> LocalEngine:
        engine: LocalEngine = ENGINES.find(one.engine.name)(one, device, threads, gpus)
        return engine

    engine = made(config) if own else None
    if engine is not None and not others:
        return engine
    return ModelsEngine(engine, {uid: made(other) for uid, other in others.items()})


def transformers(
    config: PolicyConfig, device: str, threads: int | None, gpus: float
) -> LocalEngine:
    """The engine ``transformers``."""
    import torch

    from rlforge.engines.transformers import TransformersEngine
    from rlforge.models.devices import resolve_device, resolve_dtype
    from rlforge.models.load import load_base_model, load_tokenizer

    if threads is not None:
        torch.set_num_threads(threads)
    place = resolve_device(device)

    def load() -> TransformersEngine:
        return TransformersEngine(
            config.engine,
            load_base_model(config.model, place, resolve_dtype(config.model.dtype, place)),
            load_tokenizer(config.model),
            seed=config.seed,
            invariant=config.batch_invariant,
        )

    return in_thread(load)


def vllm(config: PolicyConfig, device: str, threads: int | None, gpus: float) -> LocalEngine:
    """The engine ``vllm``."""
    from rlforge.engines.vllm import VllmEngine
    from rlforge.models.devices import named_device

    # vLLM cannot sleep with the allocator settings of ``resolve_device``.
    place = named_device(device).type
    return VllmEngine(config, device=place, threads=threads, gpus=gpus)
