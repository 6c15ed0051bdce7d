"""Folders of this machine: whether files can be made in one, and where Ray puts its own."""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rlforge.errors import ConfigError
from rlforge.system.files import is_kept

#: Most bytes in the name of a socket.
_LONGEST_SOCKET = 107

#: What Ray adds to its folder for the longest of them.
_SOCKET = "/ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"

#: Most bytes in the name of the folder in which Ray makes its own.
LONGEST_FOR_RAY = _LONGEST_SOCKET - len(_SOCKET)

#: Where Ray's files go if the folder of the environment cannot have them.
_OTHERS = ("/tmp", "/var/tmp", "/dev/shm")


def ensure_home() -> None:
    """Give a user without HOME, or without a name, what libraries ask for on import.

    In a container or a batch job the number of the user may have no entry in the system's list.
    """
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = "/"
        if not any(os.environ.get(each) for each in ("LOGNAME", "USER", "LNAME", "USERNAME")):
            os.environ["USER"] = f"uid{os.getuid()}"
    os.environ.setdefault("HOME", home)


def check_working_directory() -> None:
    """Raise ConfigError where the working directory has been deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        # Shells keep the name.
        name = os.environ.get("PWD", "")
        raise ConfigError(
            f"the working directory {name} is gone: it was deleted or replaced; cd to one that "
            "exists"
        ) from None


def nearest(path: Path) -> Path:
    """``path``, or the first folder above it that is there."""
    whole = Path(os.path.abspath(path))
    return next(each for each in (whole, *whole.parents) if os.path.lexists(each))


def owner(path: Path) -> str:
    """Name of the user whose folder it is, or the number of one without a name."""
    number = path.stat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def obstacle(path: Path) -> str | None:
    """Why no file can be made in the folder ``path``, which may not exist yet; None: it can.

    It is tried: modes say nothing about a read-only or full disk, or about the root user.
    """
    try:
        there = nearest(path)
        if not there.is_dir():
            return f"{there} is no folder"
        with tempfile.TemporaryDirectory(prefix=".rlforge-", dir=there) as folder:
            # A full disk may have room for the folder.
            Path(folder, "block").write_bytes(bytes(4096))
            return None
    except OSError as error:
        said = f"cannot be written: {error.strerror}"
        if error.errno not in (errno.EACCES, errno.EPERM):
            return said
    # Its owner can change the mode, or is asked for another folder.
    try:
        return f"{said}; {there} belongs to {owner(there)}"
    except OSError:
        return said


def check_file(name: str, file: Path | None) -> None:
    """Raise ConfigError where ``write_out`` cannot write the ``file`` that a user gives.

    name: what the file is, for the message. To be called before the work whose result it takes.
    """
    if file is None:
        return
    folder = file.absolute().parent
    if file.is_dir() or not folder.is_dir():
        raise ConfigError(f"{name} {file}: give the name of a file in an existing folder")
    if not is_kept(file) and (problem := obstacle(folder)) is not None:
        raise ConfigError(f"{name} {file}: {folder} {problem}")


def private_folder(path: Path) -> Path:
    """Make a folder that is this user's alone; OSError where it is another's, or no folder."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "is not a folder of this user", str(path)) from None
        path.chmod(0o700)
    return path


def ray_base() -> tuple[Path, str]:
    """The folder in which Ray makes its own, and why it is not that of the environment, if so.

    Raises ConfigError where RAY_TMPDIR names one that cannot be, or no folder can.
    """
    if chosen := os.environ.get("RAY_TMPDIR"):
        if (problem := _not_for_ray(Path(chosen))) is not None:
            raise ConfigError(
                f"RAY_TMPDIR={chosen}: {problem}; set RAY_TMPDIR to a folder of yours whose path "
                f"has at most {LONGEST_FOR_RAY} characters"
            )
        return Path(os.path.abspath(chosen)), ""
    usual = os.environ.get("TMPDIR") or "/tmp"
    if not os.path.isdir(usual):
        usual = "/tmp"  # which Python takes for other temporary files, too
    if (problem := _not_for_ray(Path(usual))) is None:
        return Path(os.path.abspath(usual)), ""
    for other in _other_bases():
        if _not_for_ray(other) is None:
            said = f"TMPDIR={usual}" if usual == os.environ.get("TMPDIR") else usual
            return other, f"{said}: {problem}; Ray's files go to {other} (RAY_TMPDIR moves them)"
    raise ConfigError(
        f"Ray has no folder for its files: {usual}: {problem}; set RAY_TMPDIR to a folder of yours "
        f"whose path has at most {LONGEST_FOR_RAY} characters"
    )


def _other_bases() -> Iterator[Path]:
    for folder in _OTHERS:
        base = Path(folder, f"rlforge-{os.getuid()}")
        # What another user has put there is passed over.
        if not os.path.lexists(base) or (base.is_dir() and base.lstat().st_uid == os.getuid()):
            yield base


def _not_for_ray(base: Path) -> str | None:
    """Why Ray cannot make its folder in ``base``; None: it can."""
    size = len(os.fsencode(os.path.abspath(base)))
    if size > LONGEST_FOR_RAY:
        return f"{size} characters are too long for Ray's sockets, at most {LONGEST_FOR_RAY} fit"
    return obstacle(base / "ray")


def settle_ray() -> None:
    """Set where a Ray of our own puts its files, and its token where the home cannot have it."""
    base, why = ray_base()
    if why:
        private_folder(base)
    if why or str(base) != (os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"):
        # Processes of Ray have another working directory, and an empty variable is a path to Ray.
        os.environ["RAY_TMPDIR"] = str(base)
    if lacks_token():
        # Ray's processes inherit it; it never lies on a disk, and is gone with this process.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def lacks_token() -> bool:
    """Whether Ray would write its token into a home that cannot have it."""
    if any(os.environ.get(each) for each in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return False
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return False
    file = token_folder() / "auth_token"
    return not os.access(file, os.R_OK) and obstacle(file.parent) is not None


def token_folder() -> Path:
    """The folder in which Ray keeps its token by default."""
    return Path(os.path.expanduser("~"), ".ray")
