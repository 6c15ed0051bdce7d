"""What a start needs of a machine: what is wrong ends it with a mend, the rest is a note."""

from __future__ import annotations

import collections
import os
import resource
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.harness.composed import composed

from rlforge import launch
from rlforge.cli import main
from rlforge.errors import ConfigError
from rlforge.preflight import allowances, surroundings
from rlforge.preflight.doctor import examine
from rlforge.preflight.surroundings import findings, places, require
from rlforge.system.cgroups import Limit

GIB = 2**30
CLEAN = ("TMPDIR", "RAY_TMPDIR", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in [*CLEAN, *(each for each in os.environ if each.lower().endswith("_proxy"))]:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(tempfile, "tempdir", None)


def kuhn(*overrides):
    return composed("+experiment=kuhn_grpo", *overrides).config


def found(what, *overrides):
    (one,) = [each for each in findings(kuhn(*overrides)) if each.what == what]
    return one


def test_doctor_lists_every_condition_of_this_machine_and_none_of_another():
    report = examine(composed("+experiment=kuhn_grpo"))
    listed = [one.what for one in report.findings]
    assert {
        *("cache", "run folder", "temporary folder", "Ray's folder", "home", "/dev/shm"),
        *("memory limit", "cores", "open files", "processes", "address space", "size of files"),
        *("torch", "proxies", "clock", "locale"),
    } <= set(listed)
    planned = examine(composed("+experiment=kuhn_grpo", "hardware=auto"), 1, 24)
    assert "Ray's folder" not in {one.what for one in planned.findings}


@pytest.mark.parametrize(
    ("what", "variable", "overrides"),
    [("cache", "RLFORGE_CACHE", ()), ("run folder", "run_dir", ("run_dir=/proc/run",))],
)
def test_a_folder_that_is_needed_and_cannot_be_written_ends_the_start(
    what, variable, overrides, monkeypatch
):
    monkeypatch.setenv("RLFORGE_CACHE", "/proc/cache" if what == "cache" else tempfile.mkdtemp())
    with pytest.raises(
        ConfigError, match=rf"^{what}: /proc/\w+: cannot be written: .*; set {variable}"
    ):
        require(kuhn(*overrides))
    assert found(what, *overrides).state == "problem"


def test_a_file_in_place_of_the_cache_is_named(tmp_path, monkeypatch):
    file = tmp_path / "cache"
    file.touch()
    monkeypatch.setenv("RLFORGE_CACHE", str(file))
    with pytest.raises(ConfigError, match=f"^cache: {file}: {file} is no folder; set RLFORGE"):
        require(kuhn())


def test_a_cache_that_has_the_model_may_be_read_only(small_model, monkeypatch):
    monkeypatch.setattr(surroundings, "obstacle", lambda path: "cannot be written: by trial")
    monkeypatch.setattr(surroundings, "cache_dir", lambda: Path("/shared"))
    monkeypatch.setattr(surroundings, "local_copy", lambda model: Path("/shared/tiny"))
    assert found("cache").state == "note"
    hub = kuhn("model=hf", f"model.name={small_model}", "model.prompt_template=board")
    assert [(each.what, each.needed) for each in places(hub)][:2] == [
        ("cache", False),
        ("hub's cache", False),
    ]
    absent = kuhn("model=hf", "model.name=org/absent", "model.prompt_template=board")
    assert {each.what: each.needed for each in places(absent)}["hub's cache"]


def test_a_home_that_takes_no_token_and_a_bad_tmpdir_are_notes(monkeypatch):
    monkeypatch.setenv("HOME", "/proc")
    monkeypatch.setenv("TMPDIR", "/proc")
    notes = dict(note.split(": ", 1) for note in require(kuhn()))
    assert notes["home"].startswith("/proc/.ray for Ray's token: cannot be written")
    assert notes["temporary folder"] == "TMPDIR=/proc cannot be written; /tmp is used instead"
    assert "Ray's files go to /tmp/rlforge-" in notes["Ray's folder"]


def test_a_tmpdir_that_does_not_exist_is_passed_over_by_all(monkeypatch, tmp_path):
    absent = tmp_path / "absent"
    monkeypatch.setenv("TMPDIR", str(absent))
    one = found("temporary folder")
    assert one.detail == f"TMPDIR={absent} does not exist; /tmp is used instead"
    assert found("Ray's folder").detail.startswith("/tmp/ray: can be written")


@pytest.mark.parametrize(
    ("gib", "state"), [(0.7, "problem"), (1.5, "problem"), (2.0, "note"), (2.3, "ok")]
)
def test_the_memory_is_that_of_the_group_around_the_process(gib, state, monkeypatch):
    limit = Limit(number=int(gib * GIB), group=Path("/sys/fs/cgroup/job_1"))
    monkeypatch.setattr(surroundings, "ram", lambda: int(gib * GIB))
    monkeypatch.setattr(surroundings, "memory_limit", lambda: limit)
    one = found("memory limit")
    assert one.state == state
    assert f"{gib} GiB, the limit of /sys/fs/cgroup/job_1" in one.detail


def test_half_a_core_is_a_note(monkeypatch):
    quota = Limit(number=0.5, group=Path("/sys/fs/cgroup/job_1"))
    monkeypatch.setattr(surroundings, "core_limit", lambda: quota)
    one = found("cores")
    assert (one.state, one.detail.startswith("the time of 0.5 of ")) == ("note", True)


def test_a_torch_for_cpus_cannot_use_the_gpus_of_the_machine(cards, monkeypatch):
    cards("GPU-5f, NVIDIA L4, 23034, 8.9", "GPU-a02, NVIDIA L4, 23034, 8.9")
    assert found("torch").state == "ok"
    monkeypatch.setattr(surroundings, "version", lambda package: "2.13.0+cpu")
    assert found("torch", "hardware=cpu").state == "ok"
    said = r"^torch: 2\.13\.0\+cpu is built for CPUs and cannot use 2 GPUs of .* set hardware=cpu$"
    with pytest.raises(ConfigError, match=said):
        require(kuhn())


def test_little_shared_memory_is_a_note_with_the_option_of_containers(monkeypatch):
    usage = collections.namedtuple("usage", "total used free")
    real = shutil.disk_usage
    small = usage(64 * 2**20, 0, 64 * 2**20)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: small if str(path) == "/dev/shm" else real(path)
    )
    one = found("/dev/shm")
    assert one.state == "note"
    assert one.detail.startswith("64.0 MiB of shared memory; Ray's object store goes to its folder")
    assert "--shm-size=2g" in one.detail


def test_few_open_files_end_the_start_which_would_wait_for_ever(monkeypatch):
    bound(monkeypatch, resource.RLIMIT_NOFILE, 64)
    with pytest.raises(
        ConfigError, match=r"^open files: at most 64, and a run needs \d+; raise it"
    ):
        require(kuhn())


def bound(monkeypatch, which, most):
    real = resource.getrlimit
    monkeypatch.setattr(
        resource, "getrlimit", lambda one: (most, most) if one == which else real(one)
    )


@pytest.mark.parametrize(
    ("which", "most", "state", "said"),
    [
        ("AS", 3 * 10**9, "problem", "address space: at most 2.8 GiB for each process, and Ray"),
        ("AS", 64 * GIB, "ok", "address space: at most 64.0 GiB"),
        ("FSIZE", 2**16, "problem", "size of files: at most 64.0 KiB, and the largest file of"),
        ("DATA", 64 * GIB, "note", "data segment: 64.0 GiB for each process, which fails beyond"),
        ("CPU", 60, "note", "CPU time: 60 seconds for each process"),
    ],
)
def test_a_limit_of_a_shell_that_would_break_the_run_is_named(
    which, most, state, said, monkeypatch
):
    bound(monkeypatch, getattr(resource, f"RLIMIT_{which}"), most)
    one = found(said.partition(":")[0])
    assert (one.state, f"{one.what}: {one.detail}".startswith(said)) == (state, True)


def test_the_processes_of_a_user_and_of_a_group_have_to_suffice(monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 12345)
    bound(monkeypatch, resource.RLIMIT_NPROC, 20)
    one = found("processes")
    assert one.state == "problem"
    assert one.detail.startswith("20 for this user, 0 in use, and the start needs ")
    assert one.detail.endswith("end some, or raise ulimit -u")
    more = int(found("processes", "engine.num_engines=3").detail.split("needs ")[1].split()[0])
    assert more > int(one.detail.split("needs ")[1].split()[0])
    monkeypatch.setattr("os.getuid", lambda: 0)  # for whom the number does not hold
    group = Limit(number=400, group=Path("/sys/fs/cgroup/pids/job_1"), used=390)
    monkeypatch.setattr(allowances, "process_limit", lambda: group)
    detail = found("processes").detail
    assert detail.startswith("400 in /sys/fs/cgroup/pids/job_1, 390 in use, and the start needs ")
    assert "pids.max" in detail


def disk(monkeypatch, path, **changed):
    """Let the file system of ``path`` have figures of its own."""
    statvfs, usage = os.statvfs, shutil.disk_usage
    figures = SimpleNamespace(f_blocks=100, f_files=0, f_favail=0)
    figures.__dict__.update(changed)
    full = SimpleNamespace(total=0, used=0, free=changed.get("free", 2**40))
    here = os.fspath(path)
    monkeypatch.setattr(os, "statvfs", lambda p: figures if str(p) == here else statvfs(p))
    monkeypatch.setattr(shutil, "disk_usage", lambda p: full if str(p) == here else usage(p))


def test_a_disk_without_room_for_the_first_checkpoint_ends_the_start(tmp_path, monkeypatch):
    folder = tmp_path / "disk"
    folder.mkdir()
    disk(monkeypatch, folder, free=2 * 2**20)
    config = ("model=smollm2_135m", "learner.train=full", f"run_dir={folder}/run")
    with pytest.raises(
        ConfigError,
        match=rf"^run folder: {folder}/run: 2.0 MiB free, and the start needs 1.5 GiB at least "
        r"\(records, and 1.5 GiB for a first checkpoint\); make room, or set run_dir to another",
    ):
        require(kuhn(*config))
    assert [*folder.iterdir()] == []


def test_a_disk_without_further_files_ends_the_start(tmp_path, monkeypatch):
    folder = tmp_path / "disk"
    folder.mkdir()
    disk(monkeypatch, folder, f_files=4, f_favail=1)
    one = found("run folder", f"run_dir={folder}/run")
    assert one.state == "problem"
    assert f"{folder}/run: room for 1 further file, and the start makes " in one.detail


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("http://127.0.0.1:9", "nothing answers at https_proxy=http://127.0.0.1:9"),
        ("foo:bar:baz", "https_proxy=foo:bar:baz: not the address of a proxy"),
    ],
)
def test_a_proxy_that_does_not_answer_is_a_note(value, said, monkeypatch):
    monkeypatch.setenv("https_proxy", value)
    one = found("proxies")
    assert (one.state, said in one.detail) == ("note", True)


def test_a_clock_of_long_ago_and_a_locale_that_loses_names_are_notes(monkeypatch):
    assert (found("clock").state, found("locale").state) == ("ok", "ok")
    monkeypatch.setattr("time.time", lambda: 86400.0)
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "iso8859-1")
    assert found("clock").detail.startswith("1970-01-0")
    assert found("clock").state == found("locale").state == "note"


def test_a_run_in_a_cluster_needs_nothing_of_ray_here():
    listed = {one.what for one in findings(kuhn("hardware.ray_address=10.0.0.1:6379"))}
    assert listed.isdisjoint({"Ray's folder", "home", "/dev/shm", "memory limit", "cores"})


def test_train_ends_by_2_with_one_line_and_makes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RLFORGE_CACHE", "/proc/cache")
    monkeypatch.setattr("sys.argv", ["rlforge", "train", "kuhn_grpo"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rlforge: cache: /proc/cache: cannot be written")
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(ConfigError, match=r"^cache: "):
        launch.train(["+experiment=kuhn_grpo"], None)
