"""The buffers of benchmarks/buffer.py stay equally full; unstable-rl's is left out where absent."""

import importlib
import subprocess
import sys

import pytest

#: A package laid out as unstable-rl is, with a buffer of a few lines.
STAND_IN = {
    "unstable/__init__.py": "raise ImportError('vLLM is not installed')",
    "unstable/_types.py": (
        "from types import SimpleNamespace\n"
        "def PlayerTrajectory(**fields): return SimpleNamespace(**fields)\n"
    ),
    "unstable/buffers.py": """
import logging, random
from types import SimpleNamespace

class StepBuffer:
    def __init__(self, max_buffer_size, tracker, **transformations):
        ray.get(tracker.get_train_dir.remote()), ray.get(tracker.get_log_dir.remote())
        self.logger = logging.getLogger("step_buffer")
        self.most, self.steps = max_buffer_size, []

    def add_player_trajectory(self, trajectory, env_id):
        self.steps += trajectory.obs
        random.shuffle(self.steps)
        del self.steps[self.most:]

    def get_batch(self, n):
        batch, self.steps = self.steps[:n], self.steps[n:]
        write_training_data_to_file(batch=batch, filename="batch.csv")

    def size(self):
        return len(self.steps)

StepBuffer.__ray_metadata__ = SimpleNamespace(modified_class=StepBuffer)
""",
    "unstable_rl-0.2.2.dist-info/METADATA": "Name: unstable-rl\nVersion: 0.2.2\n",
}


@pytest.fixture
def buffer(monkeypatch):
    module = importlib.import_module("buffer")
    for name, value in {"STORED": 200, "BATCH": 16, "ADDS": 2, "DRAWS": 2}.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_every_buffer_adds_and_draws(buffer):
    operations = buffer.measure(None)
    assert list(operations) == ["add", "draw", "draw_new_version"]
    for by_who in operations.values():
        assert list(by_who) == ["rlforge", "list", "list_bare"]
        assert all(values["min_s"] > 0 for values in by_who.values())


def test_without_unstable_rl_there_is_no_peer(buffer):
    peer = buffer.Peer(sys.executable)
    assert peer.version is None


def test_the_peer_is_driven_in_turn_and_times_itself(buffer, tmp_path, monkeypatch):
    for name, text in STAND_IN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    peer = buffer.Peer(sys.executable)
    operations = buffer.measure(peer)
    peer.close()
    assert peer.version == "0.2.2"
    for by_who in operations.values():
        assert list(by_who) == ["rlforge", "unstable_rl", "list", "list_bare"]
        assert by_who["unstable_rl"]["min_s"] > 0


def test_an_absent_interpreter_is_named_before_anything_starts(on_path):
    command = [sys.executable, str(on_path / "buffer.py"), "--peers", "/no/python"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.endswith("--peers /no/python: no such interpreter\n")
