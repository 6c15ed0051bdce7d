"""Proxies of the environment: the one of an address, wrong ones, and loopback, which has none."""

from __future__ import annotations

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import getproxies

import httpx
import pytest
from tests.harness.server import running

from rlforge.errors import ConfigError
from rlforge.system.network import check_proxies, spare_loopback, through

HUB = "https://huggingface.co"
DEAD = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("rlforge.system.network.getproxies", getproxies)


@pytest.mark.parametrize(
    ("variables", "url", "shown"),
    [
        ({}, HUB, ""),
        ({"HTTPS_PROXY": DEAD}, HUB, f"HTTPS_PROXY={DEAD}"),
        ({"https_proxy": DEAD, "HTTPS_PROXY": "http://other:1"}, HUB, f"https_proxy={DEAD}"),
        ({"http_proxy": DEAD}, HUB, ""),
        ({"ALL_PROXY": "proxy:3128"}, HUB, "ALL_PROXY=proxy:3128"),
        ({"HTTPS_PROXY": "http://me:p@ss@proxy:1"}, HUB, "HTTPS_PROXY=http://***@proxy:1"),
        ({"HTTPS_PROXY": "me:secret@proxy:1"}, HUB, "HTTPS_PROXY=***@proxy:1"),
        ({"HTTPS_PROXY": DEAD, "no_proxy": "other.org,huggingface.co"}, HUB, ""),
        ({"HTTPS_PROXY": DEAD, "NO_PROXY": "other.org, *"}, HUB, ""),
        ({"HTTPS_PROXY": DEAD, "no_proxy": "localhost,127.0.0.1"}, HUB, f"HTTPS_PROXY={DEAD}"),
        ({"http_proxy": DEAD}, "http://127.9.9.9:80", ""),
        ({"http_proxy": DEAD}, "http://[::1]:80", ""),
        ({"http_proxy": DEAD}, "http://api.localhost", ""),
        ({"http_proxy": DEAD}, "http://10.0.0.1", f"http_proxy={DEAD}"),
    ],
)
def test_the_variable_of_an_address_is_named(variables, url, shown, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    check_proxies()
    assert through(url) == (f" through {shown}" if shown else "")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("HTTP_PROXY", "foo:bar:baz", "HTTP_PROXY=foo:bar:baz: not the address of a proxy"),
        ("https_proxy", "http://", "https_proxy=http://: not the address of a proxy"),
        ("https_proxy", "http://[::1", r"https_proxy=http://\[::1: not the address of a proxy"),
        ("all_proxy", "socks://proxy:1", "all_proxy=socks://proxy:1: socks:// is none of http, "),
        ("all_proxy", "http://me:p://@x:1", r"all_proxy=http://\*\*\*@x:1: not the address"),
        ("ALL_PROXY", "a:b:c@x:y", r"ALL_PROXY=\*\*\*@x:y: not the address"),
        ("HTTP_PROXY", "http://proxy..corp:1", r"HTTP_PROXY=http://proxy..corp:1: not the address"),
    ],
)
def test_a_variable_that_names_no_proxy_is_refused(name, value, problem, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"^{problem}.*; mend the variable, or unset it$"):
        check_proxies()
    monkeypatch.setenv("no_proxy", "*")
    check_proxies()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost"])
def test_libraries_leave_spared_loopback_to_no_proxy(host, monkeypatch):
    for name in ("http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, DEAD if name == "http_proxy" else "example.org")
    with running(ThreadingHTTPServer(("", 0), BaseHTTPRequestHandler)) as server:
        url = f"http://{host}:{server.server_port}"
        spare_loopback(url)
        spare_loopback("http://example.com")
        assert httpx.get(url).status_code == 501  # an answer of the server itself
    hosts = os.environ["no_proxy"].split(",")
    assert hosts[0] == "example.org"
    assert len(hosts) == len(set(hosts))
    assert through("http://example.com") == f" through http_proxy={DEAD}"
    monkeypatch.setenv("no_proxy", "*")
    spare_loopback(url)
    assert os.environ["no_proxy"] == "*"
