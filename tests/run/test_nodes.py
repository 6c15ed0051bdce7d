"""A run over nodes that share no file system: its parts find what they need, results come home."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import httpx
import pytest
from tests.harness.live_run import wait_for
from tests.harness.nodes import Nodes, require_namespaces, require_networks

from rlforge.buffer.batches import read_batch
from rlforge.models.made import TINY
from rlforge.record.files import read_jsonl
from rlforge.record.game_files import read_games
from rlforge.system import checkpoint
from rlforge.system.checkpoint import list_checkpoints, read_manifest

RLFORGE = Path(sys.executable).with_name("rlforge")
#: Settings of an elastic run that is long enough for nodes to come and go.
ELASTIC = ("hardware.elastic=true", "engine.num_engines=2", "collector.num_collectors=2")
ELASTIC += ("learner.total_updates=60",)


@pytest.fixture
def nodes(small_model: Path) -> Iterator[Nodes]:
    require_namespaces()
    with started(small_model) as nodes:
        yield nodes


@pytest.fixture
def networked_nodes(small_model: Path) -> Iterator[Nodes]:
    require_namespaces()
    require_networks()
    with started(small_model, networks=True) as nodes:
        yield nodes


@contextlib.contextmanager
def started(model: Path, *, networks: bool = False) -> Iterator[Nodes]:
    """The driver's node; ``model`` is in place of the tiny one, which takes a minute."""
    with (  # paths of sockets must be short
        tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as folder,
        contextlib.closing(Nodes(Path(folder), model, TINY.cache_name, networks=networks)) as nodes,
    ):
        yield nodes


def settings(nodes: Nodes) -> tuple[str, ...]:
    return (
        *("+experiment=tictactoe_mirror", "hardware=cpu", "tracker.progress=plain", "run_dir=run"),
        *("learner.batch_size=32", "learner.state_every=1", "collector.num_train_workers=8"),
        *("eval.games=4", "eval.final_games=4", "eval.opponents=[random_legal]"),
        f"hardware.ray_address={nodes.address}",
    )


def start(nodes: Nodes, *arguments: str) -> subprocess.Popen[str]:
    """``rlforge train`` on the driver's node."""
    command = [*nodes.inside("driver"), RLFORGE, "train", *arguments]
    place = {"cwd": nodes.driver, "env": nodes.environment("driver")}
    return subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, **place)


def start_where_the_learner_is_alone(nodes: Nodes, *arguments: str) -> subprocess.Popen[str]:
    """As ``start``, on a node for the learner; those that are added then have the other actors."""
    nodes.add("learner", cores=1)
    process = start(nodes, *arguments)
    log = nodes.driver / "run" / "logs" / "run.log"
    wait_for(lambda: log.exists() and "starting the actors" in log.read_text(), process)
    return process


def train(nodes: Nodes, *arguments: str) -> None:
    """As ``start``, to the end."""
    process = start(nodes, *arguments)
    _, stderr = process.communicate(timeout=250)
    crashes = nodes.driver.glob("run/logs/*.crash.log")
    assert process.returncode == 0, stderr + "".join(log.read_text() for log in crashes)


@pytest.mark.ray
def test_a_run_needs_no_file_system_that_its_nodes_share(nodes: Nodes) -> None:
    nodes.add("rollout", cores=2)
    nodes.add("learner", cores=1)
    train(nodes, *settings(nodes), "learner.total_updates=3")
    run = nodes.driver / "run"

    summary = json.loads((run / "summary.json").read_text())
    assert summary["updates"] == 3
    games = [record for record in read_games(run) if record.spec.purpose == "train"]
    assert len(games) == len({record.spec.game_id for record in games})
    assert len(games) >= summary["games"] > 0
    assert [row["step"] for row in read_jsonl(run / "metrics.jsonl")] == [1, 2, 3]
    checkpoints = list_checkpoints(run / "checkpoints")
    assert [path.name for path in checkpoints] == ["step-1", "step-2", "step-3"]
    assert all(read_manifest(path).has_state for path in checkpoints)
    for name in ("learner", "engine-0", "collector-0"):
        assert f"{name} started as process" in (run / "logs" / f"{name}.log").read_text()
    assert "the engine is loaded" in (run / "logs" / "engine-0.log").read_text()
    # Nothing of the run stays on the other nodes, and it left nothing where it does not belong.
    for name in ("rollout", "learner"):
        assert not list((nodes.cache(name) / "nodes").iterdir())


@pytest.mark.slow
def test_a_run_goes_on_elsewhere_when_the_node_of_its_games_is_lost(nodes: Nodes) -> None:
    for name, cores in (("learner", 1), ("first", 2), ("second", 2)):
        nodes.add(name, cores)
    with start(nodes, *settings(nodes), "learner.total_updates=12") as process:
        run = nodes.driver / "run"
        wait_for(lambda: len(read_jsonl(run / "metrics.jsonl")) >= 2, process)
        (lost,) = [name for name in ("first", "second") if nodes.logs(name, "engine-0.log")]
        nodes.kill(lost)
        _, stderr = process.communicate(timeout=250)
    assert process.returncode == 0, stderr
    assert "engine-0 died and is restarted" in stderr
    assert [row["step"] for row in read_jsonl(run / "metrics.jsonl")] == [*range(1, 13)]
    games = [record for record in read_games(run) if record.spec.purpose == "train"]
    assert len(games) == len({record.spec.game_id for record in games})
    log = (run / "logs" / "engine-0.log").read_text()
    assert log.count("engine-0 started as process") == 2


@pytest.mark.slow
def test_a_run_is_resumed_on_another_node_than_it_began_on(nodes: Nodes) -> None:
    nodes.add("first", cores=3)
    train(nodes, *settings(nodes), "learner.total_updates=2")
    nodes.kill("first")
    nodes.add("second", cores=3)
    train(nodes, "--resume", "run", "--more", "1")
    rows = read_jsonl(nodes.driver / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[-1]["logprob_gap_max"] < 1e-3


@pytest.mark.slow
def test_an_elastic_run_uses_nodes_that_join_and_goes_on_without_those_that_leave(
    nodes: Nodes,
) -> None:
    run = nodes.driver / "run"
    with start_where_the_learner_is_alone(nodes, *settings(nodes), *ELASTIC) as process:
        nodes.add("first", cores=2)
        wait_for(lambda: len(read_jsonl(run / "metrics.jsonl")) >= 2, process)
        log = run / "logs" / "run.log"
        assert "has joined" not in log.read_text()
        nodes.add("second", cores=2)
        added = time.monotonic()
        wait_for(lambda: log.read_text().count("has joined") == 2, process)
        assert time.monotonic() - added < 60
        done = len(read_jsonl(run / "metrics.jsonl"))
        nodes.kill("first")
        _, stderr = process.communicate(timeout=250)
    assert process.returncode == 0, stderr
    joined = ("engine-1 has joined", "collector-1 has joined")
    for line in (*joined, "collector-0 does not answer"):  # no node has room for it
        assert line in stderr
    assert done < 50
    assert [row["step"] for row in read_jsonl(run / "metrics.jsonl")] == [*range(1, 61)]
    games = [record for record in read_games(run) if record.spec.purpose == "train"]
    assert len(games) == len({record.spec.game_id for record in games})
    evaluations = read_jsonl(run / "evals.jsonl")
    assert {row["step"] for row in evaluations} == {0, 20, 40, 60}
    assert {row["games"] for row in evaluations} == {4}


@pytest.mark.slow
def test_a_full_disk_of_a_node_is_one_message_with_its_place(nodes: Nodes) -> None:
    few = (*settings(nodes), "learner.total_updates=3")
    process = start_where_the_learner_is_alone(nodes, *few)
    nodes.add("full", cores=2, disk="48k")
    _, stderr = process.communicate(timeout=250)
    assert process.returncode == 1
    lines = stderr.splitlines()
    [error] = [line for line in lines if line.startswith("rlforge: ")]
    assert "cannot keep" in error
    assert str(nodes.cache("full")) in error
    assert "No space left on device" in error
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_a_node_that_does_not_answer_holds_up_an_elastic_run_no_longer_than_ray_waits(
    nodes: Nodes,
) -> None:
    """As if the network to it were cut; when it is back, it has no part in the run."""
    run, given = nodes.driver / "run", (*settings(nodes), *ELASTIC, "buffer.max_staleness=1")
    with start_where_the_learner_is_alone(nodes, *given) as process:
        for name in ("first", "second"):
            nodes.add(name, cores=2)
        log = run / "logs" / "run.log"
        wait_for(lambda: "has joined" in log.read_text(), process)
        nodes.signal("first", signal.SIGSTOP)
        _, stderr = process.communicate(timeout=300)
        nodes.signal("first", signal.SIGCONT)
    assert process.returncode == 0, stderr
    check_games_of_one_update_each(run, updates=60)


def check_games_of_one_update_each(run: Path, updates: int) -> None:
    """All updates are there, none learned from stale games, and no game is there twice."""
    rows = read_jsonl(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [*range(1, updates + 1)]
    # Samples age by the updates that make a version: one without signal makes none.
    stepped = [row["step"] for row in rows if not row["skipped_no_signal"]]
    batches = [read_batch(path).samples for path in sorted(run.glob("batches/*.parquet"))]
    assert len(batches) == updates
    games = [record for record in read_games(run) if record.spec.purpose == "train"]
    assert len(games) == len({record.spec.game_id for record in games})
    # Of a game's turns some may be drawn, and those of its newest version dropped later.
    newest = {
        record.spec.game_id: max(version_of(turn.completion.policy_uid) for turn in record.turns)
        for record in games
        if record.error is None
    }
    for number, samples in enumerate(batches, 1):
        version = min(newest[sample.origin] for sample in samples)
        assert sum(version < step < number for step in stepped) <= 1, (number, version)


def version_of(uid: str) -> int:
    return int(uid.removeprefix("step-"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("until", ["the end", "its node is given up", "15 s later"])
def test_a_cut_network_costs_an_elastic_run_the_games_under_way_behind_it_and_no_other(
    networked_nodes: Nodes, until: str
) -> None:
    nodes, run = networked_nodes, networked_nodes.driver / "run"
    given = (*settings(nodes), *ELASTIC, "buffer.max_staleness=1")
    with start_where_the_learner_is_alone(nodes, *given) as process:
        for name in ("first", "second"):
            nodes.add(name, cores=2)
        log = run / "logs" / "run.log"
        wait_for(lambda: "has joined" in log.read_text(), process)
        nodes.cut("first")
        if until == "its node is given up":
            wait_for(lambda: "is absent" in log.read_text(), process)
            nodes.mend("first")
        elif until == "15 s later":
            time.sleep(15)
            nodes.mend("first")
        _, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    if until == "15 s later":  # its process goes on, whether connections outlive the cut or not
        assert "died" not in stderr
    else:
        assert "collector-0 does not answer" in stderr
    check_games_of_one_update_each(run, updates=60)
    # Games are numbered as they begin. One that was lost is played again, as NUMBER~1.
    games = [record for record in read_games(run) if record.spec.purpose == "train"]
    numbers = [record.spec.game_id.partition("~")[0] for record in games if record.error is None]
    assert len(numbers) == len(set(numbers))
    under_way_at_the_end = 2 * 8  # two collectors with eight workers each
    begun = 1 + int(max(numbers).rpartition("-")[2])
    assert begun - len(numbers) <= under_way_at_the_end


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_slow_network_slows_a_run_down_and_changes_nothing_else(networked_nodes: Nodes) -> None:
    nodes, run = networked_nodes, networked_nodes.driver / "run"
    few = (*settings(nodes), "learner.total_updates=4", "buffer.max_staleness=1")
    with start_where_the_learner_is_alone(nodes, *few) as process:
        nodes.add("games", cores=2)
        nodes.slow_down("games", "1mbit")
        _, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    assert "died" not in stderr
    check_games_of_one_update_each(run, updates=4)


@pytest.mark.slow
def test_after_the_node_of_the_learner_is_lost_a_run_resumes_from_what_it_had_sent(
    nodes: Nodes,
) -> None:
    run = nodes.driver / "run"
    long = (*settings(nodes), "learner.total_updates=30")
    with start_where_the_learner_is_alone(nodes, *long) as process:
        nodes.add("games", cores=2)
        wait_for(lambda: len(read_jsonl(run / "metrics.jsonl")) >= 3, process)
        nodes.kill("learner")
        _, stderr = process.communicate(timeout=250)
    assert process.returncode == 1
    assert "rlforge: learner " in stderr
    assert "rlforge train --resume" in stderr
    newest = checkpoint.latest_checkpoint(run / "checkpoints", with_state=True)
    assert newest is not None
    nodes.add("another", cores=1)
    train(nodes, "--resume", "run")
    rows = read_jsonl(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [*range(1, 31)]
    assert rows[checkpoint.checkpoint_version(newest)]["logprob_gap_max"] < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["engine-0", "collector-0", "learner", "pool", "buffer", "tracker"]
)
def test_a_killed_process_is_restarted_or_ends_the_run_with_its_name(
    nodes: Nodes, kind: str
) -> None:
    run = nodes.driver / "run"
    nodes.add("all", cores=3)
    with start(nodes, *settings(nodes), "learner.total_updates=10") as process:
        wait_for(lambda: len(read_jsonl(run / "metrics.jsonl")) >= 2, process)
        text = (run / "logs" / f"{kind}.log").read_text()
        os.kill(int(re.findall(r"started as process (\d+)", text)[-1]), signal.SIGKILL)
        _, stderr = process.communicate(timeout=250)
    assert "Traceback" not in stderr
    if kind in ("engine-0", "collector-0"):
        assert process.returncode == 0, stderr
        assert f"{kind} died and is restarted" in stderr
    else:
        assert process.returncode == 1
        assert f"rlforge: {kind} was killed (signal 9)" in stderr
        train(nodes, "--resume", "run")
    assert [row["step"] for row in read_jsonl(run / "metrics.jsonl")] == [*range(1, 11)]
    games = [record for record in read_games(run) if record.spec.purpose == "train"]
    assert len(games) == len({record.spec.game_id for record in games})


@pytest.mark.slow
def test_an_elastic_service_answers_with_the_nodes_that_are_there(nodes: Nodes) -> None:
    nodes.add("first", cores=1)
    command = [RLFORGE, "serve", "model=tiny", "hardware=cpu", "serve.port=0", *ELASTIC[:2]]
    command += ["serve.state_dir=state", f"hardware.ray_address={nodes.address}"]
    place = {"cwd": nodes.driver, "env": nodes.environment("driver")}
    process = subprocess.Popen(command, stderr=PIPE, text=True, **place)
    assert process.stderr is not None
    url = next(found[0] for line in process.stderr if (found := re.search(r"http\S+/v1", line)))

    def answers(number: int) -> list[int]:
        asked = {"model": "run", "prompt": "tak", "max_tokens": 2}
        return [
            httpx.post(f"{url}/completions", json=asked, timeout=60).status_code
            for _ in range(number)
        ]

    assert answers(2) == [200, 200]
    nodes.add("second", cores=1)
    log = nodes.driver / "state" / "logs" / "engine-1.log"
    wait_for(lambda: log.exists() and "the engine is loaded" in log.read_text(), process)
    nodes.kill("first")
    assert answers(5) == [200] * 5
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stderr.endswith("rlforge: interrupted as it served; the service has stopped\n")
