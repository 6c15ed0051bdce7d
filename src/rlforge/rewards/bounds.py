"""The interval that the ``clamp`` transforms share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Bounds:
    """The interval of the ``clamp`` transforms. Raises ValueError when it is empty."""

    min_r: float = -1.0
    max_r: float = 1.0

    def __post_init__(self) -> None:
        if self.min_r > self.max_r:
            raise ValueError(f"min_r: {self.min_r} is above max_r {self.max_r}")

    def clip(self, reward: float) -> float:
        """The nearest number in the interval."""
        return max(self.min_r, min(self.max_r, reward))
