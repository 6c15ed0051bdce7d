"""What more games in progress bring and cost: games a second, age of turns, wins after equal time.

    python benchmarks/workers.py [--model M] [--workers W …] [--minutes T] [--seeds N]

An update takes 64 episodes, each of one seat: with the tiny player at SimpleTak some 384 turns, as
in the quick start, with SmolLM2 at TicTacToe fewer. A run is interrupted T minutes after its actors
have started, and its newest version plays 400 games (SmolLM2: 100) against a random player and
against the start. Games a second, age, engine occupancy and shares are means over the second half
of that time. Runs take turns, so that a slow hour of the machine meets all numbers alike.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import record, rows_so_far, spread

RLFORGE = (sys.executable, "-m", "rlforge")
COMMON = (
    "learner.batch_size=64",
    "learner.optimizer_steps=1",
    "buffer.max_size=256",
    "buffer.max_staleness=3",
    "learner.total_updates=100000",
    "learner.schedule=constant",
    "collector.learned_seats=one",
    "engine.max_parallel_seq=384",
    "eval.every=0",
    "eval.games=2",
    "eval.final_games=2",
    "eval.opponents=[random_legal]",
    "tracker.report=false",
    "tracker.progress=off",
)
EXPERIMENTS = {"tiny": "simpletak_mirror", "smollm2_135m": "smollm2_tictactoe"}
GAMES = {"tiny": 400, "smollm2_135m": 100}
UNITS = {"updates": "updates", "games_per_s": "per_s", "games_in_progress": "games"}
UNITS |= dict.fromkeys(("age", "expected_age"), "updates")
MEANS = {
    "games_per_s": "games_per_s",
    "age": "lag_mean",
    "expected_age": "expected_age",
    "games_in_progress": "games_in_progress",
    "engine_occupancy": "engine_occupancy",
    "engine_share": "engine_share",
    "learner_waits": "learner_waits",
    "lost_share": "lost_share",
}


def run(
    model: str, workers: str, minutes: float, seed: int, more: list[str], folder: Path
) -> dict[str, float]:
    """The figures of one run."""
    run_dir = folder / "run"
    command = [*RLFORGE, "train", f"+experiment={EXPERIMENTS[model]}", *COMMON]
    command += [f"collector.num_train_workers={workers}", f"seed={seed}", *more]
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [*command, f"run_dir={run_dir}"], cwd=folder, stdout=output, stderr=output
        )
    while process.poll() is None:
        rows = rows_so_far(run_dir)
        if rows and rows[-1]["time_s"] > 60 * minutes:
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.2)
    if process.wait() != 130:
        raise SystemExit(f"rlforge train failed:\n{(folder / 'output.txt').read_text()[-2000:]}")
    rows = [row for row in rows_so_far(run_dir) if row["time_s"] <= 60 * minutes]
    late = [row for row in rows if row["time_s"] > 30 * minutes]
    if len(late) < 2:
        raise SystemExit("fewer than two updates in the second half of the time: raise --minutes")
    figures = {"updates": float(len(rows))}
    for name, metric in MEANS.items():
        figures[name] = statistics.fmean(row[metric] for row in late if metric in row)
    played = [late[0], late[-1]]
    span = played[1]["time_s"] - played[0]["time_s"]
    figures["games_per_s"] = (played[1]["games"] - played[0]["games"]) / span
    measured = folder / "wins.json"
    games = ["--games", str(GAMES[model]), "--opponent", "random_legal", "--opponent", "base"]
    evaluation = [*RLFORGE, "eval", str(run_dir), *games, "--json", str(measured)]
    subprocess.run(evaluation, cwd=folder, check=True, capture_output=True)
    for result in json.loads(measured.read_text()):
        figures[f"wins_{result['opponent']}"] = result["win_rate"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="What more games in progress bring and cost.")
    parser.add_argument("--model", choices=EXPERIMENTS, default="tiny")
    parser.add_argument("--workers", nargs="+", default=["32", "96", "192", "384"])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="for every run")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {workers: [] for workers in arguments.workers}
    for seed, workers in itertools.product(range(arguments.seeds), arguments.workers):
        with tempfile.TemporaryDirectory() as folder:
            figures = run(
                arguments.model, workers, arguments.minutes, seed, arguments.overrides, Path(folder)
            )
        found[workers].append(figures)
        print(workers, seed, {name: round(each, 3) for name, each in figures.items()}, flush=True)
    results: dict[str, Any] = {
        "model": arguments.model,
        "minutes": arguments.minutes,
        "workers": {
            workers: {
                name: one
                if len(runs) == 1
                else spread([run[name] for run in runs], UNITS.get(name, "share"))
                for name, one in runs[0].items()
            }
            for workers, runs in found.items()
        },
    }
    record(f"workers_{arguments.model}", results, script="workers")


if __name__ == "__main__":
    main()
