"""Add and draw at 100,000 stored steps: the step buffer against random.sample + list.remove.

    python benchmarks/buffer.py [--out FILE]

Both hold the same steps and take turns in one process. An ``add`` brings one game of 8 steps to a
full buffer, so 8 steps are evicted; a ``draw`` takes a batch of 384. The naive buffer finds what it
removes by comparing steps. Its steps compare by identity here, the cheapest way there is, which
flatters it; ``draw_new_version`` also drops stale steps, a full scan that the naive one never does.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


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


def spread(times: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and extremes, in seconds."""
    low, median, high = statistics.quantiles(times, n=4)
    return {
        "median_s": median,
        "q1_s": low,
        "q3_s": high,
        "min_s": min(times),
        "max_s": max(times),
        "repeats": len(times),
    }


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description="Buffer against the naive list, side by side.")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "buffer.json"
    )
    out = parser.parse_args().out
    operations = measure()
    report = {
        "stored_steps": STORED,
        "batch": BATCH,
        "steps_per_add": GAME,
        "operations": operations,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")

    print(f"{'operation':18}{'rlforge ms':>28}{'naive ms':>28}{'speed-up':>12}")
    for name, result in operations.items():
        cells = [
            f"{1e3 * each['median_s']:.3f} [{1e3 * each['q1_s']:.3f}, {1e3 * each['q3_s']:.3f}]"
            for each in (result["rlforge"], result["naive"])
        ]
        print(f"{name:18}{cells[0]:>28}{cells[1]:>28}{result['speedup']:>11.0f}x")
    print(f"median [quartiles]; written to {out}")
    if min(operations["add"]["speedup"], operations["draw"]["speedup"]) < FLOOR:
        raise SystemExit(f"add or draw is less than {FLOOR:.0f} times as fast")


if __name__ == "__main__":
    main()
