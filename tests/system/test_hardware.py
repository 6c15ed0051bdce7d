"""The machine's hardware, and profiles resolved for it; whole profiles: the tests of the graph."""

import os
import platform
import socket
import sys
from importlib.metadata import version

import pytest
from tests.harness import nvml

from rlforge.config.schema import HardwareConfig
from rlforge.errors import ConfigError
from rlforge.system import hardware


def test_a_machine_is_described_without_loading_a_framework():
    about = hardware.describe()
    assert about["processor"]
    assert about["cores"] == len(os.sched_getaffinity(0))
    assert isinstance(about["gpus"], list)
    assert platform.system() in about["system"]
    found = hardware.versions()
    installed = {name: version(name) for name in ("torch", "rlforge")}
    assert found.items() >= ({"python": platform.python_version()} | installed).items()
    assert all(found.values())
    assert 0 < hardware.ram() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 1.01


def test_an_address_where_nothing_answers_is_refused_and_others_are_left_to_ray():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        hardware.check_cluster(f"127.0.0.1:{port}")
        hardware.check_cluster(f"ray://127.0.0.1:{port}")
    with pytest.raises(ConfigError, match=f"ray_address=127.0.0.1:{port}: no Ray cluster answers"):
        hardware.check_cluster(f"127.0.0.1:{port}")
    hardware.check_cluster("auto")
    with pytest.raises(ConfigError, match=r"ray_address=a\.\.b:6379: no Ray cluster answers"):
        hardware.check_cluster("a..b:6379")
    for wrong in ("nowhere:abc", "head", "ray://head", "127.0.0.1:²", "127.0.0.1:99999"):
        with pytest.raises(ConfigError, match=f"ray_address={wrong} is no address of a cluster"):
            hardware.check_cluster(wrong)


def test_gpus_have_names_memory_and_capability(cards):
    cards(
        "GPU-5f1, NVIDIA RTX 6000 Ada Generation, 49140, 8.9", "GPU-a02, NVIDIA H200, 143771, 9.0"
    )
    ada, h200 = hardware.gpus()
    assert ada.name == "NVIDIA RTX 6000 Ada Generation"
    assert (ada.memory, ada.capability) == (49140 * 2**20, 8.9)
    assert (h200.memory, h200.index, h200.uuid) == (143771 * 2**20, 1, "GPU-a02")


def test_gpus_that_the_driver_does_not_list_are_counted_by_its_tool(cards, monkeypatch, tmp_path):
    cards("GPU-5f1, NVIDIA L4, 23034, 8.9", "GPU-a02, NVIDIA L4, 23034, 8.9")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(hardware, "DRIVER", tmp_path / "nowhere")
    assert hardware.detect().gpus == 2
    assert hardware.describe()["gpus"] == ["NVIDIA L4", "NVIDIA L4"]
    (tmp_path / "one" / "0000:01:00.0").mkdir(parents=True)
    monkeypatch.setattr(hardware, "DRIVER", tmp_path / "one")
    assert hardware.detect().gpus == 1


def test_only_visible_gpus_are_there(cards, monkeypatch):
    cards("GPU-a02, NVIDIA L4, 23034, 8.9", "GPU-5f, NVIDIA H200, 143771, 9.0")
    for entry in ("1", "GPU-5f"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", entry)
        (h200,) = hardware.gpus()
        assert (h200.index, h200.name) == (1, "NVIDIA H200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5f, 0")
    both = {entry: gpu.index for entry, gpu in hardware.visible_gpus().items()}
    assert list(both.items()) == [("GPU-5f", 1), ("0", 0)]
    for none in ("", "-1", "MIG-7f"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert hardware.gpus() == ()


@pytest.mark.parametrize(
    ("listed", "count"),
    [
        *[("0,1", 2), ("1", 1), ("GPU-5f, 0", 2), ("MIG-7f", 1), ("MIG-7f,MIG-8a,MIG-9c", 3)],
        # CUDA ends its list at a number that no GPU has.
        *[("0,2", 1), ("2,0", 0), ("7", 0), ("-1", 0), ("1,-1,0", 1), ("", 0)],
    ],
)
def test_as_many_gpus_count_as_cuda_sees(cards, monkeypatch, listed, count):
    cards("GPU-a02, NVIDIA L4, 23034, 8.9", "GPU-5f, NVIDIA H200, 143771, 9.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert hardware.detect().gpus == count
    assert "MIG" in listed or len(hardware.gpus()) == count


def test_a_variable_makes_no_gpus(monkeypatch, tmp_path):
    """It may be left over from another node, or be set for all nodes of a cluster."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("PATH", str(tmp_path))
    device = tmp_path / "nvidiactl"
    monkeypatch.setattr(hardware, "DEVICES", (device,))
    monkeypatch.setattr(hardware, "DRIVER", tmp_path / "nowhere")
    assert hardware.detect().gpus == 0
    device.touch()  # a driver without its tool, as in some sandboxes
    assert hardware.detect().gpus == 2


def test_without_a_driver_or_its_library_there_are_no_gpus(cards, monkeypatch):
    cards()
    assert hardware.gpus() == hardware.gpu_loads() == ()
    cards("GPU-5f, NVIDIA H200, 143771, 9.0")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert hardware.gpus() == ()
    monkeypatch.delitem(sys.modules, "pynvml")
    assert len(hardware.gpus()) == 1
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without the driver nothing is imported
    monkeypatch.delitem(sys.modules, "pynvml")
    assert hardware.gpus() == ()
    assert "pynvml" not in sys.modules


def test_the_stand_in_has_names_of_the_library():
    library = pytest.importorskip("pynvml")
    names = [name for name in vars(nvml) if name.lower().startswith("nvml")]
    assert [name for name in names if not hasattr(library, name)] == []


def test_loads_of_gpus_are_read_as_far_as_they_are_measured(cards):
    cards(
        "GPU-5f, NVIDIA H200, 143771, 9.0, 1024, 512.25, 700, 87",
        "GPU-a0, NVIDIA GeForce GTX 950, 2000, 5.2, 100, -, -, -",
    )
    h200, gtx = hardware.gpu_loads()
    assert (h200.index, h200.name, h200.used) == (0, "NVIDIA H200", 2**30)
    assert (h200.memory, h200.power) == (143771 * 2**20, 512.25)
    assert (h200.limit, h200.busy) == (700.0, 0.87)
    memory = {"used": 100 * 2**20, "memory": 2000 * 2**20}
    assert gtx == hardware.GpuLoad(index=1, name="NVIDIA GeForce GTX 950", **memory)


def test_auto_is_cuda_where_there_is_a_gpu():
    cases = {("auto", 0): "cpu", ("auto", 1): "cuda", ("cpu", 2): "cpu", ("cuda", 1): "cuda"}
    for (device, number), resolved in cases.items():
        assert hardware.resolve_device(HardwareConfig(device=device), number) == resolved
    for profile, message in (
        ({"name": "gpu_1", "device": "cuda"}, "hardware=gpu_1 wants a GPU .* shows none"),
        ({"learner_gpus": 0.5}, r"learner_gpus=0\.5 .*shows none; leave both at 0"),
        ({"engine_gpus": 1}, r"engine_gpus=1 .*shows none; leave both at 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            hardware.resolve_device(HardwareConfig(**profile), 0)


CHOSEN = {"learner_gpus": 1.0, "engine_gpus": 0.25, "num_gpus": 4}


@pytest.mark.parametrize(
    ("fields", "engines", "learners", "shares"),
    [
        ({"num_gpus": 1}, 1, 1, (0.5, 0.5)),
        ({"num_gpus": 2}, 1, 1, (1.0, 1.0)),
        ({"num_gpus": 2}, 3, 1, (0.5, 0.5)),
        ({"num_gpus": 3}, 3, 1, (0.5, 0.5)),
        ({"num_gpus": 4}, 3, 1, (1.0, 1.0)),
        ({"num_gpus": 4}, 2, 3, (1.0, 0.5)),
        ({"num_gpus": 4}, 3, 2, (1.0, 0.5)),
        (CHOSEN, 2, 1, (1.0, 0.25)),
        (CHOSEN | {"device": "cpu"}, 2, 1, (0.0, 0.0)),
    ],
)
def test_gpus_are_shared_only_where_there_are_too_few(fields, engines, learners, shares):
    config = HardwareConfig(**{"device": "cuda"} | fields)
    assert hardware.resolve_gpus(config, engines, learners) == shares


@pytest.mark.parametrize(
    ("fields", "engines", "learners", "threads"),
    [
        ({"num_cpus": 2}, 1, 1, 1),
        ({"num_cpus": 12}, 2, 1, 4),
        ({"num_cpus": 12}, 2, 4, 2),
        ({"num_cpus": 1}, 4, 1, 1),
        ({"num_cpus": 12, "alternate": True}, 1, 1, 12),
        ({"num_cpus": 12, "alternate": True}, 3, 1, 4),
        ({"num_cpus": 12, "threads": 5}, 3, 1, 5),
        ({"num_cpus": 12, "device": "cuda"}, 1, 1, None),
        ({"num_cpus": 12, "device": "cuda", "threads": 5}, 1, 1, 5),
    ],
)
def test_cores_are_divided_among_the_actors_that_compute_at_once(
    fields, engines, learners, threads
):
    config = HardwareConfig(**{"device": "cpu"} | fields)
    assert hardware.resolve_threads(config, engines, learners) == threads


def test_more_gpus_than_are_there_are_refused_with_the_sum():
    few = HardwareConfig(device="cuda", num_gpus=4, learner_gpus=1, engine_gpus=1)
    hardware.check_gpus(few, num_engines=3, num_learners=1)
    with pytest.raises(
        ConfigError, match=r"wants 5 GPUs \(1 learners x 1, 4 engines x 1\) and 4 are there"
    ):
        hardware.check_gpus(few, num_engines=4, num_learners=1)


def test_a_cluster_keeps_its_profile_and_has_cuda_unless_it_says_otherwise():
    profile = HardwareConfig(ray_address="auto", learner_gpus=1, engine_gpus=2)
    resolved = hardware.resolve_hardware(profile, hardware.Machine(cpus=2, gpus=0), 4, 1)
    assert resolved == HardwareConfig(
        device="cuda", ray_address="auto", learner_gpus=1, engine_gpus=2
    )
    on_cpus = HardwareConfig(device="cpu", ray_address="auto")
    assert hardware.resolve_hardware(on_cpus, hardware.Machine(cpus=2, gpus=1), 1, 2) == on_cpus


def test_with_alternate_engines_and_learner_share_one_gpu():
    profile = HardwareConfig(alternate=True)
    resolved = hardware.resolve_hardware(profile, hardware.Machine(cpus=8, gpus=4), num_engines=3)
    assert resolved.num_gpus == 1
    assert (resolved.learner_gpus, resolved.engine_gpus) == (0.25, 0.25)
    server = hardware.Machine(cpus=8, gpus=4)
    whole = {"learner_gpus": 1, "engine_gpus": 1}
    for changes, learners, message in (
        ({}, 2, r"learner\.num_learners=2; switch it off"),
        ({"ray_address": "auto"}, 1, r"ray_address=auto may place.*switch it off"),
        (whole, 1, "wants 2 GPUs.*is for one; lower.*alternate off"),
    ):
        config = HardwareConfig(alternate=True, **changes)
        with pytest.raises(ConfigError, match=message):
            hardware.resolve_hardware(config, server, 1, num_learners=learners)
