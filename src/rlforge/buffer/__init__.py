"""Sample buffer between collector and learner: eviction, staleness, batches, admission."""

from rlforge.buffer.admission import BufferSettings
from rlforge.buffer.base import Buffer, Shaped
from rlforge.buffer.episodes import EpisodeBuffer
from rlforge.buffer.steps import StepBuffer

__all__ = ["BUFFERS", "Buffer", "BufferSettings", "EpisodeBuffer", "Shaped", "StepBuffer"]

BUFFERS: dict[str, type[Buffer]] = {"step": StepBuffer, "episode": EpisodeBuffer}
"""Buffer classes by ``buffer.kind``."""
