"""Lets time pass, simulated or by the wall clock, and saves the state of a simulation."""

from __future__ import annotations

import asyncio
import io
import logging
import math
import pickle
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rlforge.continuous.loop.population import FORMAT, Population, SimulationState
from rlforge.errors import RunError
from rlforge.system.files import atomic_write
from rlforge.system.loops import unless

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Most seconds of one sleep: the clock may be set meanwhile.
_LOOK_EVERY_S = 30.0
#: Steps back of at most so many seconds are not logged: a clock being adjusted makes them.
_TOLERANCE_S = 1.0


class Stopped(Exception):  # noqa: N818  # not an error: the user pressed Ctrl-C
    """The run was asked to end."""


class Driver:
    """Lets time pass until decisions are on record; by itself, where all of them are already.

    stop: set when the run is asked to end.
    """

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    def check_stop(self) -> None:
        if self._stop.is_set():
            raise Stopped

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, which is cancelled where the run is asked to end meanwhile."""
        done = await unless(self._stop, work)
        if not done:
            raise Stopped
        return done[0]

    async def advance_to(self, moment: float) -> None:
        """Return once the clock shows ``moment`` and all decisions before it are on record."""
        self.check_stop()

    async def settle(self, window_id: str, may_stay_open: int) -> None:
        """Return once at most so many decisions of a window lack an outcome."""
        return

    async def save(self, path: Path) -> None:
        """Write the state of a simulation, if there is one, between two ticks."""
        return

    async def close(self) -> None:
        """End what runs in the background."""
        return


class SimulatedTimeDriver(Driver):
    """Time advances only by running ticks. now: the market's."""

    def __init__(
        self, population: Population, now: Callable[[], float], stop: asyncio.Event
    ) -> None:
        super().__init__(stop)
        self._population, self._now = population, now

    async def advance_to(self, moment: float) -> None:
        while self._now() < moment:
            self.check_stop()
            await self.unless_stopped(self._population.tick())

    async def settle(self, window_id: str, may_stay_open: int) -> None:
        while self._population.unsettled(window_id) > may_stay_open:
            self.check_stop()
            await self.unless_stopped(self._population.tick())

    async def save(self, path: Path) -> None:
        await asyncio.to_thread(save_simulation_state, self._population.state, path)


class WallClock:
    """The machine's clock, in seconds since 1970 UTC. Each jump back is logged once."""

    def __init__(self, read: Callable[[], float] = time.time) -> None:
        self._read = read
        self._latest = -math.inf

    def now(self) -> float:
        moment = self._read()
        if moment < self._latest - _TOLERANCE_S:
            log.warning(
                "the clock was set back by %.0f s; decisions go to the window of their time",
                self._latest - moment,
            )
            self._latest = moment
        self._latest = max(self._latest, moment)
        return moment

    async def wait_until(self, moment: float) -> None:
        # Polled, because setting the clock raises no event that could be awaited.
        while (left := moment - self.now()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, _LOOK_EVERY_S))


class WallClockDriver(Driver):
    """Runs a tick at every multiple of ``tick_s`` of the clock, also while the trainer trains."""

    def __init__(
        self, population: Population, clock: WallClock, tick_s: float, stop: asyncio.Event
    ) -> None:
        super().__init__(stop)
        self._population, self._clock, self._tick_s = population, clock, tick_s
        # Held during a tick, in the middle of which no state may be saved.
        self._between_ticks = asyncio.Lock()
        self._ticking: asyncio.Task[None] | None = None

    async def advance_to(self, moment: float) -> None:
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._run_ticks())
        await self.unless_stopped(self._recorded_until(moment, self._ticking))

    async def _recorded_until(self, moment: float, ticking: asyncio.Task[None]) -> None:
        waiting = asyncio.create_task(self._clock.wait_until(moment))
        try:
            await asyncio.wait({waiting, ticking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        async with self._between_ticks:
            if ticking.done():
                # The task ends only by an error, which is raised here.
                ticking.result()

    async def settle(self, window_id: str, may_stay_open: int) -> None:
        while self._population.unsettled(window_id) > may_stay_open:
            await self.advance_to(self._next_tick())

    async def save(self, path: Path) -> None:
        async with self._between_ticks:
            await asyncio.to_thread(save_simulation_state, self._population.state, path)

    async def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.wait({self._ticking})

    async def _run_ticks(self) -> None:
        # Ticks on record are repeated at once: their time is over.
        while self._population.is_repeating:
            async with self._between_ticks:
                await self._population.tick()
        while True:
            # Counted from now: ticks that a slow model or a suspended machine missed are skipped.
            await self._clock.wait_until(self._next_tick())
            async with self._between_ticks:
                await self._population.tick()

    def _next_tick(self) -> float:
        return (math.floor(self._clock.now() / self._tick_s) + 1) * self._tick_s


class WaitingDriver(Driver):
    """The wall clock, where decisions are recorded together with their outcomes."""

    def __init__(self, clock: WallClock, stop: asyncio.Event) -> None:
        super().__init__(stop)
        self._clock = clock

    async def advance_to(self, moment: float) -> None:
        await self.unless_stopped(self._clock.wait_until(moment))


# ---------------------------------------------------------------- the state on disk

#: The modules whose classes a state consists of, and the plain types that those hold.
_MODULES = (
    "rlforge.continuous.market.",
    "rlforge.continuous.config.market",
    "rlforge.continuous.loop.population",
)
_PLAIN = {
    ("collections", "deque"),
    ("random", "Random"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
    *(("rlforge.config.rules", name) for name in ("_List", "_Mapping")),
}


def simulation_state_path(run_dir: Path, number: int) -> Path:
    """The state that window ``number`` starts from."""
    return run_dir / "world" / f"window-{number}.pkl"


def save_simulation_state(state: SimulationState, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL), durable=True)


def load_simulation_state(path: Path) -> SimulationState:
    """Read a state back; RunError for a file that is missing, damaged, or anything else."""
    try:
        state = _Reader(io.BytesIO(path.read_bytes())).load()
    except FileNotFoundError:
        raise RunError(f"{path} is missing: the run cannot be resumed") from None
    except Exception as error:
        # Bytes that are no pickle raise errors of any type.
        raise RunError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(state, SimulationState):
        raise RunError(f"{path} holds a {type(state).__name__}, not a simulation's state")
    if vars(state).get("format") != FORMAT:
        raise RunError(f"{path} is of another release of rlforge, which alone can resume the run")
    return state


# A pickle can call anything, and run directories are passed on: only a market's classes are read.
class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        ours = any(module == known or module.startswith(known) for known in _MODULES)
        if (ours and "." not in name) or (module, name) in _PLAIN:
            found = super().find_class(module, name)
            if (module, name) in _PLAIN or isinstance(found, type):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a market")
