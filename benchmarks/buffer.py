"""Add and draw at 100,000 stored steps: the step buffer against random.sample + list.remove.

    python benchmarks/buffer.py

Both hold the same steps and take turns in one process. An ``add`` brings one game of 8 steps to a
full buffer, so 8 steps are evicted; a ``draw`` takes a batch of 384. The naive buffer finds what it
removes by comparing steps. Its steps compare by identity here, the cheapest way there is, which
flatters it; ``draw_new_version`` also looks for stale steps, which the naive one never does.
"""

from __future__ import annotations

import gc
import random
import statistics
from collections.abc import Sequence
from typing import Any

from common import record, seconds, shown, spread

from rlforge.buffer import BufferSettings, StepBuffer
from rlforge.types import Episode, Step

STORED, BATCH, GAME = 100_000, 384, 8
ADDS, DRAWS = 100, 15
FLOOR = 100.0


class NaiveBuffer:
    """What a list offers at first sight."""

    def __init__(self, max_size: int, seed: int) -> None:
        self.steps: list[object] = []
        self._max_size = max_size
        self._random = random.Random(seed)

    def add(self, steps: Sequence[object]) -> None:
        self.steps.extend(steps)
        for step in self._random.sample(self.steps, max(0, len(self.steps) - self._max_size)):
            self.steps.remove(step)

    def draw(self, n: int) -> list[object]:
        batch = self._random.sample(self.steps, n)
        for step in batch:
            self.steps.remove(step)
        return batch


def make_game(number: int, version: int, steps: int = GAME) -> Episode:
    """One seat's episode with as many steps as asked for."""
    return Episode(
        game_id=f"game-{number}",
        env_id="SimpleTak-v0-train",
        player_id=0,
        group_id=None,
        group_size=1,
        steps=tuple(
            Step(
                game_id=f"game-{number}",
                env_id="SimpleTak-v0-train",
                player_id=0,
                group_id=None,
                turn_index=index,
                last_turn=index == steps - 1,
                observation="board",
                action="[4]",
                prompt_token_ids=(1, 2, 3),
                token_ids=(4, 5),
                logprobs=(-0.1, -0.2),
                raw_reward=1.0,
                reward=1.0,
                policy_uid="checkpoint",
                policy_version=version,
            )
            for index in range(steps)
        ),
    )


def measure() -> dict[str, dict[str, Any]]:
    """Seconds per operation of both buffers, by operation."""
    buffer = StepBuffer(
        BufferSettings(
            max_size=STORED, max_staleness=10**9, batch_size=BATCH, batch_delay=1.0, seed=0
        )
    )
    naive = NaiveBuffer(STORED, seed=0)
    for number in range(STORED // GAME):
        buffer.add([make_game(number, version=0)])
        naive.add([object() for _ in range(GAME)])
    gc.freeze()

    times: dict[str, tuple[list[float], list[float]]] = {
        name: ([], []) for name in ("add", "draw", "draw_new_version")
    }
    for number in range(ADDS):
        game = [make_game(STORED + number, version=0)]
        others = [object() for _ in range(GAME)]
        times["add"][0].append(seconds(lambda game=game: buffer.add(game)))
        times["add"][1].append(seconds(lambda others=others: naive.add(others)))
    for name in ("draw", "draw_new_version"):
        for number in range(DRAWS):
            version = buffer.version + (name == "draw_new_version")
            times[name][0].append(seconds(lambda v=version: buffer.draw(BATCH, v)))
            times[name][1].append(seconds(lambda: naive.draw(BATCH)))
            buffer.add([make_game(-number, version, steps=BATCH)])
            naive.add([object() for _ in range(BATCH)])
            assert buffer.size() == len(naive.steps) == STORED
    return {
        name: {
            "rlforge": spread(ours),
            "naive": spread(theirs),
            "speedup": statistics.median(theirs) / statistics.median(ours),
        }
        for name, (ours, theirs) in times.items()
    }


def main() -> None:
    operations = measure()
    print(f"{'operation':18}{'rlforge ms':>28}{'naive ms':>28}{'speed-up':>12}")
    for name, result in operations.items():
        ours, naive = (shown(result[who], scale=1e3, digits=3) for who in ("rlforge", "naive"))
        print(f"{name:18}{ours:>28}{naive:>28}{result['speedup']:>11.0f}x")
    record(
        "buffer",
        {"stored_steps": STORED, "batch": BATCH, "steps_per_add": GAME, "operations": operations},
    )
    if min(operations["add"]["speedup"], operations["draw"]["speedup"]) < FLOOR:
        raise SystemExit(f"add or draw is less than {FLOOR:.0f} times as fast")


if __name__ == "__main__":
    main()
