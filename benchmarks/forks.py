"""Continuations a second of a finished game of SimpleTak, with the tiny model.

    python benchmarks/forks.py [--repeats N] [--few N] [--many N]

A run of two updates gives game and policies. The longest of its evaluation games is played on FEW
and MANY times: as often from each of its turns, as ``rlforge analyse`` does, and from the first
turn alone, which are whole games. The difference of the two times is that of MANY - FEW
continuations alone, without loading the model.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import record, shown, spread

from rlforge.lab.forks import Start, continuations
from rlforge.record.game_files import read_games
from rlforge.types import GameRecord

RUN = [
    *(sys.executable, "-m", "rlforge"),
    *("train", "+experiment=simpletak_mirror", "tracker.report=false", "tracker.progress=off"),
    *("learner.total_updates=2", "eval.games=16", "eval.final_games=16"),
]


def played_in(run_dir: Path, game: GameRecord, starts: Sequence[Start]) -> tuple[float, float]:
    """Seconds by the clock and by the CPU of continuations, with loading the model."""

    async def play() -> None:
        async with continuations(run_dir, game, {}, lambda text: None) as play:
            forks = await play(starts)
        assert all(len(fork.played) == fork.start.games for fork in forks)

    began, cpu = time.perf_counter(), time.process_time()
    asyncio.run(play())
    return time.perf_counter() - began, time.process_time() - cpu


def measure(run_dir: Path, repeats: int, few: int, many: int) -> dict[str, Any]:
    games = read_games(run_dir, purpose="eval")
    game = max(games, key=lambda each: (len(each.turns), each.spec.game_id))
    every_turn = range(1, len(game.turns) + 1)
    rates: dict[str, list[float]] = {}

    def starts(number: int, turns: Sequence[int]) -> list[Start]:
        return [Start(turn=turn, games=number // len(turns)) for turn in turns]

    played_in(run_dir, game, starts(few, every_turn))  # imports
    for _ in range(repeats):
        for name, turns in (("continuations", every_turn), ("whole_games", [1])):
            short, long = (played_in(run_dir, game, starts(n, turns)) for n in (few, many))
            number = len(turns) * (many // len(turns) - few // len(turns))
            rates.setdefault(name, []).append(number / (long[0] - short[0]))
            rates.setdefault(f"{name}_by_cpu_time", []).append(number / (long[1] - short[1]))
    return {
        "turns_of_the_game": len(game.turns),
        **{name: spread(values, "per_s") for name, values in rates.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--few", type=int, default=256)
    parser.add_argument("--many", type=int, default=2304)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        subprocess.run([*RUN, f"run_dir={run_dir}"], check=True, stdout=subprocess.DEVNULL)
        results = measure(run_dir, asked.repeats, asked.few, asked.many)
    for name in ("continuations", "whole_games"):
        print(f"{name} a second", shown(results[name], "per_s"))
        print("    by CPU time", shown(results[f"{name}_by_cpu_time"], "per_s"))
    record("forks", results)


if __name__ == "__main__":
    main()
