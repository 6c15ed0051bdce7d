"""What every study leaves in experiments/NAME/: results.json, curves.svg and README.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlforge.system.hardware import describe, versions

ROOT = Path(__file__).resolve().parents[1]

Results = list[dict[str, Any]]


def rlforge(
    arguments: Sequence[str], run_dir: Path | None = None, cache: Path | None = None
) -> float:
    """Run the command ``rlforge``; the seconds that it takes.

    run_dir: where a command that starts a run puts it. cache: the folder of models, in place of the
    user's.
    """
    own = {} if cache is None else {"RLFORGE_CACHE": str(cache)}
    program = str(Path(sys.executable).with_name("rlforge"))
    place = [] if run_dir is None else [f"run_dir={run_dir}"]
    line = [program, *arguments, *place]
    started = time.monotonic()
    subprocess.run(line, check=True, env=os.environ | own, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def write_study(
    name: str,
    command: str,
    results: Results,
    plot: Callable[[Results], str | None],
    page: Callable[[str, dict[str, Any]], str],
) -> None:
    """Write ``results`` with command, curves and page, each with its day, machine and versions.

    Results that were recorded before keep theirs.
    """
    out = ROOT / "experiments" / name
    out.mkdir(parents=True, exist_ok=True)
    origin = {"date": time.strftime("%Y-%m-%d"), "hardware": describe(), "versions": versions()}
    results = [{**origin, **result} for result in results]
    record = {"command": command, "results": results}
    (out / "results.json").write_text(json.dumps(record, indent=1) + "\n")
    (out / "curves.svg").write_text(plot(results) or "")
    (out / "README.md").write_text(page(name, record))


def recorded(name: str) -> Results:
    """The results on record; empty where there are none."""
    file = ROOT / "experiments" / name / "results.json"
    if not file.is_file():
        return []
    record = json.loads(file.read_text())
    of_all = {key: record[key] for key in ("date", "hardware", "versions") if key in record}
    return [{**of_all, **result} for result in record["results"]]


def heading(name: str, record: dict[str, Any]) -> list[str]:
    """The first lines of a study's page: its name, command, and of each seed day and machine."""
    seeds: dict[str, list[str]] = {}
    for result in record["results"]:
        packages = ", ".join(" ".join(each) for each in result["versions"].items())
        hardware = result["hardware"]
        origin = f"{result['date']}, {hardware['processor']}, {hardware['cores']} cores, no GPU"
        seeds.setdefault(f"{origin}, {packages}", []).append(str(result["seed"]))
    lines = [
        f"seed {', '.join(dict.fromkeys(own))}: {origin}." if len(seeds) > 1 else f"{origin}."
        for origin, own in seeds.items()
    ]
    return [f"# {name}", "", f"`{record['command']}`", "", *(f"- {line}" for line in lines), ""]
