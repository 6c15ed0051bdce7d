"""Proxies of the environment: the one that a request goes through, and what is wrong with one."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
import time
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from rlforge.errors import ConfigError

#: What the HTTP clients take for a proxy.
_SCHEMES = ("http", "https", "socks5", "socks5h")

#: Seconds in which a proxy takes a connection.
_PROXY_S = 1.0


class ProxyError(ConfigError):
    """A variable of the environment names no proxy, or one that does not lead there."""


def is_loopback(host: str) -> bool:
    """Whether ``host`` is a loopback address, ``localhost`` or a name below it.

    Example:
        >>> [is_loopback(host) for host in ("127.0.0.9", "::1", "api.localhost", "example.com")]
        [True, True, True, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def on_loopback(url: str) -> bool:
    """Whether ``url`` has a host that is loopback; a client then gets ``trust_env=False``.

    Example:
        >>> on_loopback("http://127.0.0.1:8000/v1"), on_loopback("https://huggingface.co")
        (True, False)
    """
    return is_loopback(urlsplit(url).hostname or "")


def spare_loopback(url: str | None = None) -> None:
    """Add loopback to ``no_proxy``, with the host of ``url`` where it is another name for it."""
    # A proxy could not reach this machine, and the clients of some libraries heed nothing else.
    proxies = getproxies()
    if _none_used(proxies):
        # urllib and requests know "*" only alone: further hosts would end its effect.
        return
    known = [each.strip() for each in proxies.get("no", "").split(",")]
    spared = ["localhost", "127.0.0.1", "::1"]
    if url is not None and on_loopback(url):
        spared.append(urlsplit(url).hostname or "")
    hosts = dict.fromkeys([each for each in [*known, *spared] if each])
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)


def through(url: str) -> str:
    """``" through HTTPS_PROXY=http://HOST:PORT"`` for messages, or an empty string."""
    parts, proxies = urlsplit(url), getproxies()
    host = parts.hostname or ""
    if is_loopback(host) or _none_used(proxies) or proxy_bypass(host):
        return ""
    kind = next((kind for kind in (parts.scheme, "all") if proxies.get(kind)), None)
    return "" if kind is None else f" through {_shown(kind, proxies[kind])}"


def without_credentials(url: str) -> str:
    """``url`` without a user's name and password.

    Example:
        >>> without_credentials("https://me:secret@example.com/v1")
        'https://***@example.com/v1'
    """
    credentials, at, place = url.rpartition("@")
    scheme, mark, _ = credentials.partition("://")
    return f"{scheme + mark if mark else ''}***@{place}" if at else url


def check_proxies() -> None:
    """Raise ProxyError where a variable names no proxy."""
    # HTTP clients would refuse every request, and not name the variable.
    proxies = getproxies()
    if _none_used(proxies):
        return
    for kind in ("http", "https", "all"):
        if (value := proxies.get(kind)) and (problem := _problem(value)):
            raise ProxyError(f"{_shown(kind, value)}: {problem}; mend the variable, or unset it")


def silent_proxies() -> list[str]:
    """The variables whose proxy takes no connection within ``_PROXY_S`` seconds."""
    proxies, silent = getproxies(), list[str]()
    if _none_used(proxies):
        return silent

    def ask(kind: str, value: str) -> None:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 1080)
        with contextlib.suppress(OSError):
            socket.create_connection((parts.hostname or "", port), timeout=_PROXY_S).close()
            heard.add(kind)

    heard = set[str]()
    used = {kind: proxies[kind] for kind in ("http", "https", "all") if proxies.get(kind)}
    used = {kind: value for kind, value in used.items() if _problem(value) is None}
    # A resolver that is dead, too, would hold this process for longer than any time-out.
    asking = [threading.Thread(target=ask, args=each, daemon=True) for each in used.items()]
    for thread in asking:
        thread.start()
    deadline = time.monotonic() + 2 * _PROXY_S
    for thread in asking:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [_shown(kind, value) for kind, value in used.items() if kind not in heard]


def _problem(value: str) -> str | None:
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        host = (parts.hostname or "").encode("idna")  # an error is a ValueError, too
        whole = bool(host) and (parts.port or 1) > 0
    except ValueError:
        whole = False
    if not whole:
        return "not the address of a proxy, as http://HOST:PORT"
    if parts.scheme not in _SCHEMES:
        return f"{parts.scheme}:// is none of {', '.join(_SCHEMES)}"
    if parts.scheme.startswith("socks") and find_spec("socksio") is None:
        return "a SOCKS proxy needs the package socksio (pip install socksio)"
    return None


def _none_used(proxies: dict[str, str]) -> bool:
    return "*" in [host.strip() for host in proxies.get("no", "").split(",")]


def _shown(kind: str, value: str) -> str:
    # Where both are set the variable in lower case counts, which comes first in reverse order.
    names = (name for name in sorted(os.environ, reverse=True) if os.environ[name])
    name = next((each for each in names if each.lower() == f"{kind}_proxy"), None)
    return f"{name or f'the {kind} proxy of the system'}={without_credentials(value)}"
