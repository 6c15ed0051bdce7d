"""The step buffer: single turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from rlforge.buffer.base import Buffer, BufferSettings, VersionQueue
from rlforge.system.values import Codec
from rlforge.types import Episode, Step

_STEPS = Codec(Step, form="json")


class StepBuffer(Buffer):
    """Stores single turns: batches of any size, mixed from many games.

    Example:
        >>> settings = BufferSettings(
        ...     max_size=64, max_staleness=1, batch_size=1, batch_delay=1.0, seed=0
        ... )
        >>> buffer = StepBuffer(settings)
        >>> step = Step(
        ...     game_id="g", env_id="Nim-v0", player_id=0, group_id=None, turn_index=0,
        ...     last_turn=True, observation="", action="[0 1]", prompt_token_ids=(1,),
        ...     token_ids=(2,), logprobs=(-0.1,), raw_reward=1.0, reward=1.0,
        ...     policy_uid="step-0", policy_version=0,
        ... )
        >>> about = {"game_id": "g", "env_id": "Nim-v0", "player_id": 0, "group_id": None}
        >>> buffer.add([Episode(**about, group_size=1, steps=(step,))]).stored
        1
        >>> buffer.draw(1, version=0).steps[0].action
        '[0 1]'
    """

    kind = "step"
    default_samples_per_game = 8.0

    def __init__(self, settings: BufferSettings) -> None:
        super().__init__(settings)
        self._steps: VersionQueue[Step] = VersionQueue(attrgetter("policy_version"), self._random)

    def size(self) -> int:
        return len(self._steps)

    def drawable(self) -> int:
        return len(self._steps)

    def clear(self) -> None:
        self._steps.clear()

    def _samples_in(self, episode: Episode) -> int:
        return len(episode.steps)

    def _store(self, episodes: Sequence[Episode]) -> int:
        steps = [step for episode in episodes for step in episode.steps]
        oldest = self._oldest_allowed()
        fresh = [step for step in steps if step.policy_version >= oldest]
        self._dropped_stale_steps += len(steps) - len(fresh)
        self._steps.add(fresh)
        return len(fresh)

    def _evict_one(self) -> int:
        self._steps.evict()
        return 1

    def _take(self, n: int) -> tuple[list[Step], int]:
        return [self._steps.take() for _ in range(n)], n

    def _drop_stale(self, oldest: int) -> int:
        return len(self._steps.drop_older(oldest))

    def _contents(self) -> dict[str, Any]:
        return {"steps": [_STEPS.encode(step) for step in self._steps]}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._steps.clear()
        self._steps.add(map(_STEPS.decode, state["steps"]))
