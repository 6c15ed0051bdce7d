"""The versions of a continuous run over HTTP, while it lasts: the service that its agents ask."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from rlforge.config.continuous import ContinuousConfig
from rlforge.continuous.assembly import Assembly
from rlforge.serving.guard import make_token
from rlforge.serving.server import answer_requests, found_at, http_over, listen, url_of


@contextlib.asynccontextmanager
async def endpoint(
    config: ContinuousConfig, assembly: Assembly, stop: asyncio.Event, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Answer requests while the context lasts, if ``continuous.http`` wants it.

    The signals that end a service end the run: ``stop`` is set then. Raises ConfigError when the
    address of group ``serve`` cannot be listened on.
    """
    if not config.continuous.http:
        yield
        return
    folder = assembly.service_folder
    app = http_over(
        assembly.service,
        assembly.engine,
        config,
        config.serve,
        make_token(folder),
        assembly.metrics,
    )
    over = asyncio.Event()

    async def ended() -> None:
        await over.wait()

    with contextlib.closing(listen(config.serve.host, config.serve.port)) as listener:
        say(f"serving at {url_of(listener)}/v1")

        async def answer() -> None:
            if await answer_requests(app, listener, drain_s=config.serve.drain_s, failed=ended()):
                stop.set()

        answering_task = asyncio.create_task(answer())
        try:
            with found_at(folder, url_of(listener)):
                yield
        finally:
            over.set()
            await answering_task
