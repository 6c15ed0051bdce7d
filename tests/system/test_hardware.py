"""What is written beside a measurement. (What profiles become is tested with the graph.)"""

import os
import platform
import socket
from importlib.metadata import version

import pytest

from rlforge.errors import ConfigError
from rlforge.system import hardware
from rlforge.system.hardware import check_cluster, describe, detect, gpus, ram, versions


def test_a_machine_is_described_without_loading_a_framework():
    about = describe()
    assert about["processor"]
    assert about["cores"] == len(os.sched_getaffinity(0))
    assert isinstance(about["gpus"], list)
    assert platform.system() in about["system"]


def test_an_address_where_nothing_answers_is_refused_and_others_are_left_to_ray():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_cluster(f"127.0.0.1:{port}")
        check_cluster(f"ray://127.0.0.1:{port}")
    with pytest.raises(ConfigError, match=f"ray_address=127.0.0.1:{port}: no Ray cluster answers"):
        check_cluster(f"127.0.0.1:{port}")
    check_cluster("auto")


def test_versions_are_those_installed_and_nothing_else():
    found = versions()
    assert found["python"] == platform.python_version()
    assert found["torch"] == version("torch")
    assert found["rlforge"] == version("rlforge")
    assert all(found.values())


def test_gpus_have_names_memory_and_capability(cards):
    cards(
        "0, GPU-5f1, NVIDIA RTX 6000 Ada Generation, 49140, 8.9",
        "1, GPU-a02, NVIDIA H200, 143771, 9.0",
    )

    ada, h200 = gpus()

    assert (ada.name, ada.memory, ada.capability) == (
        "NVIDIA RTX 6000 Ada Generation",
        49140 * 2**20,
        8.9,
    )
    assert (h200.memory, h200.index, h200.uuid) == (143771 * 2**20, 1, "GPU-a02")


def test_gpus_that_the_driver_lists_nowhere_are_counted_by_its_tool(cards, monkeypatch, tmp_path):
    cards("0, GPU-5f1, NVIDIA L4, 23034, 8.9", "1, GPU-a02, NVIDIA L4, 23034, 8.9")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(hardware, "_DRIVER", tmp_path / "nowhere")
    assert detect().gpus == 2
    assert describe()["gpus"] == ["NVIDIA L4", "NVIDIA L4"]
    (tmp_path / "one" / "0000:01:00.0").mkdir(parents=True)
    monkeypatch.setattr(hardware, "_DRIVER", tmp_path / "one")
    assert detect().gpus == 1


def test_only_visible_gpus_are_asked_for(cards, monkeypatch):
    asked = cards("2, GPU-5f, NVIDIA H200, 143771, 9.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5f")
    gpus()
    assert "-i 2,GPU-5f" in asked.read_text()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus() == ()


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["NVIDIA-SMI has failed because it could not communicate with the driver."], 9),
        (["No devices were found"], 0),
        (["0, GPU-5f, Some GPU, [N/A], [N/A]"], 0),
    ],
)
def test_a_tool_without_an_answer_knows_of_no_gpus(cards, lines, status):
    cards(*lines, status=status)

    assert gpus() == ()


def test_memory_of_the_machine_is_what_the_system_counts():
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    assert 0 < ram() <= pages * 1.01
