"""The report that is served while its run goes on."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from queue import Queue

import httpx
import pytest

from rlforge.errors import ConfigError
from rlforge.system.files import atomic_write
from rlforge.tracking import live_report
from rlforge.tracking.live_report import watch


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_report, "WRITE_EVERY_S", 0.05)
    monkeypatch.setattr(live_report, "ASK_EVERY_S", 0.1)


@pytest.mark.usefixtures("quick")
def test_the_page_is_written_again_and_served_until_the_run_ends(tmp_path: Path) -> None:
    page, goes_on = tmp_path / "comparison.html", threading.Event()
    goes_on.set()
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "report.html").write_text("<p>of a job</p>")
    (tmp_path / "0" / "config.yaml").write_text("seed: 0\n")
    addresses: Queue[str] = Queue()
    texts = iter(range(1_000_000))

    def write() -> Path:
        atomic_write(page, f"<body>{next(texts)}</body>")
        return page

    server = threading.Thread(target=watch, args=(write, goes_on.is_set, 0, addresses.put))
    server.start()
    try:
        address = addresses.get(timeout=60)
        assert address.startswith("http://127.0.0.1:")
        first = httpx.get(f"{address}version").text
        served = httpx.get(address)
        assert "location.reload()" in served.text
        assert served.text.endswith("</script>\n</body>")
        assert served.headers["content-type"] == "text/html; charset=utf-8"
        while httpx.get(f"{address}version").text == first:
            pass
        assert httpx.get(f"{address}0/report.html").text == "<p>of a job</p>"
        for hidden in ("0/config.yaml", "nothing", "%2e%2e/report.html"):
            assert httpx.get(address + hidden).status_code == 404
    finally:
        goes_on.clear()
        server.join(60)
    assert not server.is_alive()
    assert "script" not in page.read_text()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}: Address already in use; leave it"):
            watch(lambda: page, lambda: True, port, print)
