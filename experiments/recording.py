"""What every study leaves in experiments/NAME/: results.json, curves.svg and README.md."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlforge.system.hardware import describe, versions

ROOT = Path(__file__).resolve().parents[1]

Results = list[dict[str, Any]]


def write_study(
    name: str,
    command: str,
    results: Results,
    plot: Callable[[Results, Path], None],
    page: Callable[[str, dict[str, Any]], str],
) -> None:
    """Write ``results`` with command, machine and versions, their curves and their page."""
    out = ROOT / "experiments" / name
    out.mkdir(parents=True, exist_ok=True)
    record = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "hardware": describe(),
        "versions": versions(),
        "results": results,
    }
    (out / "results.json").write_text(json.dumps(record, indent=1) + "\n")
    plot(results, out / "curves.svg")
    (out / "README.md").write_text(page(name, record))


def recorded(name: str) -> Results:
    """The results on record; empty where there are none."""
    file = ROOT / "experiments" / name / "results.json"
    return json.loads(file.read_text())["results"] if file.is_file() else []


def heading(name: str, record: dict[str, Any]) -> list[str]:
    """The first lines of a study's page: its name, command, day, machine and versions."""
    return [
        f"# {name}",
        "",
        f"`{record['command']}`, {record['date']}, {record['hardware']['processor']}, "
        f"{record['hardware']['cores']} cores, no GPU, "
        + ", ".join(f"{package} {number}" for package, number in record["versions"].items())
        + ".",
        "",
    ]
