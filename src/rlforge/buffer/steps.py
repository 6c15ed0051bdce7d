"""The step buffer: every turn for itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rlforge.buffer.base import Buffer, BufferSettings, pop_random
from rlforge.types import Episode, Step


class StepBuffer(Buffer):
    """Single turns: batches of any size, mixed from many games."""

    kind = "step"
    default_samples_per_game = 8.0

    def __init__(self, settings: BufferSettings) -> None:
        super().__init__(settings)
        self._steps: list[Step] = []

    def size(self) -> int:
        return len(self._steps)

    def drawable(self) -> int:
        return len(self._steps)

    def clear(self) -> None:
        self._steps.clear()

    def _samples_in(self, episode: Episode) -> int:
        return len(episode.steps)

    def _store(self, episodes: Sequence[Episode]) -> int:
        oldest = self._oldest_allowed()
        steps = [step for episode in episodes for step in episode.steps]
        fresh = [step for step in steps if step.policy_version >= oldest]
        self._dropped_stale_steps += len(steps) - len(fresh)
        self._steps.extend(fresh)
        return len(fresh)

    def _evict_one(self) -> int:
        pop_random(self._steps, self._random)
        return 1

    def _take(self, n: int) -> tuple[list[Step], int]:
        return [pop_random(self._steps, self._random) for _ in range(n)], n

    def _drop_stale(self, oldest: int) -> int:
        fresh = [step for step in self._steps if step.policy_version >= oldest]
        dropped = len(self._steps) - len(fresh)
        self._steps = fresh
        return dropped

    def _contents(self) -> dict[str, Any]:
        return {"steps": [step_to_json(step) for step in self._steps]}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._steps = [step_from_json(step) for step in state["steps"]]


def step_to_json(step: Step) -> dict[str, Any]:
    fields = {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}
    return {**fields, "info": dict(step.info)}


def step_from_json(fields: Mapping[str, Any]) -> Step:
    sequences = ("prompt_token_ids", "token_ids", "logprobs")
    return Step(**{**fields, **{name: tuple(fields[name]) for name in sequences}})
