"""Strange machines: a run ends by 0, or by 2 in one line before it has made anything.

They need the root user of Linux, who becomes other users, mounts, and makes control groups.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.release,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed"),
]

#: Users and a group without an entry.
NOBODY, OTHER, GROUP = 54321, 54322, 54320
GIB = 2**30
TRAIN = (
    *("train", "+experiment=kuhn_grpo", "learner.total_updates=2", "eval.games=4"),
    *("eval.final_games=4", "hardware=cpu"),
)


@dataclass
class Ended:
    code: int
    lines: list[str]
    made: list[str]

    def is_done(self) -> bool:
        return self.code == 0 and not any("Traceback" in line for line in self.lines)

    def is_refused(self, said: str) -> bool:
        """Whether one line named what is wrong, by exit code 2, and no run folder was made."""
        (line,) = [line for line in self.lines if line.startswith("rlforge: ")] or [""]
        return self.code == 2 and said in line and not self.made and "Traceback" not in line


@pytest.fixture(scope="module")
def world() -> Iterator[Path]:
    """A folder that every user may read, with what ``readable`` needs."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rl") as folder:
        place = Path(folder)
        place.chmod(0o755)
        (place / "python").mkdir()
        yield place


@pytest.fixture(scope="module")
def shared(world: Path) -> list[Ended]:
    """How two users' runs end that start with one empty cache of their group, at once."""
    cache = world / "cache"
    cache.mkdir()
    os.chown(cache, NOBODY, GROUP)
    # Others may read it, as the tests below do.
    cache.chmod(0o2775)
    places = {user: world / str(user) for user in (NOBODY, OTHER)}
    for user, place in places.items():
        place.mkdir()
        os.chown(place, user, GROUP)
    variables = environment(world)
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(ended, TRAIN, place, variables, user=user) for user, place in places.items()
        ]
    return [run.result() for run in runs]


@pytest.fixture
def own(world: Path, shared: list[Ended]) -> Iterator[Path]:
    """The working directory of another user, who reads the cache that ``shared`` filled."""
    folder = Path(tempfile.mkdtemp(dir=world))
    os.chown(folder, NOBODY, GROUP)
    yield folder
    shutil.rmtree(folder)


def environment(world: Path, **changes: str | None) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    given = kept | {"RLFORGE_CACHE": str(world / "cache"), "HOME": "/", "HF_HUB_OFFLINE": "1"}
    # A cloud's address is not asked for.
    given |= {"OMP_NUM_THREADS": "1"} | changes
    return {name: text for name, text in given.items() if text is not None}


def readable(world: Path) -> str:
    """Shell commands that let other users reach the interpreter, which may be in a closed home."""
    base = Path(sys.base_prefix)
    closed = next((one for one in [*base.parents][::-1] if not one.stat().st_mode & 0o001), None)
    if closed is None:
        return ""
    return (
        f"mount --bind {base} {world}/python; mount -t tmpfs -o mode=755 none {closed}; "
        f"mkdir -p {base}; mount --bind {world}/python {base}"
    )


def ended(
    command: Sequence[str],
    place: Path,
    variables: Mapping[str, str],
    *,
    user: int | None = NOBODY,
    setup: str = "",
) -> Ended:
    """How ``rlforge command`` ends; setup: shell commands of root, with mounts of its own."""
    become = ["setpriv", f"--reuid={user}", f"--regid={GROUP}", "--clear-groups"] if user else []
    whole = [*become, "env", f"--chdir={place}", sys.executable, "-m", "rlforge", *command]
    around = next(one for one in (place, *place.parents) if one.parent == Path("/tmp"))
    script = f'set -e\n{readable(around)}\n{setup}\nexec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *whole],
        env=dict(variables),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    runs = place / "runs"
    made = sorted(path.name for path in runs.rglob("*")) if runs.exists() else []
    return Ended(code=done.returncode, lines=done.stderr.splitlines(), made=made)


# ---------------------------------------------------------------- users, homes, folders


def test_a_user_without_an_entry_can_train(world: Path, own: Path) -> None:
    assert ended(TRAIN, own, environment(world, HOME=str(own))).is_done()
    assert (own / ".ray" / "auth_token").is_file()


@pytest.mark.parametrize("command", [["list", "envs"], ["models"], ["doctor"], TRAIN], ids=str)
def test_a_user_without_an_entry_and_a_home_can_do_all(
    world: Path, own: Path, command: Sequence[str]
) -> None:
    assert ended(command, own, environment(world, HOME=None)).is_done()


@pytest.mark.parametrize("home", ["/", "/proc", "/nonexistent", "/root"])
def test_a_home_that_cannot_be_written_is_told_and_done_without(
    world: Path, own: Path, home: str
) -> None:
    refused = ended(TRAIN, own, environment(world, HOME=home, RLFORGE_CACHE=None))
    assert refused.is_refused("set RLFORGE_CACHE to a folder of yours"), refused
    done = ended(TRAIN, own, environment(world, HOME=home))
    assert done.is_done(), done
    assert any("the token is in the run's environment alone" in line for line in done.lines)


def test_a_long_folder_for_temporary_files_is_replaced(world: Path, own: Path) -> None:
    long = own / ("x" * 60)
    long.mkdir()
    os.chown(long, NOBODY, GROUP)
    done = ended(TRAIN, own, environment(world, TMPDIR=str(long)))
    assert done.is_done(), done
    assert any(f"Ray's files go to /tmp/rlforge-{NOBODY}" in line for line in done.lines)


def test_no_folder_for_temporary_files_is_replaced(world: Path, own: Path) -> None:
    assert ended(TRAIN, own, environment(world, TMPDIR="/proc")).is_done()


def test_a_folder_of_ray_that_is_another_users_is_named_with_its_owner(
    world: Path, own: Path
) -> None:
    theirs = Path(tempfile.mkdtemp(dir=world))
    theirs.chmod(0o777)
    (theirs / "ray").mkdir(mode=0o755)
    refused = ended(TRAIN, own, environment(world, RAY_TMPDIR=str(theirs)))
    assert refused.is_refused(f"{theirs / 'ray'} belongs to root; set RAY_TMPDIR"), refused


def test_a_cache_that_is_a_file_is_refused(world: Path, own: Path) -> None:
    file = world / "file"
    file.touch()
    refused = ended(TRAIN, own, environment(world, RLFORGE_CACHE=str(file)))
    assert refused.is_refused(f"{file} is no folder; set RLFORGE_CACHE"), refused


def test_a_read_only_working_directory_is_refused(world: Path, own: Path) -> None:
    refused = ended(TRAIN, world, environment(world))
    assert refused.is_refused("run folder: runs/kuhn_grpo: cannot be written: Permission"), refused
    mounted = f"mount -t tmpfs -o ro,size=1m none {world / 'cache'} && cd {world / 'cache'}"
    inside = ended(
        TRAIN, world / "cache", environment(world, RLFORGE_CACHE="/tmp"), user=None, setup=mounted
    )
    assert inside.is_refused("Read-only file system"), inside


def test_two_users_of_a_group_share_a_cache(shared: list[Ended]) -> None:
    assert [run.is_done() for run in shared] == [True, True], shared
    made, waited = ("making the model tiny", "another process is making tiny")
    said = ["\n".join(run.lines) for run in shared]
    assert sum(made in text for text in said) == 1
    assert sum(waited in text for text in said) == 1


# ---------------------------------------------------------------- limits


def test_little_shared_memory_is_a_note(world: Path, own: Path) -> None:
    done = ended(
        TRAIN, own, environment(world), setup="mount -t tmpfs -o size=64m,mode=1777 none /dev/shm"
    )
    assert done.is_done(), done
    assert any("/dev/shm: 64.0 MiB of shared memory; Ray's" in line for line in done.lines)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[object]:
    """Makes a control group with one limit, in a group around it; returns how to enter it."""
    made: list[Path] = []

    def make(controller: str, **limits: str) -> str:
        second = Path("/sys/fs/cgroup/cgroup.controllers")
        root = Path("/sys/fs/cgroup") if second.exists() else Path("/sys/fs/cgroup", controller)
        outer = root / f"rlforge-{os.getpid()}-{len(made)}"
        inner = outer / "step"
        try:
            inner.mkdir(parents=True)
            made.extend([inner, outer])
            for name, text in limits.items():
                version, _, file = name.partition("__")
                if (version == "v2") == second.exists():
                    (outer / file.replace("__", ".")).write_text(text)
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        return f"echo $$ > {inner}/cgroup.procs"

    yield make
    for folder in made:
        folder.rmdir()


@pytest.mark.parametrize(
    ("gib", "runs"), [(0.7, False), (1.5, False), (2.0, True)], ids=["0.7", "1.5", "2"]
)
def test_the_memory_of_a_control_group_decides(
    world: Path, own: Path, group: object, gib: float, runs: bool
) -> None:
    assert callable(group)
    size = str(int(gib * GIB))
    enter = group("memory", v1__memory__limit_in_bytes=size, v2__memory__max=size)
    done = ended(TRAIN, own, environment(world), setup=enter)
    if runs:
        assert done.is_done(), done
    else:
        assert done.is_refused(f"memory limit: {gib} GiB, the limit of /sys/fs/cgroup"), done


def test_half_a_core_is_enough_and_is_said(world: Path, own: Path, group: object) -> None:
    assert callable(group)
    enter = group("cpu", v1__cpu__cfs_quota_us="50000", v2__cpu__max="50000 100000")
    done = ended(TRAIN, own, environment(world), setup=enter)
    assert done.is_done(), done
    assert any("cores: the time of 0.5 of" in line for line in done.lines)


@pytest.mark.parametrize("most", [64, 256])
def test_few_open_files_are_refused(world: Path, own: Path, most: int) -> None:
    done = ended(TRAIN, own, environment(world), setup=f"ulimit -n {most}")
    assert done.is_refused(f"open files: at most {most}"), done


def test_512_open_files_are_enough(world: Path, own: Path) -> None:
    assert ended(TRAIN, own, environment(world), setup="ulimit -n 512").is_done()


def test_dead_proxies_are_a_note(world: Path, own: Path) -> None:
    dead = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    done = ended(TRAIN, own, environment(world, **dead))
    assert done.is_done(), done
    assert any("nothing answers at http_proxy=http://127.0.0.1:9" in line for line in done.lines)
