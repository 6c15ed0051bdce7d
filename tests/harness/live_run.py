"""Commands in processes of their own, as a user starts them, and the files of their run.

They use no GPU: runs of many small processes, whose numbers are compared as the CPU computes them.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.configs import edit_config

from rlforge.record.digests import FILE, broken_at
from rlforge.record.files import read_jsonl

RUN = Path("run")
RLFORGE = [sys.executable, "-m", "rlforge"]
_SETTINGS = (
    *("model=hf", "model.prompt_template=board", "model.action_extraction=bracket"),
    *("model.lora.rank=4", "env.train.0.error_allowance=5", "collector.num_train_workers=24"),
    *("learner.total_updates=3", "learner.batch_size=32", "tracker.progress=plain"),
    *("eval.games=4", "eval.final_games=4", "eval.opponents=[random_legal]"),
)


def free_port() -> int:
    """A port of this machine on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment_without_ray() -> dict[str, str]:
    """This process's, without what a Ray that another test started in it has left there."""
    return {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}


def train_arguments(model: Path, *overrides: str) -> list[str]:
    """The arguments of a short training run of ``model`` into ``run``."""
    chosen = any(override.startswith("+experiment") for override in overrides)
    experiment = [] if chosen else ["+experiment=tictactoe_mirror"]
    return ["train", *experiment, *_SETTINGS, f"model.name={model}", f"run_dir={RUN}", *overrides]


#: Mirror self-play and earlier versions whose ratings decide who plays, a reward with a state, and
#: evaluations on the way.
STRICT = (
    *("determinism=strict", "hardware.threads=1", "pool=prioritized", "eval.every=2"),
    *("learner.total_updates=5", "learner.state_every=1", "collector.num_train_workers=24"),
    "rewards.final=[{name: win_draw_loss}, {name: role_advantage}]",
    "tracker.report=false",
)


def strict_arguments(model: Path, *overrides: str) -> list[str]:
    """The arguments of a training run that is the same again, to the last bit."""
    mine = {override.partition("=")[0] for override in overrides}
    kept = [setting for setting in STRICT if setting.partition("=")[0] not in mine]
    return train_arguments(model, *kept, *overrides)


def start(*arguments: str, **popen: Any) -> subprocess.Popen[str]:
    """A command that a test interferes with; popen: further arguments of ``Popen``."""
    pipe = subprocess.PIPE
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [*RLFORGE, *arguments], stdout=pipe, stderr=pipe, text=True, env=environment, **popen
    )


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, run to its end."""
    process = start(*arguments)
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until ``condition``; fails if ``process`` ends before that, or after four minutes."""
    deadline = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, f"the run ended early: {process.communicate()[1]}"
        assert time.monotonic() < deadline, "not within four minutes"
        time.sleep(0.1)


def ended_by_a_killed(actor: str, process: subprocess.Popen[str]) -> str:
    """The last line that a run prints which ends because ``actor`` was killed."""
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    last = stderr.splitlines()[-1]
    assert last.startswith(
        f"rlforge: {actor} was killed (signal 9), perhaps for want of memory: it had"
    )
    assert "Traceback" not in stderr
    return last


def rows(name: str) -> list[dict[str, Any]]:
    """The lines of a JSONL file of the run; none before the file exists."""
    path = RUN / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def digests(run_dir: Path = RUN) -> list[dict[str, Any]]:
    """Digests of a run after those of what computed, which follow from each other."""
    lines = read_jsonl(run_dir / FILE)
    assert broken_at(lines) is None
    return lines[1:]


def actor_pids(name: str) -> list[int]:
    """Processes that were actor ``name``, oldest first, from its log."""
    log = RUN / "logs" / f"{name}.log"
    text = log.read_text() if log.exists() else ""
    return [int(pid) for pid in re.findall(r"started as process (\d+)", text)]


def change_config(key: str, old: object, new: object) -> None:
    """Edit config.yaml of the run, as a user does before ``--resume``."""
    edit_config(RUN, f"{key}: {old}", f"{key}: {new}")
