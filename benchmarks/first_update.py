"""From a fresh clone to the first update: the README's first command, in an empty folder.

    python benchmarks/first_update.py [--repeats N]

Each repeat clones this repository, makes a new virtual environment and an empty model cache, and
runs the command to the letter with pip's own cache of downloads. The clock stops at the first line
of metrics.jsonl, and the run is interrupted as with Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from common import record, shown, spread

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 180.0


def first_command() -> str:
    """The first command block of the README."""
    found = re.search(r"```bash\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def measure(folder: Path) -> dict[str, float]:
    """Seconds from the start of the clone to each stage."""
    began = time.monotonic()
    clone = folder / "rlforge"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    environment = os.environ | {"RLFORGE_CACHE": str(folder / "models")}
    for name in ("VIRTUAL_ENV", "PYTHONPATH"):
        environment.pop(name, None)
    reached: dict[str, float] = {}
    stages = {
        "installed": lambda: any(clone.glob("runs/*/*")) or (folder / "models").exists(),
        "run_started": lambda: any(clone.glob("runs/*/*/config.yaml")),
        "first_update": lambda: any(
            path.stat().st_size for path in clone.glob("runs/*/*/metrics.jsonl")
        ),
    }
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            ["bash", "-c", first_command()],
            cwd=clone,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while "first_update" not in reached:
            if process.poll() is not None:
                raise SystemExit((folder / "output.txt").read_text()[-2000:])
            for name, is_reached in stages.items():
                if name not in reached and is_reached():
                    reached[name] = time.monotonic() - began
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=120)
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description="Fresh clone to first update.")
    parser.add_argument("--repeats", type=int, default=3)
    rows = []
    for _ in range(parser.parse_args().repeats):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(Path(folder)))
            print({name: round(at, 1) for name, at in rows[-1].items()})
    stages = {name: spread([row[name] for row in rows]) for name in rows[0]}
    for name, values in stages.items():
        print(f"{name:14}{shown(values):>26} s")
    record("first_update", {"shell_command": first_command(), "since_clone_began": stages})
    if stages["first_update"]["median_s"] > LIMIT_S:
        raise SystemExit(f"the first update came after more than {LIMIT_S:.0f} s")


if __name__ == "__main__":
    main()
