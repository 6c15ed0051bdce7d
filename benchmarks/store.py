"""The trajectory store: decisions appended a second, durably, and queries over a million of them.

    python benchmarks/store.py [--decisions 1000000] [--folder DIR]

Decisions bear a state and a next state of some 2 kB each, as the market's do, made outside the
timed parts. ``append`` returns once its decisions are synced to disk; closing the store is part of
their time. Datasets are those of ``rlforge windows export`` and ``import``. A query ends with the
decisions as Python objects, states parsed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import record, seconds, shown, spread

from rlforge.continuous.config.continuous import WindowConfig
from rlforge.continuous.decisions.columns import decision_row
from rlforge.continuous.decisions.dataset import export_dataset, import_dataset
from rlforge.continuous.decisions.records import (
    Decision,
    DecisionOutcome,
    Metadata,
    Result,
    WindowGrid,
)
from rlforge.continuous.decisions.store import StoreReader, TrajectoryStore
from rlforge.continuous.decisions.windows import Windows

START, AGENTS, WINDOW_S, PER_WINDOW = 1731492000.0, 100, 3600.0, 4000
REPEATS, QUERIES = 5, 15
#: Decisions appended in one turn, and in one of those that take them singly.
APPENDED, SINGLY = 20_000, 2_000
LEAST_PER_SECOND, MOST_QUERY_S = 5000.0, 1.0
GRID = WindowGrid(WINDOW_S / 60)
RESULT = Result(pnl=1.0, investment=10.0, hold_time_minutes=5.0, win_rate=0.5)
WORDS = ["market", "rates", "this", "far", "too", "low", "after", "what", "they", "said", "today"]


def make_state(draw: random.Random) -> dict[str, Any]:
    """A ``GameState`` of the document's form; numbers and texts differ from one to the next."""

    def price() -> float:
        return round(draw.random() * 100, 4)

    return {
        "portfolio": {
            "balance": price() * 10,
            "positions": [
                {"id": f"pos-{n}", "market": f"m-{n}", "size": price(), "entry": price()}
                for n in range(4)
            ],
            "lifetimePnL": price(),
        },
        "markets": {
            "predictions": [
                {"id": f"m-{n}", "question": f"Will event {n} come?", "yes": price(), "no": price()}
                for n in range(6)
            ],
            "perpetuals": [
                {"ticker": f"T{n}", "mark": price(), "index": price(), "funding": price() / 1e4}
                for n in range(4)
            ],
        },
        "social": {
            "feed": [
                {"id": f"p-{n}", "author": f"a-{n}", "content": " ".join(draw.choices(WORDS, k=12))}
                for n in range(5)
            ],
            "unreadMessages": draw.randrange(9),
        },
        "agent": {
            "recentActions": [{"type": "SELL_SHARES", "shares": price()} for _ in range(4)],
            "memory": [{"note": " ".join(draw.choices(WORDS, k=8))} for _ in range(3)],
        },
    }


#: As many as a window has decisions.
STATES = [make_state(random.Random(number)) for number in range(PER_WINDOW)]


def make_decisions(first: int, count: int, whole: bool = True) -> list[Decision]:
    """Decisions ``first`` and on, of all agents in turn, ``PER_WINDOW`` to a window."""
    decisions = []
    for number in range(first, first + count):
        timestamp = START + number * WINDOW_S / PER_WINDOW
        decisions.append(
            Decision(
                id=f"agent-{number % AGENTS}-{number:09d}",
                agent_id=f"agent-{number % AGENTS}",
                window_id=GRID.id_of(timestamp),
                state=STATES[number % PER_WINDOW],
                action={"type": "BUY_SHARES", "marketId": "m-1", "outcome": "YES", "amount": 5.0},
                timestamp=timestamp,
                metadata=Metadata(provider="scripted:value", reasoning=" ".join(WORDS)),
                reward=number % 97 / 97 if whole else None,
                next_state=STATES[(number + AGENTS) % PER_WINDOW] if whole else None,
                result=RESULT if whole else None,
            )
        )
    return decisions


#: Another process that reads all the while.
READ = """
import sys
from rlforge.continuous.decisions.store import StoreReader
reader = StoreReader(sys.argv[1])
while True:
    for window_id in reader.window_ids():
        reader.decisions(window_id)
"""


def measure_append() -> dict[str, dict[str, float]]:
    """Decisions a second by how they come, each into a new store."""
    decisions, open_ones = make_decisions(0, APPENDED), make_decisions(0, APPENDED, whole=False)
    outcomes = [
        DecisionOutcome(decision_id=d.id, reward=0.5, next_state=decisions[n].state, result=RESULT)
        for n, d in enumerate(open_ones)
    ]

    def in_batches(size: int, count: int = APPENDED) -> Callable[[TrajectoryStore], int]:
        def way(store: TrajectoryStore) -> int:
            return sum(store.append(decisions[n : n + size]) for n in range(0, count, size))

        return way

    def completed(store: TrajectoryStore) -> int:
        for n in range(0, APPENDED, AGENTS):
            store.append(open_ones[n : n + AGENTS])
            store.complete(outcomes[n : n + AGENTS])
        return APPENDED

    def read_meanwhile(store: TrajectoryStore) -> int:
        with subprocess.Popen([sys.executable, "-c", READ, str(store.root)]) as reading:
            done = in_batches(100)(store)
            assert reading.poll() is None, "the reader ended"
            reading.terminate()
        return done

    def by_threads(store: TrajectoryStore) -> int:
        with ThreadPoolExecutor(16) as threads:
            return sum(threads.map(lambda decision: store.append([decision]), decisions[:SINGLY]))

    ways = {
        "batches_of_1000": in_batches(1000),
        "batches_of_100": in_batches(100),
        "batches_of_10": in_batches(10),
        "one_by_one": in_batches(1, SINGLY),
        "one_by_one_from_16_threads": by_threads,
        "batches_of_100_while_a_process_reads": read_meanwhile,
        "batches_of_100_and_outcomes_later": completed,
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
                start = time.perf_counter()
                # Closing moves the log into the database: all of the work is paid for.
                with TrajectoryStore(Path(folder) / "store") as store:
                    done = way(store)
                rates[name].append(done / (time.perf_counter() - start))
    return {name: spread(values, "per_s") for name, values in rates.items()}


def measure_dataset() -> dict[str, dict[str, float]]:
    """Decisions a second out of a store as a dataset, and of that into a new store."""
    rates: dict[str, list[float]] = {"export": [], "import": []}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, TrajectoryStore(f"{folder}/s") as s:
        for first in range(0, APPENDED, 1000):
            s.append(make_decisions(first, 1000))
        for number in range(REPEATS):
            dataset = Path(folder, f"dataset-{number}")
            rates["export"].append(APPENDED / seconds(lambda d=dataset: export_dataset(s, d)))
            with TrajectoryStore(f"{folder}/copy-{number}") as copy:
                taken = seconds(lambda d=dataset, c=copy: import_dataset(d, c))
            rates["import"].append(APPENDED / taken)
    return {name: spread(values, "per_s") for name, values in rates.items()}


def build(root: Path, count: int) -> dict[str, float]:
    """A store of ``count`` decisions in batches of 1,000; the time to make them is left out."""
    taken = []
    with TrajectoryStore(root) as store:
        for first in range(len(store.rows()), count, 1000):
            decisions = make_decisions(first, 1000)
            taken.append(seconds(lambda d=decisions: store.append(d)))
        size = sum(path.stat().st_size for path in root.rglob("*.*"))
    built = {"decisions": float(count), "windows": float(len(StoreReader(root).window_ids()))}
    built["bytes_per_decision"] = size / count
    if taken:
        built |= {"per_s": 1000 / statistics.mean(taken), "longest_append_s": max(taken)}
    return built


def measure_queries(root: Path) -> dict[str, dict[str, float]]:
    """Seconds of each query."""
    draw = random.Random(0)
    reader = StoreReader(root)
    ids = reader.window_ids()
    windows = Windows(reader, WindowConfig())
    wanted = draw.sample(ids, min(QUERIES, len(ids)))

    times = {
        "window_cold": [seconds(lambda w=w: StoreReader(root).decisions(w)) for w in wanted],
        "training_window": [seconds(lambda w=w: windows.get(w)) for w in wanted],
        "newest_512": [
            seconds(lambda: reader.newest_complete(512, before=time.time())) for _ in wanted
        ],
        "list_of_20_windows": [
            seconds(lambda: [windows.get(one, brief=True) for one in ids[-20:]]) for _ in range(3)
        ],
        "window_ids": [seconds(reader.window_ids) for _ in range(3)],
    }
    return {name: spread(values) for name, values in times.items()}


def show(title: str, by_name: dict[str, dict[str, float]], unit: str, digits: int) -> None:
    print(title)
    for name, values in by_name.items():
        print(f"  {name:36}{shown(values, unit, digits=digits):>28}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="Keep the large store here, and go on with it.")
    chosen = parser.parse_args(arguments)
    row = decision_row(make_decisions(0, 1)[0])
    appended = measure_append()
    show("decisions appended per second", appended, "per_s", 0)
    moved = measure_dataset()
    show("decisions per second as a dataset", moved, "per_s", 0)
    folder = chosen.folder or Path(tempfile.mkdtemp(dir=Path.cwd()))
    try:
        built = build(folder / "store", chosen.decisions)
        print("the large store: " + ", ".join(f"{k} {v:,.4g}" for k, v in built.items()))
        queries = measure_queries(folder / "store")
    finally:
        if chosen.folder is None:
            shutil.rmtree(folder)
    show(f"seconds per query over {chosen.decisions:,} decisions", queries, "s", 4)
    record(
        "store",
        {
            "packages": {"sqlite": sqlite3.sqlite_version, "pyarrow": version("pyarrow")},
            "state_bytes": len(row["state"]),
            "decisions_per_window": PER_WINDOW,
            "agents": AGENTS,
            "appended_per_run": APPENDED,
            "append": appended,
            "dataset": moved,
            "large_store": built,
            "queries": queries,
        },
    )
    if appended["batches_of_100"]["median_per_s"] < LEAST_PER_SECOND:
        raise SystemExit(f"fewer than {LEAST_PER_SECOND:,.0f} decisions a second")
    if queries["window_cold"]["median_s"] > MOST_QUERY_S:
        raise SystemExit(f"a window query takes more than {MOST_QUERY_S} s")


if __name__ == "__main__":
    main()
