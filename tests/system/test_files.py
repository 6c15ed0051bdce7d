"""Atomic writes: a reader finds the old or the new content, also after an error."""

import errno
import json
import os
import shutil
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.harness.permissions import modes, public_folder, umask, without_rights

from rlforge.errors import DamagedError, RlforgeError
from rlforge.system.files import (
    atomic_path,
    atomic_write,
    new_folder,
    open_database,
    readable_size,
    reading,
    says_full_disk,
    unreadable,
    write_out,
)


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_by_text_or_bytes(tmp_path, durable):
    path = tmp_path / "summary.json"
    atomic_write(path, "first: é", durable=durable)
    assert path.read_bytes() == "first: é".encode()
    atomic_write(path, b"\x00\xff", durable=durable)
    assert path.read_bytes() == b"\x00\xff"
    assert os.listdir(tmp_path) == ["summary.json"]


def test_a_file_that_a_user_names_may_be_a_link_a_pipe_or_as_long_as_names_may_be(tmp_path):
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to("real")
    write_out(tmp_path / "link", "é\udcff")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == "é?".encode()
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit((tmp_path / "pipe").read_text)
        write_out(tmp_path / "pipe", "all")
        assert heard.result(10) == "all"
    write_out(tmp_path / ("x" * 255), "all")
    assert (tmp_path / ("x" * 255)).read_text() == "all"


def test_the_file_has_the_mode_of_any_new_file(tmp_path):
    (tmp_path / "other").touch()
    atomic_write(tmp_path / "new", "x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("other", "new")}
    assert len(modes) == 1


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_files_of_a_folder_have_the_mode_that_the_umask_gives(tmp_path, mask):
    """safetensors makes files for their owner alone, SQLite ones that a group cannot write."""
    with umask(mask), atomic_path(tmp_path / "model") as work:
        (work / "part").mkdir(parents=True)
        for folder in (work, work / "part"):
            save_file({"weight": np.zeros(2)}, folder / "model.safetensors")
            (folder / "config.json").touch()
        database = open_database(work / "facts.sqlite", isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE facts (name TEXT)")
        database.close()
    found = modes(tmp_path)
    assert len(found) == 5
    assert set(found.values()) == {0o666 & ~mask}, found


def test_a_database_keeps_its_content_and_its_mode(tmp_path):
    file = tmp_path / "facts.sqlite"
    with open_database(file) as database:
        database.execute("CREATE TABLE facts (name TEXT)")
    file.chmod(0o600)
    assert open_database(file).execute("SELECT count(*) FROM facts").fetchone() == (0,)
    assert modes(tmp_path) == {str(file): 0o600}
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        open_database(tmp_path / "absent" / "facts.sqlite")


def test_what_may_not_be_read_is_named():
    with public_folder() as folder:
        file, closed = folder / "model.safetensors", folder / "closed"
        file.touch(0o000)
        closed.mkdir(0o000)
        (closed / "config.json").touch()
        with without_rights():
            assert unreadable(file) == f"{file}: Permission denied"
            assert unreadable(folder) == f"{closed}: Permission denied"
            assert unreadable(closed) == f"{closed}: Permission denied"
            assert unreadable(closed / "config.json") == f"{closed}/config.json: Permission denied"
            assert unreadable(folder / "absent") == ""
        file.chmod(0o444)
        with without_rights():
            assert unreadable(file) == ""


def test_readers_see_the_old_content_until_the_block_ends(tmp_path):
    path = tmp_path / "state"
    path.write_text("old")
    with atomic_path(path) as work:
        work.write_text("new")
        assert path.read_text() == "old"
        assert work.parent == tmp_path
        assert work.name.startswith(".")
        assert work.suffix == ".tmp"
    assert path.read_text() == "new"


def test_two_writers_of_one_file_do_not_share_a_temporary_file(tmp_path):
    path = tmp_path / "state"
    with atomic_path(path) as first, atomic_path(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["state"]


def test_after_an_error_the_old_file_stays_and_nothing_else(tmp_path):
    path = tmp_path / "state"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), atomic_path(path) as work:
        work.write_text("half \ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["state"]


def test_a_block_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "state"):
        pass
    with pytest.raises(FileNotFoundError):
        atomic_write(tmp_path / "none" / "state", "x")


def test_a_directory_appears_whole(tmp_path):
    path = tmp_path / "model"
    with atomic_path(path, durable=True) as work:
        work.mkdir()
        (work / "weights").write_text("42")
        assert not path.exists()
    assert (path / "weights").read_text() == "42"


def test_a_directory_with_files_is_not_replaced_and_the_new_one_is_deleted(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("42")
    with pytest.raises(OSError, match="not empty"), atomic_path(tmp_path / "model") as work:
        shutil.copytree(tmp_path / "model", work)
    assert os.listdir(tmp_path) == ["model"]


def test_a_full_disk_names_the_file_that_was_written(tmp_path):
    # The kernel names none where a write fails, and not the opening.
    with pytest.raises(OSError, match="state") as caught, atomic_path(tmp_path / "state"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(tmp_path / "state")


def test_a_full_disk_is_found_behind_other_errors():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    quoted = RuntimeError(f"safetensors: {os.strerror(errno.ENOSPC)} (os error 28)")
    behind = RuntimeError("cannot save")
    behind.__cause__ = full
    assert all(map(says_full_disk, (full, quoted, behind, OSError(errno.EDQUOT, "quota"))))
    assert not says_full_disk(OSError(errno.EACCES, "denied"))
    assert not says_full_disk(None)
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    assert [readable_size(1024**n) for n in range(5)] == [f"1.0 {unit}" for unit in units]


def test_each_of_many_that_make_a_folder_at_once_gets_its_own(tmp_path):
    wanted = tmp_path / "runs" / "kuhn" / "2026-01-01"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(new_folder, [wanted] * 40))
    assert {path.name for path in made} == {
        "2026-01-01",
        *(f"2026-01-01.{number}" for number in range(1, 40)),
    }


def test_a_write_that_fails_names_the_file_and_not_the_hidden_one(tmp_path):
    target = tmp_path / "gone" / "report.html"
    with pytest.raises(FileNotFoundError) as caught:
        atomic_write(target, "x")
    assert caught.value.filename == str(target)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "it is empty"), (b"\xff", "not UTF-8"), (b"{}", "it has no step"), (b"[1", "Expect")],
)
def test_what_is_read_is_named_with_its_damage_and_the_mend(tmp_path, content, why):
    file = tmp_path / "x.json"
    file.write_bytes(content)
    expected = rf"x\.json is damaged \({why}.*\); ask for a copy"
    with pytest.raises(DamagedError, match=expected), reading(file, "ask for a copy"):
        json.loads(file.read_bytes().decode())["step"]


@pytest.mark.parametrize("error", [RlforgeError("older"), FileNotFoundError("x")])
def test_errors_that_say_more_than_damage_pass_a_reading(tmp_path, error):
    with pytest.raises(type(error)) as caught, reading(tmp_path / "x"):
        raise error
    assert caught.value is error
    denied = PermissionError(13, "Permission denied")
    with pytest.raises(PermissionError) as caught, reading(tmp_path / "x"):
        raise denied
    assert caught.value.filename == str(tmp_path / "x")
