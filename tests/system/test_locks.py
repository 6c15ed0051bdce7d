"""Locks on run directories and GPUs against a real second process; the GPUs are stand-ins."""

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rlforge.cli import main
from rlforge.config.schema import HardwareConfig
from rlforge.errors import RunError
from rlforge.system import locks
from rlforge.system.locks import RunLock, claim_gpus

HOLD = """
import sys
from pathlib import Path
from rlforge.config.schema import HardwareConfig
from rlforge.system import locks
folder = locks.GPU_LOCKS = Path(sys.argv[1])
gpus = HardwareConfig(device="cuda", num_gpus=3)
with locks.claim_gpus(gpus, 2) if sys.argv[2:] else locks.RunLock(folder):
    print("held", flush=True)
    sys.stdin.read()
print("released", flush=True)
"""


@contextmanager
def holder(folder, *of_gpus):
    """Another process that holds the lock of a run, or two GPUs, until its input closes."""
    command, pipe = [sys.executable, "-c", HOLD, str(folder), *of_gpus], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_run_is_told_the_holder_until_it_releases_the_directory(tmp_path):
    with holder(tmp_path) as process:
        with pytest.raises(RunError) as caught:
            RunLock(tmp_path).acquire()
        message = str(caught.value)
        assert f"{tmp_path} is in use by process {process.pid} on {socket.gethostname()}" in message
        assert "then resume" in message
        process.stdin.close()
        assert process.stdout.readline() == "released\n"
        with RunLock(tmp_path):
            assert str(os.getpid()) in (tmp_path / "run.lock").read_text()


def test_a_holder_that_has_not_written_its_name_yet_is_still_a_holder(tmp_path):
    with RunLock(tmp_path):
        (tmp_path / "run.lock").write_text("")
        with pytest.raises(RunError, match=r"in use by another process"):
            RunLock(tmp_path).acquire()


def test_an_error_inside_releases_the_lock(tmp_path):
    with pytest.raises(ZeroDivisionError), RunLock(tmp_path):
        raise ZeroDivisionError
    with RunLock(tmp_path), pytest.raises(RunError, match=rf"process {os.getpid()} on"):
        RunLock(tmp_path).acquire()
    with RunLock(tmp_path):
        pass


def test_a_failed_acquire_leaves_no_open_file(tmp_path):
    lock = RunLock(tmp_path)
    with lock:
        before = len(os.listdir("/proc/self/fd"))
        for again in (lock, RunLock(tmp_path)):
            with pytest.raises(RunError):
                again.acquire()
        assert len(os.listdir("/proc/self/fd")) == before


def test_readers_see_whether_a_process_holds_the_directory(tmp_path):
    assert RunLock(tmp_path).held() is None
    RunLock(tmp_path).release()  # of what is not held
    assert list(tmp_path.iterdir()) == []
    with holder(tmp_path):
        assert RunLock(tmp_path).held() is True
    assert RunLock(tmp_path).held() is False  # it was killed
    with RunLock(tmp_path):  # and the directory is free
        assert RunLock(tmp_path).held() is True
    assert RunLock(tmp_path).held() is False
    (tmp_path / "run.lock").write_text('{"pid": 1, "host": "elsewhere"}')
    assert RunLock(tmp_path).held() is None  # of another machine it may be held


def test_readers_do_not_keep_a_run_from_starting(tmp_path):
    (tmp_path / "run.lock").touch()
    end = threading.Event()

    def look() -> None:
        while not end.is_set():
            RunLock(tmp_path).held()
            time.sleep(0.001)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for _ in range(200):
            with RunLock(tmp_path):
                pass
    finally:
        end.set()
        reader.join()


# ---------------------------------------------------------------- GPUs

THREE = ("GPU-5f10, A, 24000, 8.9", "GPU-5f22, B, 24000, 8.9", "GPU-a331, A, 48000, 8.9")


@pytest.fixture(autouse=True)
def own_claims(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "GPU_LOCKS", tmp_path)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


def profile(**fields) -> HardwareConfig:
    return HardwareConfig(**{"name": "gpu_1", "device": "cuda", "num_gpus": 3} | fields)


def claim(stack: ExitStack, count: int = 1, **fields) -> tuple[str | None, int | None]:
    """``CUDA_VISIBLE_DEVICES`` and ``num_gpus`` in the block, which stays open."""
    hardware = stack.enter_context(claim_gpus(profile(**fields), count))
    return os.environ.get("CUDA_VISIBLE_DEVICES"), hardware.num_gpus


def test_concurrent_runs_get_different_gpus_until_none_is_free(cards):
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


def test_gpus_are_free_and_visible_again_after_the_block(cards, monkeypatch):
    cards(*THREE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    for _ in range(2):
        with ExitStack() as stack:
            assert claim(stack) == ("2", 1)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,1"
        assert "CUDA_DEVICE_ORDER" not in os.environ


def test_a_killed_run_holds_no_gpu(cards, tmp_path):
    cards(*THREE)
    with holder(tmp_path, "gpus") as process:
        with ExitStack() as stack, pytest.raises(RunError, match="1 of 3 is free") as caught:
            claim(stack, 2)
        assert f"process {process.pid} on" in str(caught.value)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with ExitStack() as stack:
        with pytest.raises(RunError):
            claim(stack, 4)  # nor does a refused claim
        assert claim(stack, 3) == ("0,1,2", 3)


def test_jobs_with_different_temporary_folders_see_each_others_claims(cards, tmp_path, monkeypatch):
    cards(THREE[0])

    def job(name):
        (tmp_path / name).mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / name))
        monkeypatch.setattr(tempfile, "tempdir", None)
        return claim(stack)

    with ExitStack() as stack:
        assert job("job-1") == ("0", 1)
        os.environ.pop("CUDA_VISIBLE_DEVICES")
        with pytest.raises(RunError, match="none of 1 are free"):
            job("job-2")


def test_gpu_locks_lie_in_a_private_folder_of_the_user(cards, tmp_path):
    cards(THREE[0])
    folder = tmp_path / f"rlforge-gpus-{os.getuid()}"
    folder.mkdir(mode=0o755)
    with ExitStack() as stack:
        claim(stack)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert [file.name for file in folder.iterdir()] == ["GPU-5f10.lock"]


def test_a_lock_folder_that_is_a_link_is_refused(cards, tmp_path):
    cards(THREE[0])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"rlforge-gpus-{os.getuid()}").symlink_to(elsewhere)
    with ExitStack() as stack, pytest.raises(RunError, match="is not a folder of this user"):
        claim(stack)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    "fields", [{"exclusive": False}, {"device": "cpu"}, {"ray_address": "host:1"}]
)
def test_no_gpu_is_claimed_without_exclusive_without_cuda_or_on_a_cluster(cards, fields):
    cards(*THREE)
    with ExitStack() as stack:
        claim(stack, 3)
        assert claim(stack, 3, **fields) == ("0,1,2", 3)


def test_gpus_are_not_claimed_where_it_is_not_known_which_there_are(cards, monkeypatch):
    cards(*THREE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7f")  # a slice of a GPU
    with ExitStack() as stack:
        assert claim(stack) == ("MIG-7f", 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with ExitStack() as stack:
        assert claim(stack, 3) == (None, 3)


def test_a_run_without_a_free_gpu_ends_with_one_message_and_leaves_nothing(
    cards, monkeypatch, capsys
):
    cards(THREE[0])
    typed = ["rlforge", "train", "+experiment=simpletak_mirror", "hardware=gpu_1"]
    monkeypatch.setattr(sys, "argv", typed)
    with ExitStack() as stack:
        claim(stack)
        with pytest.raises(SystemExit) as ending:
            main()
    assert ending.value.code == 1
    said = capsys.readouterr().err
    assert f"GPU 0 (A) is in use by process {os.getpid()}" in " ".join(said.split())
    assert "Traceback" not in said
    assert not Path("runs").exists()
