"""Hours of training while processes are killed, the disk fills, the clock jumps and games fail.

    python benchmarks/soak.py [--hours H] [--seed N]

In 1 % of the moves of a run's games the environment raises or hangs (faulty.py). Every one to three
minutes a process of the run is killed, or all of them, or the disk is full for 20 s, or the clock
of the machine jumps by up to an hour and back after 20 s: run as root, for the run's directory is a
file system of its own, and on a machine whose clock may be moved. A run that ends is resumed. After
the time is over it makes five more updates and ends by itself. Counted are games that began and
left no record, beyond those under way when a part of the run ended; games and samples that are
there twice; and what ``rlforge verify`` finds. Memory, handles, processes and temporary files are
read before each fault: a straight line through them has the slope that is recorded.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import faulty
import psutil
from common import record
from scipy.stats import linregress, t
from strict import KINDS, go_on, processes

from rlforge.buffer.batches import read_batch
from rlforge.lab.verify.check import verify
from rlforge.record.files import RunPaths, read_jsonl
from rlforge.record.game_files import read_games
from rlforge.record.status import read_summary
from rlforge.system.checkpoint import latest_checkpoint, step_number
from rlforge.types import GameRecord

WORKERS = 64
RUN = [
    *("train", "+experiment=tictactoe_mirror", "learner.total_updates=1000000"),
    f"env.train=[{{id: {faulty.ID}, source: 'faulty:Source', max_turns: 20}}]",
    *("learner.batch_size=256", "learner.state_every=5", "learner.keep_checkpoints=3"),
    *("pool=prioritized", "pool.fixed_opponents=[random_legal]"),
    *(f"collector.num_train_workers={WORKERS}", "collector.max_restarts=1000"),
    "engine.max_restarts=1000",
    *("eval.every=20", "eval.games=20", "eval.final_games=20", "eval.opponents=[random_legal]"),
    *("tracker.report=false", "tracker.progress=off"),
]
DAEMONS = ("raylet", "gcs_server")
FAULTS = (*KINDS, *DAEMONS, "full disk", "clock")
#: A part of the run that is younger is still loading.
SETTLED_S = 45.0
#: Marks the processes of the run, wherever they are in the tree.
MARK = "RLFORGE_SOAK"
DISK = "4g"


class Soak:
    """One run, started again whenever it ends."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.run_dir = folder / "disk" / "run"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.rng = random.Random(seed)
        self.parts = 0
        self.endings: collections.Counter[str] = collections.Counter()
        os.environ |= {MARK: str(folder), "TMPDIR": str(self.temporary)}
        self.start()

    def start(self) -> None:
        self.driver = go_on(self.run_dir, *RUN)
        self.since = time.monotonic()
        self.parts += 1

    def keep_running(self, seconds: float) -> None:
        """Resume the run whenever it ends within ``seconds``."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if (code := self.driver.poll()) is not None:
                said = str(read_summary(RunPaths(root=self.run_dir)).get("error", "")).split(":")[0]
                self.endings[f"exit code {code}: {said}"[:100]] += 1
                self.start()
            time.sleep(1)

    def harm(self, fault: str) -> int:
        """Do it; the number of processes that were killed."""
        if fault == "full disk":
            with full(self.run_dir.parent):
                self.keep_running(20)
            return 0
        if fault == "clock":
            with moved(self.rng.uniform(-3600, 3600)):
                self.keep_running(20)
            return 0
        victims = list(self.victims(fault))
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        return len(victims)

    def victims(self, fault: str) -> Iterable[psutil.Process]:
        if fault in KINDS:
            return processes(self.driver, fault)
        return [each for each in processes(self.driver, "all") if each.name() == fault]

    def use(self) -> dict[str, float]:
        """What the processes of the run take, also those that have lost their parent."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == os.environ[MARK] and process.pid != os.getpid():
                    memory = process.memory_full_info().pss
                    found.append((memory, process.num_fds(), process.num_threads()))
        return {
            "memory_mb": sum(row[0] for row in found) / 1e6,
            "handles": sum(row[1] for row in found),
            "threads": sum(row[2] for row in found),
            "processes": len(found),
            "temporary_mb": size_mb(self.temporary),
            "shared_memory_mb": size_mb(Path("/dev/shm")),
        }

    def end(self, updates: int) -> int:
        """Stop, make ``updates`` more and end; the exit code."""
        self.keep_running(SETTLED_S)
        self.driver.send_signal(signal.SIGINT)
        self.driver.wait(120)
        newest = latest_checkpoint(self.run_dir / "checkpoints", with_state=True)
        assert newest is not None
        total = step_number(newest.name) + updates
        config = self.run_dir / "config.yaml"
        config.write_text(
            config.read_text().replace("total_updates: 1000000", f"total_updates: {total}")
        )
        self.start()
        return self.driver.wait(600)


def size_mb(folder: Path) -> float:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.lstat().st_blocks * 512
    return total / 1e6


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Until the block ends, not a byte more fits on ``disk``."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        with contextlib.suppress(OSError):
            while True:
                file.write(b"x")
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def moved(by_s: float) -> Iterator[None]:
    """Until the block ends, the clock of the machine is wrong by ``by_s``."""
    right = time.clock_gettime(time.CLOCK_REALTIME) - time.monotonic()
    time.clock_settime(time.CLOCK_REALTIME, right + time.monotonic() + by_s)
    try:
        yield
    finally:
        time.clock_settime(time.CLOCK_REALTIME, right + time.monotonic())


# ---------------------------------------------------------------- what became of it


def games_of(run_dir: Path) -> dict[str, Any]:
    """Games lost and doubled, and samples doubled."""
    games = list(read_games(run_dir))
    ids = collections.Counter(game.spec.game_id for game in games)
    samples: collections.Counter[tuple[str, int, int]] = collections.Counter()
    for file in sorted((run_dir / "batches").glob("batch-*.parquet")):
        drawn = read_batch(file).samples
        samples.update((one.origin, one.player_id, one.turn_index) for one in drawn)
    known = set(ids)
    return {
        "games": len(games),
        "failed_games": sum(game.error is not None for game in games),
        "samples": samples.total(),
        "lost_games": lost(game for game in games if game.spec.purpose == "train"),
        "lost_games_of_samples": len({game for game, _, _ in samples} - known),
        "doubled_games": sum(count - 1 for count in ids.values()),
        "doubled_samples": sum(count - 1 for count in samples.values()),
    }


def lost(games: Iterable[GameRecord]) -> int:
    """Games that began and left no record, beyond those under way when their part ended.

    Games are numbered as they begin. A part of the run goes on where the saved state was, and what
    is played again keeps its number.
    """
    numbers = collections.defaultdict(set)
    for game in games:
        _, part, number = game.spec.game_id.partition("~")[0].rsplit("-", 2)
        numbers[part].add(int(number))
    return sum(max(0, max(each) - min(each) + 1 - len(each) - WORKERS) for each in numbers.values())


def slopes(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Growth an hour of each measure, with the 95 % interval of a straight line."""
    settled = [row for row in rows if row["settled"]]
    hours = [row["time_s"] / 3600 for row in settled]
    found = {}
    for name in settled[0]["use"]:
        values = [row["use"][name] for row in settled]
        fit = linregress(hours, values)
        constant = min(values) == max(values)
        half = 0.0 if constant else float(t.ppf(0.975, len(hours) - 2) * fit.stderr)
        found[name] = {
            "mean": sum(values) / len(settled),
            "per_hour": float(fit.slope),
            "low": float(fit.slope) - half,
            "high": float(fit.slope) + half,
        }
    return found


def soak(folder: Path, hours: float, seed: int) -> dict[str, Any]:
    run = Soak(folder, seed)
    began, rows = time.monotonic(), []
    faults = []  # every kind once, in random order, before one comes again
    while time.monotonic() - began < 3600 * hours:
        run.keep_running(run.rng.uniform(60, 180))
        use, settled = run.use(), time.monotonic() - run.since > SETTLED_S
        faults = faults or run.rng.sample(FAULTS, len(FAULTS))
        time_s, fault = time.monotonic() - began, faults.pop()
        killed = run.harm(fault)
        rows.append(
            {
                "time_s": round(time_s, 1),
                "fault": fault,
                "killed": killed,
                "settled": settled,
                "use": use,
            }
        )
        print(rows[-1], flush=True)
    code = run.end(updates=5)
    steps = [row["step"] for row in read_jsonl(run.run_dir / "metrics.jsonl")]
    summary = read_summary(RunPaths(root=run.run_dir))
    found = verify(run.run_dir)
    return {
        "hours": hours,
        "exit_code": code,
        "status": summary["status"],
        "updates": len(steps),
        "missing_or_doubled_updates": steps != [*range(1, len(steps) + 1)],
        "faults": dict(collections.Counter(row["fault"] for row in rows)),
        "processes_killed": sum(row["killed"] for row in rows),
        "parts": run.parts,
        "endings": dict(run.endings),
        **games_of(run.run_dir),
        "verify": [f"{check}: {problem}" for check, problem in found.problems],
        "growth": slopes(rows),
        "readings": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # faulty.py, for every process
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)], check=True)
    try:
        results = soak(folder, asked.hours, asked.seed)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
        shutil.rmtree(folder, ignore_errors=True)
    record("soak", results)


if __name__ == "__main__":
    main()
