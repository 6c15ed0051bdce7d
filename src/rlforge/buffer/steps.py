"""Buffer of single turns."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from rlforge.buffer.admission import BufferSettings
from rlforge.buffer.base import Buffer, Shaped, Stamp, VersionQueue
from rlforge.samples import Sample
from rlforge.system.values import from_json, to_json


class StepBuffer(Buffer):
    """Stores single turns: batches of any size, mixed from many games.

    All turns of a game share its stamp, so they are dropped together.

    Example:
        >>> settings = BufferSettings(
        ...     max_size=64, max_staleness=1, batch_size=1, batch_delay=1.0, seed=0
        ... )
        >>> buffer = StepBuffer(settings)
        >>> turn = Sample(
        ...     origin="g", turn_index=0, last_turn=True, action="[0 1]", prompt_token_ids=(1,),
        ...     token_ids=(2,), logprobs=(-0.1,), raw_reward=1.0, reward=1.0,
        ...     policy_uid="step-0", policy_version=0,
        ... )
        >>> buffer.add([Shaped([(turn,)])])
        >>> buffer.draw(1, version=0).samples[0].action
        '[0 1]'
    """

    kind = "step"
    default_samples_per_game = 8.0

    def __init__(self, settings: BufferSettings) -> None:
        super().__init__(settings)
        #: Turns with the stamps of their games.
        self._turns: VersionQueue[tuple[Stamp, Sample]] = VersionQueue(
            lambda item: item[0].last, self._random
        )

    def size(self) -> int:
        return len(self._turns)

    def drawable(self) -> int:
        return len(self._turns)

    def clear(self) -> None:
        self._turns.clear()

    def _store(self, game: Shaped) -> None:
        # Stale games are observed, too: their yield is the estimate for others.
        self._observe(game)
        turns = [*chain(*game.episodes)]
        if not turns:
            return
        stamp = self._stamp(turns)
        if self._too_old(stamp):
            self._losses.add(stamp, len(turns))
        else:
            self._turns.add((stamp, turn) for turn in turns)

    def _evict_one(self) -> int:
        self._turns.evict()
        return 1

    def _take(self, n: int) -> tuple[list[Sample], int]:
        return [self._turns.take()[1] for _ in range(n)], n

    def _drop_before(self, version: int) -> None:
        for stamp, _ in self._turns.drop_older(version):
            self._losses.add(stamp, 1)

    def _contents(self) -> dict[str, Any]:
        return {
            "turns": [to_json(turn) for _, turn in self._turns],
            "stamps": [list(stamp) for stamp, _ in self._turns],
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        turns = from_json(list[Sample], state["turns"])
        self._turns.clear()
        self._turns.add(zip((Stamp(*stamp) for stamp in state["stamps"]), turns, strict=True))
