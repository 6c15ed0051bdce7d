"""A whole run whose opponents are spread over it: their checkpoints stay, also after a resume."""

import json
from pathlib import Path

import pytest
from tests.harness.live_run import run, train_arguments

from rlforge.system.checkpoint import list_checkpoints
from rlforge.tracking.game_files import read_games


def active_versions() -> set[str]:
    entries = json.loads(Path("run/pool.json").read_text())["entries"]
    return {entry["uid"] for entry in entries if entry["active"] and entry["role"] == "learner"}


@pytest.mark.timeout(900)  # several processes import torch, on a machine with others
@pytest.mark.slow  # tests/league/test_pool.py has its parts alone
def test_old_opponents_play_after_many_updates_and_a_resume(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(
        *train_arguments(
            small_model,
            "pool=fictitious",
            "pool.max_active_lora=3",
            "pool.keep_every=2",
            "learner.total_updates=5",
            "learner.keep_checkpoints=0",
            "engine.max_loras=2",
        )
    )
    assert done.returncode == 0, done.stderr
    assert active_versions() == {"step-0", "step-2", "step-5"}
    saved = {path.name for path in list_checkpoints(Path("run/checkpoints"))}
    assert saved >= {"step-2", "step-5"}
    more = run("train", "--resume", "run", "--more", "3")
    assert more.returncode == 0, more.stderr
    assert active_versions() == {"step-0", "step-2", "step-8"}
    games = [game for game in read_games(Path("run")) if game.spec.purpose == "train"]
    assert [game.error for game in games if game.error is not None] == []
    distances = [
        max(versions) - min(versions)
        for game in games
        for versions in [{seat.policy.version for seat in game.spec.seats}]
    ]
    assert max(distances) >= 5
    assert min(distances) == 0
