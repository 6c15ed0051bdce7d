"""How a population lives through time: as fast as it can, or beside the clock on the wall."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rlforge.continuous.population import Population
from rlforge.continuous.snapshot import save_life
from rlforge.trajectories.grid import Clock


class Stopped(Exception):  # noqa: N818  # not an error: somebody pressed Ctrl-C
    """The run was asked to end."""


class SimulationDriver(Protocol):
    """What the trainer knows of the world."""

    def now(self) -> float:
        """Its clock, in seconds since 1970 UTC."""
        ...

    async def live_until(self, moment: float) -> None:
        """Return once the clock shows ``moment``. Raises ``Stopped`` when the run is to end."""
        ...

    async def save(self, path: Path) -> None:
        """Write the life as it is between two ticks."""
        ...

    async def close(self) -> None:
        """End living."""
        ...


class SimulatedTimeDriver:
    """Time passes by being lived: nothing happens while the trainer works."""

    def __init__(
        self, population: Population, now: Callable[[], float], stop: asyncio.Event
    ) -> None:
        """now: the time of the market's clock, as the population has it."""
        self._population, self._now, self._stop = population, now, stop

    def now(self) -> float:
        return self._now()

    async def live_until(self, moment: float) -> None:
        while self._now() < moment:
            if self._stop.is_set():
                raise Stopped
            await self._population.step()

    async def save(self, path: Path) -> None:
        await asyncio.to_thread(save_life, self._population.life, path)

    async def close(self) -> None:
        return


class WallClockDriver:
    """A tick every ``tick_s`` seconds of the clock, while the trainer trains, too.

    Decisions say which version made them, so those of a window that went on beside a training are
    known to be of the version before it.
    """

    def __init__(
        self, population: Population, clock: Clock, tick_s: float, stop: asyncio.Event
    ) -> None:
        self._population, self._clock, self._tick_s = population, clock, tick_s
        self._stop = stop
        self._between_ticks = asyncio.Lock()
        self._living: asyncio.Task[None] | None = None

    def now(self) -> float:
        return self._clock.now()

    async def live_until(self, moment: float) -> None:
        if self._living is None:
            self._living = asyncio.create_task(self._live())
        waiting = asyncio.create_task(self._clock.wait_until(moment))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait(
                {self._living, waiting, stopping}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
            stopping.cancel()
        if self._living.done():
            self._living.result()  # it never ends but by what it raises
        if self._stop.is_set():
            raise Stopped

    async def save(self, path: Path) -> None:
        async with self._between_ticks:
            await asyncio.to_thread(save_life, self._population.life, path)

    async def close(self) -> None:
        if self._living is not None:
            self._living.cancel()
            await asyncio.wait({self._living})

    async def _live(self) -> None:
        while self._population.is_repeating:
            async with self._between_ticks:
                await self._population.step()
        due = self._clock.now()
        while True:
            async with self._between_ticks:
                await self._population.step()
            # Ticks that were missed, by a slow model or a sleeping machine, are not made up for.
            due = max(due + self._tick_s, self._clock.now())
            await self._clock.wait_until(due)
