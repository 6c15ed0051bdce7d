"""An elastic continuous run: its engines come and go with the nodes of a cluster."""

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.harness.live_run import wait_for
from tests.harness.nodes import Nodes, require_namespaces

from rlforge.config.schema import HardwareConfig
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.loop.policy_side import follow_engine
from rlforge.record.files import read_jsonl
from rlforge.run.actors.cluster import RunActors
from rlforge.run.lifecycle import RunContext
from rlforge.system.checkpoint import list_checkpoints, read_manifest

RLFORGE = Path(sys.executable).with_name("rlforge")


@pytest.fixture
def nodes(market_model):
    require_namespaces()
    with (  # paths of sockets must be short
        tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as folder,
        contextlib.closing(Nodes(Path(folder), market_model, "market")) as nodes,
    ):
        yield nodes


def test_a_run_knows_and_names_the_engines_that_join_and_leave():
    notes = []
    actors = RunActors({"engine-0": "e0", "engine-1": "e1"}, absent={"engine-1"})
    context = RunContext(
        config=ContinuousConfig(),
        hardware=HardwareConfig(elastic=True, ray_address="auto"),
        run_dir=Path("run"),
        actors=actors,
        note=notes.append,
        started=0.0,
    )
    follow_engine(context, "engine-0", "here")  # it was there from the start
    assert (list(actors.present("engine")), notes) == (["engine-0"], [])
    follow_engine(context, "engine-1", "here")
    follow_engine(context, "engine-0", "away")
    assert list(actors.present("engine")) == ["engine-1"]
    follow_engine(context, "engine-0", "gone")
    assert list(actors.present("engine")) == ["engine-1"]
    assert notes == [
        "engine-1 has joined",
        "engine-0 died and is restarted",
        "engine-0 is gone for good: see logs/engine-0.log",
    ]


@pytest.mark.slow
def test_an_elastic_continuous_run_uses_engines_that_join_and_goes_on_without_those_that_leave(
    nodes, small_market
):
    run = nodes.driver / "run"
    log = run / "logs" / "run.log"
    nodes.add("learner", cores=1)
    elastic = ("hardware.elastic=true", "engine.num_engines=2", "continuous.windows=null")
    elastic += ("continuous.compare_episodes=0", f"hardware.ray_address={nodes.address}")
    process = subprocess.Popen(
        [RLFORGE, "continuous", *small_market, *elastic, f"run_dir={run}"],
        cwd=nodes.driver,
        env=nodes.environment("driver"),
        stderr=subprocess.PIPE,
        text=True,
    )

    def wait_for_windows(number):
        wanted = len(read_jsonl(run / "windows.jsonl")) + number
        wait_for(lambda: len(read_jsonl(run / "windows.jsonl")) >= wanted, process)

    with process:
        wait_for(lambda: log.exists() and "starting the actors" in log.read_text(), process)
        nodes.add("first", cores=1)
        wait_for_windows(2)
        assert "has joined" not in log.read_text()
        nodes.add("second", cores=1)
        wait_for(lambda: "engine-1 has joined" in log.read_text(), process)
        wait_for_windows(2)
        nodes.kill("first")
        wait_for_windows(2)
        assert "engine-0 has joined" not in log.read_text()
        nodes.add("third", cores=1)
        wait_for(lambda: "engine-0 has joined" in log.read_text(), process)
        wait_for_windows(2)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=120)
    assert "Traceback" not in stderr
    assert "engine-0 died and is restarted" in stderr
    rows = read_jsonl(run / "windows.jsonl")
    assert [row["window"] for row in rows] == list(range(1, len(rows) + 1))
    assert all(row["deployment_success"] for row in rows)
    windows = [row["window_id"] for row in rows]
    metas = [read_manifest(path).meta for path in list_checkpoints(run / "checkpoints")]
    trained = [meta["window_id"] for meta in metas if meta["window_id"] is not None]
    assert trained[: len(windows)] == windows == sorted(set(windows))
    assert all(row["logprob_gap_max"] < 1e-4 for row in read_jsonl(run / "metrics.jsonl"))
