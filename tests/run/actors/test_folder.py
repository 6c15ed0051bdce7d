"""The run directory from two nodes of one Ray cluster, which share nothing of it."""

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from rlforge.config.model import ModelConfig
from rlforge.config.schema import HardwareConfig, RunConfig
from rlforge.errors import CheckpointError, PolicyLoadError
from rlforge.record.files import create_run, open_log
from rlforge.run.actors.engine import EngineActor
from rlforge.run.actors.engine_client import RemoteEngine
from rlforge.run.actors.folder import FileServer, RunFolder, come_home, on_node, start_server
from rlforge.system.checkpoint import extend_checkpoint, read_manifest, write_checkpoint
from rlforge.system.output import KEPT_BYTES
from rlforge.types import Completion, PolicyRef, SamplingParams


@pytest.fixture(scope="module")
def other_node() -> Iterator[str]:
    """The id of a node that is not the driver's."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        node = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        yield node.node_id
    finally:
        ray.shutdown()
        cluster.shutdown()


class Process:
    """A process of a run, as engines and learners are."""

    def __init__(self, folder: RunFolder, name: str = "engine-0") -> None:
        self._log = open_log(name, folder.open())
        self._folder = folder

    def pid(self) -> int:
        return os.getpid()

    def path(self) -> Path:
        return self._folder.path

    def say(self, text: str) -> None:
        logging.getLogger("rlforge").info(text)

    def crash(self) -> None:
        faulthandler._sigsegv()  # type: ignore[attr-defined]

    async def fetch(self, path: str) -> str | None:
        policy = PolicyRef(uid="step-1", kind="checkpoint", path_or_name=path)
        return (await self._folder.policy(policy)).path_or_name

    def save(self, version: int, weights: bytes) -> str:
        name, root = f"step-{version}", self._folder.checkpoints
        write_checkpoint(root, name, fill({"weights": weights}), {"version": version})
        return self._folder.hand_in(name)

    def save_state(self, version: int) -> str:
        path = self._folder.checkpoints / f"step-{version}"
        extend_checkpoint(path, fill({"state/learner": b"optimizer"}))
        return self._folder.hand_in(path.name)

    def load(self, name: str) -> dict[str, bytes] | None:
        path = self._folder.checkpoint(name)
        return None if path is None else contents(path)


def fill(files: dict[str, bytes]) -> Any:
    def write(folder: Path) -> None:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    return write


def contents(path: Path) -> dict[str, bytes]:
    files = (file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


class Run:
    """A run with processes on the other node."""

    def __init__(self, run_dir: Path, node: str) -> None:
        create_run(run_dir)
        self.path, self.node = run_dir, node
        self.server, self.folder = start_server(run_dir)

    def process(self, name: str = "engine-0") -> Any:
        made: Any = ray.remote(Process)
        place = on_node(self.node)
        return made.options(num_cpus=0, scheduling_strategy=place).remote(self.folder, name)


@pytest.fixture
def run(other_node: str, tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "run", other_node)
    yield run
    ray.kill(run.server)


def eventually(holds: Any) -> None:
    deadline = time.monotonic() + 90  # what sends it home is a process that has to start
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_on_the_drivers_node_it_is_the_run_directory_itself(tmp_path: Path) -> None:
    folder = RunFolder(run_dir=str(tmp_path))
    write_checkpoint(folder.checkpoints, "step-1", fill({"weights": b"1"}), {"version": 1})
    assert folder.path == tmp_path
    assert folder.fetched("anywhere") is None
    assert folder.hand_in("step-1") == str(tmp_path / "checkpoints" / "step-1")
    assert folder.checkpoint("step-2") is None


@pytest.mark.ray
def test_a_node_has_each_policy_once_under_its_digest_without_a_learners_state(run: Run) -> None:
    first, second = run.path / "checkpoints" / "step-1", run.path / "checkpoints" / "step-2"
    fill({"weights": b"same weights", "state/learner.pt": b"large"})(first)
    fill({"weights": b"same weights"})(second)
    others = [run.process(f"engine-{index}") for index in range(2)]
    places = ray.get([one.fetch.remote(str(path)) for one in others for path in (first, second)])
    assert len(set(places)) == 1
    assert Path(places[0]) != first
    assert contents(Path(places[0])) == {"weights": b"same weights"}
    assert len(Path(places[0]).name) == len(hashlib.sha256().hexdigest())


@pytest.mark.ray
def test_a_policy_that_changed_travels_again_and_leaves_once_it_was_pruned(run: Run) -> None:
    path, process = run.path / "checkpoints" / "step-1", run.process()
    places = []
    for weights in (b"before", b"after"):
        shutil.rmtree(path, ignore_errors=True)
        fill({"weights": weights})(path)
        places.append(Path(ray.get(process.fetch.remote(str(path)))))
        assert contents(places[-1]) == {"weights": weights}
    shutil.rmtree(path)
    newer = path.with_name("step-2")
    fill({"weights": b"newer"})(newer)
    assert Path(ray.get(process.fetch.remote(str(newer)))).exists()
    assert not any(place.exists() for place in places)


@pytest.mark.ray
def test_a_policy_that_is_not_there_is_named(run: Run) -> None:
    with pytest.raises(CheckpointError, match=r"nothing: no such folder on the driver's node"):
        ray.get(run.process().fetch.remote(str(run.path / "nothing")))


@pytest.mark.ray
async def test_requests_for_a_policy_that_is_not_there_fail_and_others_are_answered(
    run: Run, small_model: Path
) -> None:
    config = RunConfig(model=ModelConfig(kind="hf", name=str(small_model)))
    made: Any = ray.remote(EngineActor)
    engine = made.options(
        num_cpus=0, max_concurrency=10, scheduling_strategy=on_node(run.node)
    ).remote(config, HardwareConfig(device="cpu", threads=1), "engine-0", run.folder)
    client = RemoteEngine([engine], "client", timeout_s=100, retries=0)
    params = SamplingParams(max_tokens=2, seed=0)
    gone = PolicyRef(uid="gone", kind="checkpoint", path_or_name=str(run.path / "nothing"))
    base = PolicyRef(uid="base", kind="checkpoint")
    answers = await asyncio.gather(
        *(client.generate([5, 7], params, policy) for policy in (gone, base)),
        return_exceptions=True,
    )
    assert isinstance(answers[0], PolicyLoadError)
    assert "nothing: no such folder on the driver's node" in str(answers[0])
    assert isinstance(answers[1], Completion)
    assert len(answers[1].token_ids) == 2
    ray.kill(engine)


@pytest.mark.ray
def test_checkpoints_of_a_learner_elsewhere_come_home(run: Run) -> None:
    learner = run.process("learner")
    place = Path(ray.get(learner.save.remote(3, b"weights")))
    assert place == run.path / "checkpoints" / "step-3"
    assert not read_manifest(place).has_state
    ray.get(learner.save_state.remote(3))
    assert read_manifest(place).has_state
    assert contents(place)["state/learner"] == b"optimizer"
    # A learner that is started on another node goes on from it.
    ray.kill(learner)
    process = run.process("learner")
    folder = ray.get(process.path.remote())
    assert contents(folder / "checkpoints" / "step-3") == contents(place)
    assert ray.get(process.load.remote("step-3")) == contents(place)
    assert ray.get(process.load.remote("step-4")) is None


@pytest.mark.ray
def test_a_learners_node_keeps_only_its_newest_checkpoints(run: Run) -> None:
    learner = run.process("learner")
    for version in range(1, 6):
        ray.get(learner.save.remote(version, b"weights"))
    folder = ray.get(learner.path.remote())
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-4", "step-5"]
    assert len(list((run.path / "checkpoints").iterdir())) == 5


@pytest.mark.ray
@pytest.mark.parametrize(
    ("file", "last"), [("engine-0.log", "the last words"), ("engine-0.crash.log", "in crash")]
)
def test_the_last_lines_of_a_process_that_ended_come_home(run: Run, file: str, last: str) -> None:
    process = run.process()
    if "crash" in file:
        process.crash.remote()
    else:
        ray.get(process.say.remote(last))
        os.kill(ray.get(process.pid.remote()), signal.SIGKILL)
    log = run.path / "logs" / file
    eventually(lambda: log.exists() and last in log.read_text())


def test_output_of_another_node_is_limited_here_and_goes_on_when_it_begins_anew_there(
    tmp_path: Path,
) -> None:
    logs = create_run(tmp_path).logs
    server, part = FileServer(str(tmp_path)), b"x" * (KEPT_BYTES // 4 - 1) + b"\n"
    for number in range(6):
        server.append("other", "engine-0.out", number * len(part), part)
    assert server.received("other") == {"engine-0.out": 6 * len(part)}
    server.append("other", "engine-0.out", 0, b"anew\n")
    assert server.received("other") == {"engine-0.out": len(b"anew\n")}
    server.append("other", "engine-0.out", 3, b"w\nlast\n")
    newest, before = (logs / "engine-0.out").read_bytes(), (logs / "engine-0.out.1").read_bytes()
    assert newest.endswith(b"x\nanew\nlast\n")
    assert len(newest) + len(before) <= 2 * KEPT_BYTES


@pytest.mark.ray
def test_an_agent_that_dies_sends_no_line_twice(run: Run) -> None:
    process = run.process()
    log = run.path / "logs" / "engine-0.log"
    for number in range(3):
        ray.get(process.say.remote(f"line {number}"))
        eventually(lambda number=number: log.exists() and f"line {number}" in log.read_text())
        (agent,) = ray.get(run.server.agents.remote()).values()
        ray.kill(agent, no_restart=False)
    ray.get(process.say.remote("the end"))
    eventually(lambda: "the end" in log.read_text())
    assert [log.read_text().count(f"line {number}") for number in range(3)] == [1, 1, 1]


@pytest.mark.ray
async def test_at_the_end_all_lines_are_home_and_nothing_stays_on_the_node(run: Run) -> None:
    process = run.process()
    await process.say.remote("the end")
    folder = await process.path.remote()
    await come_home(run.server)
    assert "the end" in (run.path / "logs" / "engine-0.log").read_text()
    assert not folder.exists()


@pytest.mark.ray
async def test_a_server_that_died_hides_no_other_error(run: Run) -> None:
    ray.kill(run.server)
    await come_home(run.server)
