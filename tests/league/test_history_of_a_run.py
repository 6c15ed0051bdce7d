"""A whole run whose opponents are spread over it: their checkpoints stay, also after a resume."""

import json
from pathlib import Path

import pytest
from tests.harness.live_run import train_arguments

from rlforge.record.game_files import read_games
from rlforge.system.checkpoint import list_checkpoints


def active_versions() -> set[str]:
    entries = json.loads(Path("run/pool.json").read_text())["entries"]
    return {entry["uid"] for entry in entries if entry["active"] and entry["role"] == "learner"}


@pytest.mark.slow
def test_old_opponents_play_after_many_updates_and_a_resume(small_model, in_process):
    done = in_process.rlforge_here(
        *train_arguments(
            small_model,
            "pool=fictitious",
            "pool.max_active_lora=3",
            "pool.keep_every=2",
            "learner.total_updates=5",
            "learner.batch_size=8",
            "tracker.report=false",
            "eval.games=2",
            "eval.final_games=2",
            "learner.keep_checkpoints=0",
            "engine.max_loras=2",
        )
    )
    assert done == 0
    assert active_versions() == {"step-0", "step-2", "step-5"}
    saved = {path.name for path in list_checkpoints(Path("run/checkpoints"))}
    assert saved >= {"step-2", "step-5"}
    assert in_process.rlforge_here("train", "--resume", "run", "--more", "3") == 0
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
