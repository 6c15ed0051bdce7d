"""The tokens of clients and administrators, and the signed ids of answers."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

from rlforge.errors import ConfigError
from rlforge.types import value

CLIENT_VARIABLE = "RLFORGE_SERVE_TOKEN"
"""Environment variable with the clients' token, instead of the file in the state folder."""
ADMIN_VARIABLE = "RLFORGE_ADMIN_TOKEN"
"""Environment variable with the administrators' token, instead of the file."""

_CLIENT_FILE, _ADMIN_FILE = "token", "admin_token"


@value
class Tokens:
    """What requests prove themselves with; the administrators' token does for any request."""

    client: str
    admin: str

    def allow(self, given: bytes, *, admin: bool) -> bool:
        """Whether ``given`` allows a request, or, with ``admin``, an administrator's."""
        known = (self.admin,) if admin else (self.admin, self.client)
        return any(hmac.compare_digest(given, one.encode()) for one in known)


def make_tokens(state_dir: Path) -> Tokens:
    """The service's tokens: of the environment, or of files, which the first start creates.

    Raises ConfigError for a file that other users can read, or that is empty.
    """
    return Tokens(
        client=_made(state_dir / _CLIENT_FILE, CLIENT_VARIABLE),
        admin=_made(state_dir / _ADMIN_FILE, ADMIN_VARIABLE),
    )


def read_admin_token(state_dir: Path) -> str:
    """The administrators' token that a service made; ConfigError where it cannot be read."""
    return _read(state_dir / _ADMIN_FILE, ADMIN_VARIABLE)


def _made(file: Path, variable: str) -> str:
    if given := os.environ.get(variable, "").strip():
        return given
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(file, variable)
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{token}\n")
    return token


def _read(file: Path, variable: str) -> str:
    if given := os.environ.get(variable, "").strip():
        return given
    try:
        mode, token = stat.S_IMODE(file.stat().st_mode), file.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"no token: {file}: {error.strerror}; set {variable}, or start rlforge serve"
        ) from error
    if mode & 0o077:
        raise ConfigError(f"{file} can be read by others (mode {mode:o}): chmod 600 {file}")
    if not token:
        raise ConfigError(f"{file} is empty; delete it, and rlforge serve makes a new one")
    return token


class AnswerIds:
    """Makes ids of answers, and recognises its own, so that no client can make one up.

    An id names the deployment that answered, stands for the user without giving the name away, and
    holds a signature. Services with the same ``secret`` recognise each other's.

    Example:
        >>> ids = AnswerIds("secret")
        >>> made = ids.new("chatcmpl", "deploy-3", "ann")
        >>> deployment, user = ids.read(made)
        >>> deployment, user == ids.read(ids.new("cmpl", "deploy-4", "ann"))[1]
        ('deploy-3', True)
        >>> ids.read(made.replace("deploy-3", "deploy-4")) is None
        True
    """

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(f"answer ids\0{secret}".encode()).digest()

    def new(self, kind: str, uid: str, user: str | None = None) -> str:
        """The id of an answer of kind ``chatcmpl`` or ``cmpl`` by the deployment ``uid``."""
        known = secrets.token_hex(8) if user is None else self._signature(f"user {user}")
        begun = f"{kind}-{uid}-{known}{secrets.token_hex(8)}"
        return begun + self._signature(begun)

    def read(self, given: str) -> tuple[str, str] | None:
        """Deployment of the answer ``given``, and 16 digits that are equal for answers to one user.

        None where no answer has that id.
        """
        form = r"((?:chatcmpl|cmpl)-(deploy-\d+)-([0-9a-f]{16})[0-9a-f]{16})([0-9a-f]{16})"
        found = re.fullmatch(form, given)
        if found is None or not hmac.compare_digest(found[4], self._signature(found[1])):
            return None
        return found[2], found[3]

    def _signature(self, begun: str) -> str:
        return hmac.new(self._key, begun.encode(), hashlib.sha256).hexdigest()[:16]
