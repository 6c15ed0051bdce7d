"""What users' code prints is in the run directory, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.live_run import run, train_arguments

from rlforge.system.output import KEPT_BYTES

LOUD = """import subprocess
import sys
from dataclasses import dataclass

from rlforge.run.observers import Observer

print("imported")


def say(who):
    print(f"{who} to stdout")
    print(f"{who} to stderr", file=sys.stderr)


class Player:
    def __init__(self, env, rng):
        subprocess.run(["echo", "a child of the player"], check=True)

    def act(self, view):
        say("player")
        return view.legal_actions[0]


@dataclass
class Reward:
    def __call__(self, rewards, env_id):
        say("reward")
        print("x" * 1_000_000)
        return rewards


class Observed(Observer):
    def __init__(self, context):
        say("observer")

    async def updated(self, update):
        say("update")
"""
CHOSEN = (
    *("pool.mode=fixed", "pool.fixed_opponents=[loud:Player]", "learner.total_updates=1"),
    *("rewards.final=[{name: 'loud:Reward'}]", "eval.opponents=[]"),
)


@pytest.mark.ray
def test_what_users_code_prints_is_in_the_run_directory_and_limited(small_model: Path) -> None:
    Path("loud.py").write_text(LOUD)
    package = Path("loud-1.dist-info")
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[rlforge.observers]\nloud = loud:Observed\n")
    done = run(*train_arguments(small_model, *CHOSEN))
    assert done.returncode == 0, done.stderr
    # The players are tried before there is a directory.
    *tried, result = done.stdout.splitlines()
    assert (set(tried), result) == ({"a child of the player"}, str(Path("run").absolute()))
    begun = done.stderr.partition("run directory")[2]
    assert not [text for text in ("to stdout", "to stderr", "xxx") if text in begun]
    logs = Path("run/logs")
    printed = (logs / "run.out").read_text().splitlines()
    assert printed[:2] == ["observer to stdout", "observer to stderr"]
    assert "update to stderr" in printed
    by_player = (logs / "collector-0.out").read_text()
    for text in ("imported", "a child of the player", "player to stdout", "player to stderr"):
        assert text in by_player, text
    # Rewards are shaped in the process of tracker, pool and buffer, or in one of these.
    loud = [file for file in logs.glob("*.out.1") if "reward to stderr" in file.read_text()]
    assert len(loud) == 1
    assert (logs / loud[0].stem).is_file()
    assert max(file.stat().st_size for file in logs.iterdir()) <= 1.1 * KEPT_BYTES
