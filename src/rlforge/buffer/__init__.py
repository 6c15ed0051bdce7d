"""The sample buffer between collector and learner: eviction, staleness, batches, admission."""

from __future__ import annotations

from rlforge.buffer.base import AddResult, Buffer, BufferSettings
from rlforge.buffer.episodes import EpisodeBuffer
from rlforge.buffer.steps import StepBuffer
from rlforge.config.schema import BufferConfig
from rlforge.errors import ConfigError, nearest

__all__ = [
    "AddResult",
    "Buffer",
    "BufferSettings",
    "EpisodeBuffer",
    "StepBuffer",
    "make_buffer",
]

_BUFFERS: dict[str, type[Buffer]] = {"step": StepBuffer, "episode": EpisodeBuffer}


def make_buffer(
    config: BufferConfig,
    batch_size: int,
    batch_delay: float,
    seed: int,
    samples_per_game: float | None = None,
) -> Buffer:
    """The buffer that ``config`` asks for; ``samples_per_game`` as in ``BufferSettings``.

    Raises ConfigError, naming the key, for an unknown kind or strategy and for limits with which
    no batch could ever be drawn.
    """
    _require(
        config.kind in _BUFFERS,
        f"buffer.kind: {config.kind!r} is neither step nor episode{nearest(config.kind, _BUFFERS)}",
    )
    _require(
        config.strategy == "random",
        f"buffer.strategy: {config.strategy!r} is not known; the only one is random",
    )
    _require(
        config.max_staleness >= 0,
        f"buffer.max_staleness: {config.max_staleness} is negative; 0 is strictly on-policy",
    )
    _require(batch_size >= 1, f"learner.batch_size: {batch_size} is less than 1")
    _require(
        batch_delay >= 1,
        f"learner.batch_delay_buffer: {batch_delay} is less than 1, so a batch would not be there",
    )
    settings = BufferSettings(
        max_size=config.max_size,
        max_staleness=config.max_staleness,
        batch_size=batch_size,
        batch_delay=batch_delay,
        seed=seed,
        samples_per_game=samples_per_game,
    )
    _require(
        config.max_size >= settings.ready_size,
        f"buffer.max_size: {config.max_size} is less than the {settings.ready_size} samples that "
        "learner.batch_size * learner.batch_delay_buffer wait for; raise it",
    )
    return _BUFFERS[config.kind](settings)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
