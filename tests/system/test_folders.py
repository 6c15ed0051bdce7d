"""Whether files can be made in a folder, and where Ray's go."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlforge.errors import ConfigError
from rlforge.system import folders
from rlforge.system.folders import (
    LONGEST_FOR_RAY,
    check_file,
    ensure_home,
    lacks_token,
    obstacle,
    private_folder,
    ray_base,
    settle_ray,
)

OF_RAY = ("RAY_TMPDIR", "TMPDIR", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OF_RAY:
        # The variable is restored after the test, also where it is set in between.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short path, in place of those to which Ray's files go otherwise."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rl") as folder:
        monkeypatch.setattr(folders, "_OTHERS", (folder,))
        yield Path(folder)


def test_a_trial_says_whether_files_can_be_made_and_leaves_none(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    loose = tmp_path / "loose"
    loose.symlink_to("nowhere")
    assert obstacle(tmp_path / "to" / "make") is None
    assert obstacle(file) == f"{file} is no folder"
    assert obstacle(file / "below") == f"{file} is no folder"
    assert obstacle(loose / "below") == f"{loose} is no folder"
    assert obstacle(Path("/proc/rlforge")) == "cannot be written: No such file or directory"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "loose"}


def test_a_file_that_is_given_is_one_in_a_folder_that_takes_files(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for right in (tmp_path / "new", pipe, Path("/dev/null")):
        check_file("--json", right)
    for wrong in (tmp_path, tmp_path / "none" / "new", pipe / "new"):
        with pytest.raises(ConfigError) as caught:
            check_file("--json", wrong)
        said = f"--json {wrong}: give the name of a file in an existing folder"
        assert str(caught.value) == said
    with pytest.raises(ConfigError, match=r"^report /proc/new: /proc cannot be written: No such"):
        check_file("report", Path("/proc/new"))
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_long_folder_for_temporary_files_is_replaced_for_ray(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    own = short / f"rlforge-{os.getuid()}"
    base, why = ray_base()
    assert (base, own.exists()) == (own, False)
    size = len(str(long))
    assert why == (
        f"TMPDIR={long}: {size} characters are too long for Ray's sockets, at most "
        f"{LONGEST_FOR_RAY} fit; Ray's files go to {own} (RAY_TMPDIR moves them)"
    )
    settle_ray()
    assert os.environ["RAY_TMPDIR"] == str(own)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert ray_base() == (own, "")


def test_the_longest_folder_that_is_taken_leaves_room_for_a_socket(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = short / ("x" * (LONGEST_FOR_RAY - len(str(short)) - 1))
    for folder in (fits, fits.with_name(f"{fits.name}x")):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(fits))
    assert ray_base() == (fits, "")
    monkeypatch.setenv("TMPDIR", f"{fits}x")
    assert ray_base()[1] != ""
    # Ray counts the bytes of the path, with its own names below.
    name = "session_2026-11-28_11-15-54_123456_4194304"
    assert len(f"{fits}/ray/{name}/sockets/plasma_store") == 107


def test_a_folder_that_the_user_chose_for_ray_is_refused_and_not_replaced(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/proc")
    with pytest.raises(ConfigError, match=r"^RAY_TMPDIR=/proc: cannot be written: .*; set RAY_TMP"):
        ray_base()


def test_where_no_folder_can_have_rays_files_the_mend_is_named(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/proc")
    monkeypatch.setattr(folders, "_OTHERS", ("/proc",))
    with pytest.raises(ConfigError, match=r"^Ray has no folder for its files: /proc: .*RAY_TMPDIR"):
        ray_base()


def test_a_relative_folder_is_the_same_for_all_processes_of_ray(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(short)
    Path("t").mkdir()
    monkeypatch.setenv("TMPDIR", "t")
    settle_ray()
    assert os.environ["RAY_TMPDIR"] == str(short / "t")


def test_rays_token_is_in_the_environment_where_the_home_cannot_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not lacks_token()
    settle_ray()
    assert "RAY_AUTH_TOKEN" not in os.environ
    monkeypatch.setenv("HOME", "/proc")
    assert lacks_token()
    settle_ray()
    token = os.environ["RAY_AUTH_TOKEN"]
    assert len(token) == 64
    settle_ray()
    assert os.environ["RAY_AUTH_TOKEN"] == token
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert not lacks_token()


def test_a_private_folder_is_no_other_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "own"
    for _ in range(2):
        assert private_folder(folder) == folder
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="is not a folder of this user"):
        private_folder(folder)


def test_a_user_without_an_entry_gets_a_home_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    names = ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME")
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("USER", "me")
    ensure_home()
    assert os.environ["HOME"] == pwd.getpwuid(os.getuid()).pw_dir
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME")
    ensure_home()
    assert (os.environ["HOME"], os.environ["USER"]) == ("/", "me")
    monkeypatch.delenv("USER")
    monkeypatch.setenv("HOME", "/there")
    ensure_home()
    assert (os.environ["HOME"], os.environ["USER"]) == ("/there", f"uid{os.getuid()}")
