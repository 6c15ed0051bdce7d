"""Which engine a configuration asks for. A new engine is a class and one line here."""

from __future__ import annotations

from collections.abc import Callable

from rlforge.config.schema import PolicyConfig
from rlforge.engines.base import LocalEngine
from rlforge.errors import ConfigError, nearest


def make_engine(
    config: PolicyConfig, *, device: str = "auto", threads: int | None = None, gpus: float = 1.0
) -> LocalEngine:
    """The engine ``engine.name`` on ``device`` (auto, cpu or cuda), with its model loaded.

    threads: OpenMP threads of this process; None leaves them. gpus: its share of a GPU, where
    the engine takes memory ahead of its need. Raises ConfigError for an unknown engine, a model
    that does not load and a device that is not there.
    """
    name = config.engine.name
    if name not in _ENGINES:
        raise ConfigError(
            f"engine.name {name!r} is unknown{nearest(name, _ENGINES)}; there are "
            f"{', '.join(sorted(_ENGINES))}"
        )
    return _ENGINES[name](config, device, threads, gpus)


def _transformers(
    config: PolicyConfig, device: str, threads: int | None, gpus: float
) -> LocalEngine:
    import torch

    from rlforge.engines.transformers import TransformersEngine
    from rlforge.models.devices import resolve_device, resolve_dtype
    from rlforge.models.load import load_base_model, load_tokenizer

    if threads is not None:
        torch.set_num_threads(threads)
    place = resolve_device(device)
    model = load_base_model(config.model, place, resolve_dtype(config.model.dtype, place))
    return TransformersEngine(config.engine, model, load_tokenizer(config.model), seed=config.seed)


def _vllm(config: PolicyConfig, device: str, threads: int | None, gpus: float) -> LocalEngine:
    from rlforge.engines.vllm import VllmEngine
    from rlforge.models.devices import named_device

    # vLLM's sleep cannot be had with the allocator of ``resolve_device``.
    place = named_device(device).type
    return VllmEngine(config, device=place, threads=threads, gpus=gpus)


_ENGINES: dict[str, Callable[[PolicyConfig, str, int | None, float], LocalEngine]] = {
    "transformers": _transformers,
    "vllm": _vllm,
}
