"""``determinism=strict``: whole runs that end with the same digests, whatever happened to them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.harness.in_process import rlforge_here
from tests.harness.live_run import actor_pids, digests, rows, run, start, strict_arguments, wait_for

from rlforge.record.game_files import read_games


@pytest.fixture(scope="module")
def undisturbed(golden_run: Path) -> list[dict[str, Any]]:
    """The digests of a run in one process, which nothing disturbed."""
    lines = digests(golden_run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 5]
    assert sum(line["played"] for line in lines) == len(list(read_games(golden_run)))
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("cores", [4, 8])
def test_other_numbers_of_processes_give_the_same_to_the_last_bit(
    small_model: Path, undisturbed: list[dict[str, Any]], cores: int
) -> None:
    more = ("collector.num_collectors=2", "engine.num_engines=2", f"hardware.num_cpus={cores}")
    done = run(*strict_arguments(small_model, *more))
    assert done.returncode == 0, done.stderr
    assert digests() == undisturbed
    logs = {path.stem for path in Path("run/logs").glob("*.log")}
    assert ("state" in logs, "buffer" in logs) == (cores == 4, cores == 8)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_anywhere_and_resumed_a_run_ends_as_if_it_had_not_been(
    small_model: Path, undisturbed: list[dict[str, Any]]
) -> None:
    process = start(*strict_arguments(small_model))
    # An engine in the middle of games: Ray restarts it, and the run goes on.
    wait_for(lambda: len(rows("metrics.jsonl")) >= 1, process)
    os.kill(actor_pids("engine-0")[-1], signal.SIGKILL)
    wait_for(lambda: len(rows("metrics.jsonl")) >= 2, process)
    os.kill(actor_pids("learner")[-1], signal.SIGKILL)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1, stderr
    process = start("train", "--resume", "run")
    wait_for(lambda: len(rows("metrics.jsonl")) >= 4, process)
    children = psutil.Process(process.pid).children()
    (store,) = [child for child in children if child.name() == "gcs_server"]
    store.kill()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    error = json.loads((Path("run") / "summary.json").read_text())["error"]
    assert re.match("Ray's process gcs_server has ended: .*; go on with: rlforge train --re", error)
    assert stderr.splitlines()[-1] == f"rlforge: {error}"
    process = start("train", "--resume", "run")
    # All at once, while the last version is evaluated.
    wait_for((Path("run") / "checkpoints" / "step-5" / "state").is_dir, process)
    process.kill()
    process.communicate(timeout=60)
    resumed = run("train", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert digests() == undisturbed
    assert {row["step"] for row in rows("evals.jsonl")} == {0, 2, 4, 5}
    ids = [game.spec.game_id for game in read_games(Path("run"))]
    assert len(ids) == len(set(ids)) == sum(line["played"] for line in undisturbed)
    assert rlforge_here("verify", "run", "--all") == 0
    assert rlforge_here("train", "--resume", "run") == 1  # it is complete


@pytest.mark.slow
def test_a_run_that_is_made_longer_keeps_the_games_of_its_last_evaluation(golden_run: Path) -> None:
    shutil.copytree(golden_run, "run")
    evaluated, lines = rows("evals.jsonl"), digests()
    games = [game.spec.game_id for game in read_games(Path("run"))]
    assert rlforge_here("train", "--resume", "run", "--more", "1") == 0
    assert rows("evals.jsonl")[: len(evaluated)] == evaluated
    assert digests()[: len(lines)] == lines
    kept = [game.spec.game_id for game in read_games(Path("run"))]
    assert kept[: len(games)] == games
    assert len(kept) == sum(line["played"] for line in digests())
    assert rlforge_here("verify", "run") == 0
