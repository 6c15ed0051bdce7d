"""Limits of control groups, read along a process's own in a tree that stands for the system's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from rlforge.system import hardware
from rlforge.system.cgroups import core_limit, memory_limit, process_limit

GIB = 2**30
NONE_V1 = "9223372036854771712"

Make = Callable[..., Path]


@pytest.fixture
def process(tmp_path: Path) -> Make:
    """Writes a process's groups, the mounts, and files below them; returns its folder."""

    def make(groups: str, mounts: str, files: Mapping[str, str]) -> Path:
        folder = tmp_path / "proc"
        folder.mkdir(exist_ok=True)
        (folder / "cgroup").write_text(groups)
        (folder / "mountinfo").write_text(mounts.replace("AT", str(tmp_path / "sys")))
        for name, content in files.items():
            (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "sys" / name).write_text(f"{content}\n")
        return folder

    return make


V2 = "30 23 0:26 / AT rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "31 23 0:30 / AT/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 23 0:32 / AT/memory rw - cgroup cgroup rw,memory\n"
    "33 23 0:37 / AT/systemd rw - cgroup cgroup rw,name=systemd\n"
)


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "memory", "cores"),
    [
        # A scope of systemd whose slice, above it, has the tighter memory.
        (
            "0::/user.slice/run-1.scope\n",
            V2,
            {
                "user.slice/memory.max": str(2 * GIB),
                "user.slice/cpu.max": "max 100000",
                "user.slice/run-1.scope/memory.max": "max",
                "user.slice/run-1.scope/cpu.max": "50000 100000",
            },
            2 * GIB,
            0.5,
        ),
        # A job of Slurm under version 1: the limit is the job's, the process is in a step of it.
        (
            "9:name=systemd:/\n4:memory:/slurm/uid_7/job_1/step_0\n1:cpuacct,cpu:/slurm/uid_7\n",
            V1,
            {
                "memory/slurm/uid_7/job_1/memory.limit_in_bytes": str(GIB),
                "memory/slurm/uid_7/job_1/step_0/memory.limit_in_bytes": NONE_V1,
                "cpu/slurm/uid_7/cpu.cfs_quota_us": "150000",
                "cpu/slurm/uid_7/cpu.cfs_period_us": "100000",
            },
            GIB,
            1.5,
        ),
        # A container: the path is the host's, and the mount begins at the container's own group.
        (
            "0::/docker/abc/inner\n",
            "30 23 0:26 /docker/abc AT ro - cgroup2 cgroup rw\n",
            {"inner/memory.max": str(3 * GIB), "memory.max": str(2 * GIB)},
            2 * GIB,
            None,
        ),
        # A group that lies outside what is mounted: the limits of the mount itself count.
        ("0::/../other\n", V2, {"memory.max": str(GIB)}, GIB, None),
        # Both versions: the second one has no controllers.
        (
            "4:memory:/a\n0::/\n",
            V1 + "41 31 0:38 / AT/unified rw - cgroup2 cgroup2 rw\n",
            {"memory/a/memory.limit_in_bytes": str(GIB)},
            GIB,
            None,
        ),
        # A mount whose path has a space.
        (
            "0::/\n",
            "30 23 0:26 / AT/a\\040b rw - cgroup2 cgroup2 rw\n",
            {"a b/memory.max": str(GIB)},
            GIB,
            None,
        ),
        ("0::/\n", V2, {"memory.max": "max", "cpu.max": "max 100000"}, None, None),
        (
            "4:memory:/\n1:cpu:/\n",
            V1,
            {
                "memory/memory.limit_in_bytes": NONE_V1,
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
            },
            None,
            None,
        ),
    ],
)
def test_the_tightest_limit_of_all_groups_around_a_process_counts(
    process: Make,
    groups: str,
    mounts: str,
    files: Mapping[str, str],
    memory: int | None,
    cores: float | None,
) -> None:
    folder = process(groups, mounts, files)
    found = memory_limit(folder), core_limit(folder)
    assert tuple(each and each.number for each in found) == (memory, cores)


def test_a_system_without_groups_has_no_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
    assert core_limit(tmp_path) is None


@pytest.mark.parametrize(("quota", "cores"), [("50000", 1), ("150000", 1), ("100000000", None)])
def test_the_machine_has_the_cores_and_the_memory_that_its_groups_allow(
    process: Make, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int | None
) -> None:
    files = {"memory.max": str(GIB), "cpu.max": f"{quota} 100000"}
    folder = process("0::/\n", V2, files)
    before = hardware.detect().cpus
    monkeypatch.setattr(hardware, "memory_limit", lambda: memory_limit(folder))
    monkeypatch.setattr(hardware, "core_limit", lambda: core_limit(folder))
    assert hardware.ram() == GIB
    assert hardware.detect().cpus == (cores or before)


def test_the_group_with_the_fewest_processes_left_counts(process: Make) -> None:
    files = {
        "job/pids.max": "500",
        "job/pids.current": "480",
        "job/step/pids.max": "100",
        "job/step/pids.current": "10",
    }
    limit = process_limit(process("0::/job/step\n", V2, files))
    assert limit is not None
    assert (limit.number, limit.used, limit.left) == (500, 480, 20)
    assert limit.group.name == "job"
    pids = "31 23 0:30 / AT/pids rw - cgroup cgroup rw,pids\n"
    first = {"pids/job/pids.max": "max", "pids/job/pids.current": "3"}
    assert process_limit(process("4:pids:/job\n", pids, first)) is None
