"""A run that joins a Ray cluster, as it is started by hand."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.live_run import free_port, run, train_arguments

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of a cluster with room for one run: learner, engine and collector."""
    port = free_port()
    command = [
        Path(sys.executable).with_name("ray"),
        "start",
        "--head",
        "--block",
        f"--port={port}",
        "--num-cpus=3",
    ]
    command += ["--include-dashboard=false", "--disable-usage-stats", "--node-ip-address=127.0.0.1"]
    # Its own folder hides it from other Ray processes; paths of sockets must be short.
    folder = tempfile.mkdtemp(prefix="ray")
    command.append(f"--temp-dir={folder}")
    head = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            assert time.monotonic() < deadline
            assert head.poll() is None
            time.sleep(0.2)
    yield address
    head.terminate()
    head.wait(60)
    shutil.rmtree(folder)


def test_a_run_frees_the_cluster_and_one_without_room_is_refused(
    small_model: Path, cluster: str
) -> None:
    settings = ("hardware=cluster", "hardware.device=cpu", f"hardware.ray_address={cluster}")
    settings += ("hardware.learner_gpus=0", "hardware.engine_gpus=0", "learner.total_updates=2")
    first = run(*train_arguments(small_model, *settings))
    assert first.returncode == 0, first.stderr
    assert json.loads(Path("run/summary.json").read_text())["updates"] == 2

    # The first run's resources are free again, but too few for two engines.
    crowded = run(*train_arguments(small_model, *settings, "engine.num_engines=2"), "run_dir=other")
    assert crowded.returncode == 1
    assert "no room for 2 engines with a CPU core" in crowded.stderr
    assert "lower engine.num_engines" in crowded.stderr
    assert "Traceback" not in crowded.stderr
