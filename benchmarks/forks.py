"""Continuations a second of a finished game of SimpleTak, with the tiny model.

    python benchmarks/forks.py [--repeats N] [--few N] [--many N]

A run of two updates gives game and policies. The longest of its evaluation games is played on from
its first turn, FEW and MANY times; the difference of the two times is that of MANY - FEW
continuations alone, without loading the model.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import record, shown, spread

from rlforge.local.forks import Start, fork_game
from rlforge.tracking.game_files import read_games
from rlforge.types import GameRecord

RUN = [
    *(sys.executable, "-c", "from rlforge.cli import main; main()"),
    *("train", "+experiment=simpletak_mirror", "tracker.report=false", "tracker.progress=off"),
    *("learner.total_updates=2", "eval.games=16", "eval.final_games=16"),
]


def played_in(run_dir: Path, game: GameRecord, number: int) -> tuple[float, float]:
    """Seconds by the clock and by the CPU of ``number`` continuations, with loading the model."""
    began, cpu = time.perf_counter(), time.process_time()
    fork = asyncio.run(fork_game(run_dir, game, Start(turn=1, games=number)))
    assert len(fork.played) == number
    return time.perf_counter() - began, time.process_time() - cpu


def measure(run_dir: Path, repeats: int, few: int, many: int) -> dict[str, Any]:
    games = read_games(run_dir, purpose="eval")
    game = max(games, key=lambda each: (len(each.turns), each.spec.game_id))
    rates, cpu_rates = [], []
    played_in(run_dir, game, few)  # imports
    for _ in range(repeats):
        short, long = played_in(run_dir, game, few), played_in(run_dir, game, many)
        rates.append((many - few) / (long[0] - short[0]))
        cpu_rates.append((many - few) / (long[1] - short[1]))
    return {
        "turns_of_the_game": len(game.turns),
        "continuations": spread(rates, "per_s"),
        "by_cpu_time": spread(cpu_rates, "per_s"),
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
    print("continuations a second", shown(results["continuations"], "per_s"))
    print("by CPU time           ", shown(results["by_cpu_time"], "per_s"))
    record("forks", results)


if __name__ == "__main__":
    main()
