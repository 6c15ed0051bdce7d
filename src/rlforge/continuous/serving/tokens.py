"""The tokens of clients and administrators, and the signed ids of answers."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
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
ADMIN_FILE = "admin_token"
"""File of the administrators' token in the state folder."""

_CLIENT_FILE = "token"


@value
class Tokens:
    """Tokens of requests; the administrators' does for any request."""

    client: str
    admin: str

    def allow(self, given: str, *, admin: bool) -> bool:
        """Whether a header's token allows a request, or, with ``admin``, an admin call."""
        known = (self.admin,) if admin else (self.admin, self.client)
        # Headers are decoded as latin-1, so only bytes tell whether a UTF-8 token is the same.
        return any(hmac.compare_digest(given.encode("latin-1"), one.encode()) for one in known)


def make_tokens(state_dir: Path) -> Tokens:
    """The tokens, of the environment or files; ConfigError for one empty or open to others."""
    return Tokens(
        client=_made(state_dir / _CLIENT_FILE, CLIENT_VARIABLE),
        admin=_made(state_dir / ADMIN_FILE, ADMIN_VARIABLE),
    )


def read_admin_token(state_dir: Path) -> str:
    """The administrators' token that a service made; ConfigError where it cannot be read."""
    return _read(state_dir / ADMIN_FILE, ADMIN_VARIABLE)


def _made(file: Path, variable: str) -> str:
    if given := os.environ.get(variable, "").strip():
        return given
    try:
        # Made with this mode, so that others can read it at no moment.
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
    # Others on the machine could use the token.
    if mode & 0o077:
        raise ConfigError(f"{file} can be read by others (mode {mode:o}): chmod 600 {file}")
    if not token:
        raise ConfigError(f"{file} is empty; delete it, and rlforge serve makes a new one")
    return token


@value
class AnswerId:
    """Content of an answer's id: the deployment, and what stands for the user.

    trial: number of the deployment on trial that chose it, if any.
    """

    uid: str
    trial: int | None
    user: str


class AnswerIds:
    """Makes ids of answers, and recognises those of services with the same ``secret``."""

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(f"answer ids\0{secret}".encode()).digest()

    def new(self, kind: str, uid: str, user: str | None = None, *, trial: int | None = None) -> str:
        # Random where none is given: else the outcomes of all unnamed users would count as
        # those of one user.
        known = secrets.token_hex(8) if user is None else self.stand_in(f"user {user}")
        chosen_by = "" if trial is None else trial
        begun = f"{kind}-{uid}-{chosen_by}-{known}{secrets.token_hex(8)}"
        # Signed, so that no client can make one up and vote in a trial.
        return begun + self.stand_in(begun)

    def read(self, given: str) -> AnswerId | None:
        form = r"((?:chatcmpl|cmpl)-(deploy-\d+)-(\d*)-([0-9a-f]{16})[0-9a-f]{16})([0-9a-f]{16})"
        found = re.fullmatch(form, given, re.ASCII)
        if found is None or not hmac.compare_digest(found[5], self.stand_in(found[1])):
            return None
        return AnswerId(uid=found[2], trial=int(found[3]) if found[3] else None, user=found[4])

    def stand_in(self, name: str) -> str:
        """16 digits that stand for ``name``: only the service can tell which."""
        return hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()[:16]


def network(host: str) -> str:
    """An address, or of IPv6 its /64 network."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    mapped = address.ipv4_mapped
    if mapped is not None:
        return str(mapped)
    # One machine may have all addresses of a /64, and could vote with each.
    return str(ipaddress.ip_network((int(address), 64), strict=False))
