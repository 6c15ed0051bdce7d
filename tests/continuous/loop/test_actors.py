"""Whole runs over Ray: several engines and learners, and processes that die."""

import json
import os
import signal

import psutil
import pytest
import ray
from tests.harness.live_run import (
    RUN,
    actor_pids,
    change_config,
    ended_by_a_killed,
    rows,
    run,
    start,
    wait_for,
)

from rlforge.continuous.loop.journal import Journal
from rlforge.continuous.loop.run import ContinuousRun
from rlforge.preflight.plan import make_plan, to_json
from rlforge.run.lifecycle import execute
from rlforge.system.checkpoint import list_checkpoints, read_manifest
from rlforge.system.hardware import Machine


def endless(small_market, *overrides):
    changes = ("continuous.windows=null", "continuous.compare_episodes=0", f"run_dir={RUN}")
    return ["continuous", *small_market, *changes, *overrides]


def wait_for_windows(number, process):
    wanted = len(rows("windows.jsonl")) + number
    wait_for(lambda: len(rows("windows.jsonl")) >= wanted, process)


def trained_windows():
    metas = [read_manifest(path).meta for path in list_checkpoints(RUN / "checkpoints")]
    return [meta["window_id"] for meta in metas if meta["window_id"] is not None]


@pytest.mark.slow
def test_a_run_with_two_engines_and_two_learners_starts_the_actors_of_its_graph(
    make_config, own_home
):
    config = make_config("engine.num_engines=2", "learner.num_learners=2")
    plan = make_plan(config, Machine(cpus=2, gpus=0))
    listed = set()

    class Watched(ContinuousRun):
        async def run(self):
            listed.update(ray.util.list_named_actors())
            return await super().run()

    RUN.mkdir()
    (RUN / "command.txt").write_text("rlforge continuous\n")
    outcome = execute(plan, RUN.absolute(), controller=Watched, resume=False)
    printed = {name for node in json.loads(to_json(plan))["nodes"] for name in node["actor_names"]}
    assert listed == printed == {"engine-0", "engine-1", "learner", "learner-1", "tracker"}
    assert (outcome.summary["windows"], outcome.interrupted) == (2, False)
    assert [row["version"] for row in rows("windows.jsonl")] == ["step-1", "step-2"]
    assert all(row["logprob_gap_max"] < 1e-4 for row in rows("metrics.jsonl"))


@pytest.mark.ray
def test_a_run_killed_with_sigkill_resumes_and_trains_once_on_each_window(small_market, in_process):
    process = start(*endless(small_market))
    wait_for_windows(1, process)
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    process.kill()
    process.communicate()
    journal = Journal(RUN / "journal.sqlite")
    done = journal.done()
    journal.close()
    change_config("windows", "null", done + 2)
    assert in_process.rlforge_here("continuous", "--resume", str(RUN)) == 0
    found = rows("windows.jsonl")
    assert [row["window"] for row in found] == list(range(1, done + 3))
    windows = [row["window_id"] for row in found]
    assert trained_windows() == windows == sorted(set(windows))


@pytest.mark.slow
def test_a_run_outlives_an_engine_and_a_dead_learner_ends_it_with_its_cause(small_market):
    process = start(*endless(small_market))
    wait_for_windows(1, process)
    os.kill(actor_pids("engine-0")[-1], signal.SIGKILL)
    wait_for(lambda: len(actor_pids("engine-0")) == 2, process)
    wait_for_windows(2, process)

    os.kill(actor_pids("learner")[-1], signal.SIGKILL)
    assert "rlforge continuous --resume" in ended_by_a_killed("learner", process)
    assert json.loads((RUN / "summary.json").read_text())["status"] == "failed"

    change_config("windows", "null", len(rows("windows.jsonl")) + 1)
    resumed = run("continuous", "--resume", str(RUN))
    assert resumed.returncode == 0, resumed.stderr
    windows = [row["window_id"] for row in rows("windows.jsonl")]
    assert trained_windows() == windows == sorted(set(windows))
