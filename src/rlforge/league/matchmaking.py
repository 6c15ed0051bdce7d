"""A policy's versions, and how its opponents are drawn: one of a run, or each of several."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from rlforge.config.plugins import MODES
from rlforge.config.pool import PoolConfig
from rlforge.league.history import History
from rlforge.league.modes import Mode, default_temperature
from rlforge.types import Checkpoint, PolicyRef, value


@value
class Matchmaking:
    """How opponents are drawn for a policy, one of several of a run."""

    config: PoolConfig  #: of the pool, with the policy's own settings
    fixed: tuple[PolicyRef, ...]
    meets: tuple[str, ...]  #: names of the policies whose versions it meets
    seats: tuple[int, ...] | None = None  #: that it can take; None: each

    def takes(self, seat: int | None) -> bool:
        return self.seats is None or seat is None or seat in self.seats


class Line:
    """A policy's versions from its start, and how its opponents are drawn."""

    def __init__(self, matchmaking: Matchmaking, history: History, seed: str) -> None:
        self.matchmaking, self.history = matchmaking, history
        self.random = random.Random(seed)
        #: All versions by uid, in order.
        self.checkpoints: dict[str, Checkpoint] = {}
        self.use_mode(None)

    @property
    def config(self) -> PoolConfig:
        return self.matchmaking.config

    @property
    def current(self) -> Checkpoint:
        return next(reversed(self.checkpoints.values()))

    @property
    def mode_name(self) -> str:
        return self._changed_mode or self.config.mode

    def use_mode(self, name: str | None) -> None:
        """Draw opponents by another mode from here on; None: by ``pool.mode``."""
        self._changed_mode = name
        self.mode: Mode = MODES.find(self.mode_name)
        self.temperature = self.config.temperature or default_temperature(self.mode_name)

    def state_dict(self) -> dict[str, Any]:
        version, internal, gauss_next = self.random.getstate()
        return {
            "random": [version, list(internal), gauss_next],
            "changed_mode": self._changed_mode,
            "history": self.history.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        version, internal, gauss_next = state["random"]
        self.random.setstate((version, tuple(internal), gauss_next))
        self.use_mode(state["changed_mode"])
        self.history.load_state_dict(state["history"])
