"""What every benchmark needs: spreads, a description of the machine, a JSON file."""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from rlforge.system.hardware import describe, versions

RESULTS = Path(__file__).parent / "results"


def seconds(work: Callable[[], object]) -> float:
    """How long ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all below it, Ray's included, so far."""
    total = 0.0
    try:
        above = psutil.Process(pid)
        for process in (above, *above.children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system
    except psutil.NoSuchProcess:
        pass
    return total


def rows_so_far(run_dir: Path) -> list[dict[str, Any]]:
    """The updates that a run has recorded; a last line that is not complete is left out."""
    file = run_dir / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def spread(values: Sequence[float], unit: str = "s") -> dict[str, float]:
    """Median, quartiles and extremes of at least two values, in ``unit``."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {
        f"median_{unit}": median,
        f"q1_{unit}": low,
        f"q3_{unit}": high,
        f"min_{unit}": min(values),
        f"max_{unit}": max(values),
        "repeats": len(values),
    }


def record(name: str, results: dict[str, Any], script: str | None = None) -> None:
    """Write ``results``, command, machine and versions to ``results/NAME.json``.

    script: the file in benchmarks/ that was run, where it is not called ``name``.
    """
    # Paths of this machine are recorded by their last part only, also in overrides.
    words = (re.sub(r"(^|=)/(\S*/)?", r"\1", word) for word in sys.argv[1:])
    report = {
        "command": " ".join(["python", f"benchmarks/{script or name}.py", *words]),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": describe(),
        "versions": versions(),
    } | results
    out = RESULTS / f"{name}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    print(f"median [quartiles]; written to {out.relative_to(Path(__file__).parents[1])}")


def shown(values: dict[str, float], unit: str = "s", scale: float = 1.0, digits: int = 1) -> str:
    """A spread in one cell of a table."""
    median, low, high = (scale * values[f"{key}_{unit}"] for key in ("median", "q1", "q3"))
    return f"{median:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
