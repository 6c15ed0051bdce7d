"""The sample buffer between collector and learner: eviction, staleness, batches, admission."""

from __future__ import annotations

from rlforge.buffer.base import Buffer, BufferSettings
from rlforge.buffer.episodes import EpisodeBuffer
from rlforge.buffer.steps import StepBuffer
from rlforge.config.schema import BufferConfig

__all__ = ["Buffer", "BufferSettings", "EpisodeBuffer", "StepBuffer", "make_buffer"]

_BUFFERS: dict[str, type[Buffer]] = {"step": StepBuffer, "episode": EpisodeBuffer}


def make_buffer(
    config: BufferConfig,
    batch_size: int,
    batch_delay: float,
    seed: int,
    samples_per_game: float | None = None,
    max_replaced: int = 0,
    save_every: int = 1,
    wait: int = 1,
) -> Buffer:
    """The buffer that ``config`` asks for; the last four as in ``BufferSettings``."""
    settings = BufferSettings(
        max_size=config.max_size,
        max_staleness=config.max_staleness,
        batch_size=batch_size,
        batch_delay=batch_delay,
        seed=seed,
        samples_per_game=samples_per_game,
        max_replaced=max_replaced,
        save_every=save_every,
        wait=wait,
    )
    return _BUFFERS[config.kind](settings)
