"""Runs never share a card unasked. The cards are those of a stand-in, the locks are real."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlforge.config.schema import HardwareConfig
from rlforge.errors import RunError
from rlforge.system import gpu_claims as gpuclaims
from rlforge.system.gpu_claims import claimed, visible

THREE = ("0, GPU-5f10, A, 24000, 8.9", "1, GPU-5f22, B, 24000, 8.9", "2, GPU-a331, A, 48000, 8.9")
HOLD = """
import sys
from pathlib import Path
from rlforge import gpuclaims
from rlforge.config.schema import HardwareConfig
from rlforge.system.gpu_claims import claimed
gpuclaims.PLACE = Path(sys.argv[1])
with claimed(HardwareConfig(device="cuda", num_gpus=3), 2):
    print("held", flush=True)
    sys.stdin.read()
"""
COMMAND = """
import sys
from pathlib import Path
from rlforge import gpuclaims
from rlforge.cli import main
gpuclaims.PLACE = Path(sys.argv.pop(1))
main()
"""


@pytest.fixture(autouse=True)
def own_claims(tmp_path, monkeypatch):
    monkeypatch.setattr(gpuclaims, "PLACE", tmp_path)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


def profile(**fields) -> HardwareConfig:
    return HardwareConfig(**{"name": "gpu_1", "device": "cuda", "num_gpus": 3} | fields)


def claim(stack: ExitStack, count: int = 1, **fields) -> tuple[str | None, int | None]:
    """What a run would see in the block, which stays open."""
    hardware = stack.enter_context(claimed(profile(**fields), count))
    return os.environ.get("CUDA_VISIBLE_DEVICES"), hardware.num_gpus


def test_runs_beside_each_other_get_cards_of_their_own_until_none_is_left(cards):
    cards(*THREE)
    with ExitStack() as stack:
        assert claim(stack) == ("0", 1)
        assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        # Another process was started with all cards visible.
        os.environ.pop("CUDA_VISIBLE_DEVICES")
        assert claim(stack, 2) == ("1,2", 2)
        os.environ.pop("CUDA_VISIBLE_DEVICES")
        with pytest.raises(RunError) as caught:
            claim(stack)
    message = str(caught.value)
    assert "hardware=gpu_1 wants 1 GPU and none of 3 are free" in message
    assert f"GPU 2 (A) is in use by process {os.getpid()} on " in message
    assert "hardware.exclusive=false" in message


def test_cards_are_free_again_and_visible_after_the_block(cards, monkeypatch):
    cards(*THREE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    for _ in range(2):
        with ExitStack() as stack:
            assert claim(stack) == ("2", 1)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,1"
        assert "CUDA_DEVICE_ORDER" not in os.environ


def test_a_killed_run_holds_nothing(cards, tmp_path):
    cards(*THREE)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        with ExitStack() as stack, pytest.raises(RunError, match="1 of 3 is free") as caught:
            claim(stack, 2)
        assert f"process {process.pid} on" in str(caught.value)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with ExitStack() as stack:
        assert claim(stack, 3) == ("0,1,2", 3)


def test_what_is_refused_keeps_no_card(cards):
    cards(*THREE)
    with ExitStack() as stack:
        with pytest.raises(RunError):
            claim(stack, 4)
        assert claim(stack, 3) == ("0,1,2", 3)


def test_jobs_with_temporary_folders_of_their_own_see_each_others_claims(
    cards, tmp_path, monkeypatch
):
    cards(THREE[0])
    with ExitStack() as stack:
        (tmp_path / "job-1").mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / "job-1"))
        monkeypatch.setattr(tempfile, "tempdir", None)
        assert claim(stack) == ("0", 1)
        os.environ.pop("CUDA_VISIBLE_DEVICES")
        (tmp_path / "job-2").mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / "job-2"))
        monkeypatch.setattr(tempfile, "tempdir", None)
        with pytest.raises(RunError, match="none of 1 are free"):
            claim(stack)


def test_locks_lie_in_a_private_folder_of_ones_own(cards, tmp_path):
    cards(THREE[0])
    folder = tmp_path / f"rlforge-gpus-{os.getuid()}"
    folder.mkdir(mode=0o755)
    with ExitStack() as stack:
        claim(stack)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert [file.name for file in folder.iterdir()] == ["GPU-5f10.lock"]


def test_a_folder_that_someone_else_put_there_is_refused(cards, tmp_path):
    cards(THREE[0])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"rlforge-gpus-{os.getuid()}").symlink_to(elsewhere)
    with ExitStack() as stack, pytest.raises(RunError, match="is no folder of yours"):
        claim(stack)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    "fields", [{"exclusive": False}, {"device": "cpu"}, {"ray_address": "host:1"}]
)
def test_nothing_is_claimed_where_cards_are_shared_or_not_this_machines(cards, fields):
    cards(*THREE)
    with ExitStack() as stack:
        claim(stack, 3)
        assert claim(stack, 3, **fields) == ("0,1,2", 3)


def test_cards_are_called_as_the_user_calls_them(cards, monkeypatch):
    cards(*THREE)
    assert list(visible()) == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a3, 1")
    assert {entry: gpu.index for entry, gpu in visible().items()} == {"GPU-a3": 2, "1": 1}
    # A part of a card cannot be told from others.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7f")
    assert visible() == {}
    with ExitStack() as stack:
        assert claim(stack) == ("MIG-7f", 3)


def test_a_second_run_ends_with_one_message_and_leaves_nothing(cards, tmp_path):
    cards(THREE[0])
    rlforge = [sys.executable, "-c", COMMAND, str(tmp_path)]
    with ExitStack() as stack:
        claim(stack)
        done = subprocess.run(
            [*rlforge, "train", "+experiment=simpletak_mirror", "hardware=gpu_1"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert f"GPU 0 (A) is in use by process {os.getpid()}" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not Path("runs").exists()
