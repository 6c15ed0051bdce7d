"""A run over nodes that share no file system: its parts find what they need, results come home."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.training.nodes import Nodes, require_namespaces

from rlforge.models.made import TINY
from rlforge.system.checkpoint import list_checkpoints, read_manifest
from rlforge.tracking.files import read_jsonl
from rlforge.tracking.game_files import read_games

RLFORGE = Path(sys.executable).with_name("rlforge")
SETTINGS = (
    *("+experiment=tictactoe_mirror", "hardware=cpu", "tracker.progress=plain"),
    *("learner.batch_size=32", "learner.state_every=1", "collector.num_train_workers=8"),
    *("eval.games=4", "eval.final_games=4", "eval.opponents=[random_legal]"),
)


@pytest.fixture
def nodes(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    require_namespaces()
    # In place of the tiny model, which takes a minute to make. Paths of sockets must be short.
    nodes = Nodes(tmp_path_factory.mktemp("n"), small_model, TINY.cache_name)
    try:
        yield nodes
    finally:
        nodes.close()


def train(nodes: Nodes, *overrides: str) -> subprocess.CompletedProcess[str]:
    """A run on the driver's node."""
    return subprocess.run(
        [RLFORGE, "train", *SETTINGS, f"hardware.ray_address={nodes.address}", *overrides],
        cwd=nodes.driver,
        env=nodes.environment("driver"),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_a_run_needs_no_file_system_that_its_nodes_share(nodes: Nodes) -> None:
    nodes.add("rollout", cores=2)
    nodes.add("learner", cores=1)
    done = train(nodes, "learner.total_updates=3", "run_dir=run")
    assert done.returncode == 0, done.stderr
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


def test_a_run_is_resumed_on_another_node_than_it_began_on(nodes: Nodes) -> None:
    nodes.add("first", cores=3)
    begun = train(nodes, "learner.total_updates=2", "run_dir=run")
    assert begun.returncode == 0, begun.stderr
    nodes.kill("first")
    nodes.add("second", cores=3)
    resumed = subprocess.run(
        [RLFORGE, "train", "--resume", "run", "--more", "1"],
        cwd=nodes.driver,
        env=nodes.environment("driver"),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    rows = read_jsonl(nodes.driver / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[-1]["logprob_gap_max"] < 1e-3
