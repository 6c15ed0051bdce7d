"""A report that is rewritten while its run goes on, served on loopback."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from rlforge.errors import ConfigError

#: Seconds between two versions of the file, and between two questions of a page for a newer one.
WRITE_EVERY_S, ASK_EVERY_S = 5.0, 2.0

#: Writing takes at most this share of the time, since the run needs the processor.
_WRITING_SHARE = 0.1

#: In the served page only: the file stays free of scripts.
_SCRIPT = """<script>
setInterval(async () => {
  const now = await (await fetch("/version")).text();
  if (now !== "%s") location.reload();
}, %d);
</script>
"""


def watch(
    write: Callable[[], Path], running: Callable[[], bool], port: int, say: Callable[[str], None]
) -> Path:
    """Write the report again and again until ``running`` is false or Ctrl-C; returns its path.

    write: replaces the file in one step (``atomic_write``), since it is served meanwhile. port: on
    127.0.0.1, 0 for any free one. say: is given the address. Raises ConfigError where the port is
    taken.
    """
    page = write()
    try:
        server = _PageServer(port, page)
    except OSError as error:
        raise ConfigError(f"--port {port}: {error.strerror}; leave it out for a free one") from None
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        say(f"http://127.0.0.1:{server.server_port}/")
        try:
            while running():
                started = time.monotonic()
                write()
                took = time.monotonic() - started
                time.sleep(max(WRITE_EVERY_S, took / _WRITING_SHARE))
            write()
            time.sleep(2 * ASK_EVERY_S)  # open pages load the last version
        except KeyboardInterrupt:
            pass
        server.shutdown()
    return page


class _PageServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, page: Path) -> None:
        super().__init__(("127.0.0.1", port), _Pages)
        self.page = page


class _Pages(BaseHTTPRequestHandler):
    """The page, its version, and the reports of runs below its folder that it links to."""

    def do_GET(self) -> None:
        page = cast("_PageServer", self.server).page
        asked = unquote(urlsplit(self.path).path)
        content = page.read_bytes()
        version = hashlib.sha256(content).hexdigest()
        if asked == "/version":
            self._answer(version.encode(), "text/plain")
        elif asked == "/":
            script = (_SCRIPT % (version, 1000 * ASK_EVERY_S)).encode()
            start, end, rest = content.rpartition(b"</body>")
            self._answer(start + script + end + rest, "text/html")
        else:
            folder = page.parent.resolve()
            linked = (folder / asked.lstrip("/")).resolve()
            if linked.name == "report.html" and linked.is_relative_to(folder) and linked.is_file():
                self._answer(linked.read_bytes(), "text/html")
            else:
                self.send_error(404)

    def _answer(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not news."""
