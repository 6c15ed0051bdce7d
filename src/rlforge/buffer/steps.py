"""The step buffer: single turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlforge.buffer.base import Buffer, BufferSettings, Stamp, VersionQueue
from rlforge.system.values import Codec
from rlforge.types import Episode, Step

_STEPS = Codec(Step, form="json")


class StepBuffer(Buffer):
    """Stores single turns: batches of any size, mixed from many games.

    All turns of a game have its stamp, so that they are dropped together.

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
        >>> buffer.add([Episode(**about, group_size=1, steps=(step,))])
        >>> buffer.draw(1, version=0).steps[0].action
        '[0 1]'
    """

    kind = "step"
    default_samples_per_game = 8.0

    def __init__(self, settings: BufferSettings) -> None:
        super().__init__(settings)
        #: Steps with the stamps of their games.
        self._steps: VersionQueue[tuple[Stamp, Step]] = VersionQueue(
            lambda item: item[0].last, self._random
        )

    def size(self) -> int:
        return len(self._steps)

    def drawable(self) -> int:
        return len(self._steps)

    def clear(self) -> None:
        self._steps.clear()

    def _samples_in(self, episode: Episode) -> int:
        return len(episode.steps)

    def _store(self, game: Sequence[Episode], begun: float | None) -> None:
        self._observe(game, begun)
        steps = [step for episode in game for step in episode.steps]
        if not steps:
            return
        stamp = self._stamp(game)
        if self._too_old(stamp):
            self._losses.add(stamp, len(steps))
        else:
            self._steps.add((stamp, step) for step in steps)

    def _evict_one(self) -> int:
        self._steps.evict()
        return 1

    def _take(self, n: int) -> tuple[list[Step], int]:
        return [self._steps.take()[1] for _ in range(n)], n

    def _drop_before(self, version: int) -> None:
        for stamp, _ in self._steps.drop_older(version):
            self._losses.add(stamp, 1)

    def _contents(self) -> dict[str, Any]:
        return {
            "steps": [_STEPS.encode(step) for _, step in self._steps],
            "stamps": [list(stamp) for stamp, _ in self._steps],
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        steps = list(map(_STEPS.decode, state["steps"]))
        self._steps.clear()
        self._steps.add(zip((Stamp(*stamp) for stamp in state["stamps"]), steps, strict=True))
