"""Shared by all tests: a home and a model cache of their own, and a very small model."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from filelock import FileLock
from tests.harness.models import SMALL_MARKET, make_market_model, make_small_model

with contextlib.suppress(ImportError):  # GPU tests run where there is little more than pytest
    from hypothesis import settings

    # No verdict about time: another process may have the core. What CI asks for besides stays.
    asked = settings.get_profile(settings.get_current_profile_name())
    settings.register_profile("untimed", asked, deadline=None)
    settings.load_profile("untimed")


NVML = Path(__file__).parent / "harness" / "nvml.py"


def starts_processes(item: pytest.Item) -> bool:
    """Whether a test belongs to a tier whose tests may start Ray and other processes."""
    return any(map(item.get_closest_marker, ("ray", "release", "slow", "vllm")))


@pytest.hookimpl(tryfirst=True)  # before ``-m`` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make most cases of a ``one_in`` slow, and give tests that start processes a longer limit.

    Several of them import torch at once.
    """
    seen = Counter[str]()
    for item in items:
        one_in = item.get_closest_marker("one_in")
        if one_in is not None and not starts_processes(item):
            test, _, _ = item.nodeid.partition("[")
            if seen[test] % one_in.args[0]:
                item.add_marker("slow")
            seen[test] += 1
        if starts_processes(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


def pytest_collection_finish() -> None:
    """Leave what the imports made out of every later collection of garbage."""
    from rlforge.system.garbage import freeze_gc

    freeze_gc()


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ray must not look for a cloud, nor a test for the user's files."""
    home = tmp_path_factory.mktemp("home")
    (home / "ray_bootstrap_config.yaml").write_text("provider:\n  type: local\n")
    os.environ["HOME"] = str(home)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["RLFORGE_CACHE"] = str(home / "models")
    os.environ["OMP_NUM_THREADS"] = "1"


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder ``name``, which the first worker of this session to ask for it has made.

    make: is called with an empty folder to fill. Tests only read what is in the folder.
    """
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # that of a worker lies in that of the session
    folder, making = root / name, root / f"{name}.part"
    with FileLock(root / f"{name}.lock"):
        if not folder.exists():
            shutil.rmtree(making, ignore_errors=True)  # left where an earlier attempt failed
            making.mkdir()
            make(making)
            making.rename(folder)
    return folder


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of a few thousand parameters with the tiny model's tokenizer, barely warmed up."""
    return made_once(tmp_path_factory, "small", make_small_model)


@pytest.fixture(scope="session")
def market_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the market's compact words; its answers are one token, most of them legal."""
    return made_once(tmp_path_factory, "market", make_market_model)


@pytest.fixture(scope="session")
def small_market(market_model: Path) -> Sequence[str]:
    """The overrides of a short continuous run in a small market."""
    return (*SMALL_MARKET, f"model.name={market_model}")


@pytest.fixture(scope="session")
def golden_run(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of five updates, made in this process with ``determinism=strict``.

    It has games, batches, evaluations, ratings, checkpoints and digests. Tests only read it.
    """
    from tests.harness.in_process import rlforge_here, use_actors_in_process
    from tests.harness.live_run import strict_arguments

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            use_actors_in_process(patch.setattr)
            patch.chdir(folder)
            assert rlforge_here(*strict_arguments(small_model)) == 0

    return made_once(tmp_path_factory, "golden", make) / "run"


@pytest.fixture(scope="session")
def golden_market(small_market: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished continuous run of two windows, made in this process. Tests only read it."""
    from tests.harness.in_process import rlforge_here, use_actors_in_process

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            use_actors_in_process(patch.setattr)
            patch.chdir(folder)
            assert rlforge_here("continuous", *small_market, "run_dir=run") == 0

    return made_once(tmp_path_factory, "golden_market", make) / "run"


@pytest.fixture
def run_copy(golden_run: Path, tmp_path: Path) -> Path:
    """A copy of ``golden_run`` to change, in another place than where it was made."""
    return Path(shutil.copytree(golden_run, tmp_path / "runs" / "tictactoe_mirror" / "one"))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``tests.harness.in_process``; actors of the test's runs are objects of this process."""
    from tests.harness import in_process

    in_process.use_actors_in_process(monkeypatch.setattr)
    return in_process


@pytest.fixture(autouse=True)
def no_ray_by_default(request: pytest.FixtureRequest) -> Iterator[None]:
    """The default tier starts no Ray: a test that does belongs into another one."""

    def running() -> bool:
        return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())

    before = running()
    yield
    allowed = before or starts_processes(request.node)
    assert allowed or not running(), "mark this test with pytest.mark.ray"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to runs/ in the current directory: give each test its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """A stand-in for the driver's tool and for NVML, also in processes that a test starts.

    In this process torch counts as a build with CUDA.
    """

    def pretend(*lines: str) -> None:
        folder = tmp_path / "driver"
        folder.mkdir(exist_ok=True)
        (folder / "nvidia-smi").write_text("#!/bin/sh\n")
        (folder / "nvidia-smi").chmod(0o755)
        rows = [[cell.strip() for cell in line.split(",")] for line in lines]
        (folder / "pynvml.py").write_text(f"{NVML.read_text()}\nGPUS = {rows!r}\n")
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr("rlforge.preflight.surroundings.version", lambda package: "2.13.0")

    return pretend


@pytest.fixture
def elsewhere(monkeypatch):
    """Makes another device of the CPU: moved data is copied, its old memory spoilt; their sizes."""
    from rlforge.models import devices

    sizes = []

    def copied(storage, device):
        sizes.append(storage.nbytes())
        fresh = storage.clone()
        storage.fill_(255)  # as float32 or bfloat16 this is not a number
        return fresh

    monkeypatch.setattr(devices, "copied", copied)
    return sizes
