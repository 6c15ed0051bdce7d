"""Time to skill: from the start of the command to the first evaluation that passes a level.

    python benchmarks/skill.py [--games GAME …] [--seeds N …] [--against COMMIT [--worst RATIO]]

Each run is ``rlforge train`` of a shipped experiment with the tiny model, which is made before, and
an evaluation every few updates; it is interrupted, as with Ctrl-C, once it passes the level:

- simpletak: the lower bound of the 95 % interval of wins against ``random_legal`` is 80 % or more.
- tictactoe: the upper bound of that of losses against ``minimax``, which cannot be beaten, is 12 %
  or less.
- kuhn: exact NashConv of the policy is 0.15 or less (``rlforge exploit``). It is computed after the
  run, of the same versions.

Phases, by the clock and in CPU seconds of all processes:

- composed: the run directory exists; imports, configuration and checks are done.
- ready: the evaluation before training has been played.
- first_update, skill.

Beside them stand the machine's limits. Of the start: a script that imports torch, transformers and
Ray, starts Ray and imports the model's classes in two of its workers. Of the whole: its CPU seconds
divided by the cores, which is how long it would take if none were ever idle.

``--against COMMIT`` measures that commit as well, run by run in turn, and the ratio of each pair;
``--against last`` takes the newest commit on record. Medians of every measured commit stay in the
results. ``--worst RATIO`` records nothing and stops runs after 60 updates, since the update at
which a single run reaches a level is chance: the exit code is 1 where they take more than RATIO
times the CPU seconds, start included, in every pair.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import RESULTS, cpu_seconds, record, shown, spread

from rlforge.config.compose import compose
from rlforge.lab.exact.exploit import exploit_run
from rlforge.models.load import resolve_model
from rlforge.statistics import wilson_interval

ROOT = Path(__file__).resolve().parents[1]

RLFORGE = (sys.executable, "-m", "rlforge")
PHASES = ("composed", "ready", "first_update", "skill")
NASH_CONV = 0.15
#: Updates of a run that is only compared.
COMPARED = 60
#: Starts what every run starts, and nothing else.
BARE_START = """
import ray, torch, transformers
ray.init(include_dashboard=False, log_to_driver=False)
@ray.remote(num_cpus=0)
class Worker:
    def load(self):
        from transformers import AutoTokenizer, LlamaForCausalLM
workers = [Worker.remote() for _ in range(2)]
ray.get([worker.load.remote() for worker in workers])
"""


@dataclass(frozen=True)
class Level:
    """What a run of ``experiment`` is to reach.

    every: updates between evaluations. passed: of a line of evals.jsonl; None: by NashConv.
    """

    experiment: str
    opponent: str
    every: int
    passed: Callable[[dict[str, Any]], bool] | None


LEVELS = {
    "simpletak": Level(
        "simpletak_mirror",
        "random_legal",
        every=5,
        passed=lambda row: wilson_interval(row["wins"], row["games"])[0] >= 0.80,
    ),
    "tictactoe": Level(
        "tictactoe_mirror",
        "minimax",
        every=5,
        passed=lambda row: wilson_interval(row["losses"], row["games"])[1] <= 0.12,
    ),
    "kuhn": Level("kuhn_grpo", "random_legal", every=10, passed=None),
}


@dataclass(frozen=True)
class Reached:
    """Seconds, by the clock and on the CPU, since the start of the command."""

    wall_s: float
    cpu_s: float


def overrides_for(level: Level, seed: int) -> list[str]:
    """The command line of ``rlforge train``."""
    return [
        "train",
        f"+experiment={level.experiment}",
        f"seed={seed}",
        f"eval.every={level.every if level.passed else 0}",
        f"eval.opponents=[{level.opponent}]",
        "eval.games=400",
        "eval.final_games=400",
        "tracker.progress=off",
        "tracker.report=false",
    ]


def run(
    level: Level, seed: int, source: Path, more: list[str], most_updates: int | None = None
) -> dict[str, Reached]:
    """When one run reached each phase; without ``skill`` where it never did.

    source: the repository whose rlforge runs. more: overrides. most_updates: after which it is
    stopped, in the phase ``compared``.
    """
    last = "skill" if most_updates is None else "compared"
    with tempfile.TemporaryDirectory() as folder:
        run_dir, log = Path(folder) / "run", Path(folder) / "output.txt"
        began = time.monotonic()
        with log.open("w") as output:
            process = subprocess.Popen(
                [*RLFORGE, *overrides_for(level, seed), *more, f"run_dir={run_dir}"],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(source / "src")},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        versions: dict[int, Reached] = {}
        reached: dict[str, Reached] = {}
        for phase, version in _events(level, run_dir, process):
            now = Reached(time.monotonic() - began, cpu_seconds(process.pid))
            if version is not None:
                versions[version] = now
            reached.setdefault(phase, now)
            if version == most_updates is not None:
                reached["compared"] = now
            if last in reached:
                process.send_signal(signal.SIGINT)
                break
        if process.wait() != 0 and last not in reached:
            raise SystemExit(f"rlforge train failed:\n{log.read_text()[-2000:]}")
        if level.passed is None and most_updates is None:
            tried = [f"step-{v}" for v in range(level.every, max(versions) + 1, level.every)]
            for exact in exploit_run(run_dir, tried):
                if exact.nash_conv <= NASH_CONV:
                    reached["skill"] = versions[exact.step]
                    break
    return reached


def _events(
    level: Level, run_dir: Path, process: subprocess.Popen[bytes]
) -> Iterator[tuple[str, int | None]]:
    """Phases as they are reached; of updates also the version, while the process runs."""
    composed, known, evaluated = False, 0, 0
    while process.poll() is None:
        if not composed and (run_dir / "config.yaml").exists():
            composed = True
            yield "composed", None
        evals = _lines(run_dir / "evals.jsonl")
        for row in evals[evaluated:]:
            yield "ready", None
            if level.passed is not None and row["opponent"] == level.opponent and level.passed(row):
                yield "skill", None
        evaluated = len(evals)
        metrics = _lines(run_dir / "metrics.jsonl")
        for row in metrics[known:]:
            yield "first_update", row["step"]
        known = len(metrics)
        time.sleep(0.1)


def _lines(file: Path) -> list[dict[str, Any]]:
    """What the run has written so far; its last line may be on its way."""
    lines = file.read_text().splitlines(keepends=True) if file.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def bare_start() -> Reached:
    """The machine's limit of a start: packages and Ray alone."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", BARE_START],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        cpu = 0.0
        while process.poll() is None:
            cpu = max(cpu, cpu_seconds(process.pid))
            time.sleep(0.1)
    if process.returncode != 0:
        raise SystemExit("Ray did not start on its own")
    return Reached(time.monotonic() - began, cpu)


def summary(runs: list[dict[str, Reached]]) -> dict[str, Any]:
    """Spreads of every phase over the runs that reached it."""
    figures: dict[str, Any] = {"runs": len(runs), "passed": sum("skill" in r for r in runs)}
    for phase in PHASES:
        found = [reached[phase] for reached in runs if phase in reached]
        if len(found) >= 2:
            figures[phase] = {
                "wall": spread([one.wall_s for one in found]),
                "cpu": spread([one.cpu_s for one in found]),
                "if_never_idle_s": statistics.median(one.cpu_s for one in found)
                / (os.cpu_count() or 1),
            }
    return figures


def show(name: str, figures: dict[str, Any]) -> None:
    """A table of the phases."""
    print(f"{name}: {figures['passed']} of {figures['runs']} runs passed")
    for phase in PHASES:
        if phase in figures:
            wall, cpu = (shown(figures[phase][clock]) for clock in ("wall", "cpu"))
            least = figures[phase]["if_never_idle_s"]
            print(f"  {phase:13}{wall:>24} s   CPU {cpu:>24} s   if never idle {least:.1f} s")


def commit_of(source: Path) -> str:
    """The short name of the commit that is checked out, with ``+`` where files differ."""
    git = ["git", "-C", str(source)]
    name = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain", "src", "conf"], capture_output=True)
    return name.stdout.strip() + ("+" if changed.stdout else "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time from a command to a level of play.")
    parser.add_argument("--games", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--worst", metavar="RATIO", type=float)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of every run")
    arguments = parser.parse_args()
    compares = arguments.worst is not None
    if len(arguments.seeds) < 2 and not compares:
        parser.error("--seeds: a spread needs at least 2")
    if compares and arguments.against is None:
        parser.error("--worst: needs --against")
    kept = RESULTS / "skill.json"
    earlier = json.loads(kept.read_text())["commits"] if kept.exists() else {}
    if arguments.against == "last":
        arguments.against = max(reversed(earlier), key=lambda commit: earlier[commit]["date"])
    resolve_model(compose(["model=tiny"]).config.model, print)  # made before the first run
    with tempfile.TemporaryDirectory() as folder:
        sources = {commit_of(ROOT): ROOT}
        if arguments.against is not None:
            other = Path(folder) / "other"
            subprocess.run(["git", "clone", "-q", str(ROOT), str(other)], check=True)
            subprocess.run(
                ["git", "-C", str(other), "checkout", "-q", arguments.against], check=True
            )
            sources[commit_of(other)] = other
        if compares:
            compare(arguments, sources)
            return
        starts = [bare_start() for _ in range(3)]
        results: dict[str, Any] = {
            "bare_start": {
                "wall": spread([one.wall_s for one in starts]),
                "cpu": spread([one.cpu_s for one in starts]),
            }
        }
        print(f"packages and Ray alone: {results['bare_start']['wall']['median_s']:.1f} s")
        commits: dict[str, dict[str, Any]] = {commit: {} for commit in sources}
        for name in arguments.games:
            runs: dict[str, list[dict[str, Reached]]] = {commit: [] for commit in sources}
            for seed in arguments.seeds:
                for commit, source in sources.items():
                    runs[commit].append(run(LEVELS[name], seed, source, arguments.overrides))
            for commit, found in runs.items():
                commits[commit][name] = summary(found)
                show(f"{name} at {commit}", commits[commit][name])
            if arguments.against is not None:
                print(f"  ratios to {arguments.against}: {ratios(*runs.values(), 'skill')}")
    date = time.strftime("%Y-%m-%d")
    now = {commit: {"date": date, "games": games} for commit, games in commits.items()}
    record("skill", results | {"commits": earlier | now})


def compare(arguments: argparse.Namespace, sources: dict[str, Path]) -> None:
    """End with exit code 1 where this commit takes too much CPU time in every pair of runs."""
    for name in arguments.games:
        pairs = [
            [
                run(LEVELS[name], seed, source, arguments.overrides, COMPARED)
                for source in sources.values()
            ]
            for seed in arguments.seeds
        ]
        ours, theirs = (list(runs) for runs in zip(*pairs, strict=True))
        found = ratios(ours, theirs, "compared")["cpu"]
        print(f"{name}: CPU seconds of {COMPARED} updates, to {arguments.against}: {found}")
        if min(found) > arguments.worst:
            raise SystemExit(f"{name}: slower than {arguments.against}")


def ratios(
    ours: list[dict[str, Reached]], theirs: list[dict[str, Reached]], phase: str
) -> dict[str, list[float]]:
    """Of each pair of runs that both reached the phase: by the clock and by CPU time."""
    pairs = [
        (a[phase], b[phase]) for a, b in zip(ours, theirs, strict=True) if phase in a and phase in b
    ]
    return {
        "wall": [round(a.wall_s / b.wall_s, 2) for a, b in pairs],
        "cpu": [round(a.cpu_s / b.cpu_s, 2) for a, b in pairs],
    }


if __name__ == "__main__":
    main()
