"""Debian's Chromium without a window, driven by its debugging protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium")

_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--remote-debugging-port=0"),
)


class Tab:
    """One tab. asked: addresses that it asked for. errors: what its console has of errors."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._ids = socket, count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self.asked: list[str] = []
        self.errors: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            said = json.loads(message)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
                continue
            facts = said["params"]
            match said["method"]:
                case "Page.loadEventFired":
                    self._loaded.set()
                case "Network.requestWillBeSent":
                    self.asked.append(facts["request"]["url"])
                case "Runtime.exceptionThrown":
                    self.errors.append(json.dumps(facts["exceptionDetails"]))
                case "Runtime.consoleAPICalled" if facts["type"] in ("error", "warning"):
                    self.errors.append(json.dumps(facts["args"]))
                case "Log.entryAdded" if facts["entry"]["level"] in ("error", "warning"):
                    self.errors.append(json.dumps(facts["entry"]))

    async def call(self, method: str, **given: Any) -> Any:
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"id": number, "method": method, "params": given}))
        said = await asyncio.wait_for(answer, 60)
        assert "error" not in said, (method, said)
        return said["result"]

    async def look(self, width: int, *, dark: bool = False) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def open(self, url: str) -> None:
        async with self.loading():
            await self.call("Page.navigate", url=url)

    @contextlib.asynccontextmanager
    async def loading(self) -> AsyncIterator[None]:
        """The block makes the tab load a page, which is there afterwards."""
        self._loaded.clear()
        yield
        await asyncio.wait_for(self._loaded.wait(), 60)

    async def run(self, script: str) -> Any:
        """The value of a script, or of its promise."""
        given = {"expression": script, "awaitPromise": True, "returnByValue": True}
        said = await self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def until(self, script: str, seconds: float = 30.0) -> None:
        async with asyncio.timeout(seconds):
            while not await self.run(script):  # noqa: ASYNC110  # pages have no event
                await asyncio.sleep(0.1)

    async def click(self, selector: str) -> None:
        """A press of the mouse in the middle of an element, and its release."""
        box = f"document.querySelector({json.dumps(selector)})"
        await self.run(f"{box}.scrollIntoView({{ block: 'center' }})")
        middle = "({ x: r.x + r.width / 2, y: r.y + r.height / 2 })"
        place = await self.run(
            f"(() => {{ const r = {box}.getBoundingClientRect(); return {middle} }})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            press = {"type": kind, "button": "left", "clickCount": 1, **place}
            await self.call("Input.dispatchMouseEvent", **press)

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)


@contextlib.asynccontextmanager
async def browsing(profile: Path) -> AsyncIterator[Tab]:
    """A tab of a browser of its own, whose profile is in the folder ``profile``."""
    assert CHROMIUM is not None, "the caller skips without it"
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *_OPTIONS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        known = profile / "DevToolsActivePort"
        async with asyncio.timeout(90):
            while not (known.is_file() and known.read_text().count("\n")):
                assert process.returncode is None, "chromium does not start"
                await asyncio.sleep(0.1)
        at = f"http://127.0.0.1:{known.read_text().split()[0]}/json/new?about:blank"
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            address = (await http.put(at)).json()["webSocketDebuggerUrl"]
        async with connect(address, max_size=None, proxy=None) as socket:
            tab = Tab(socket)
            listening = asyncio.create_task(tab.listen())
            for domain in ("Page", "Runtime", "Log", "Network"):
                await tab.call(f"{domain}.enable")
            yield tab
            listening.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
