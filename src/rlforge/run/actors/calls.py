"""Calls of a run's actors that live through the death, restart and absence of some of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from rlforge.run.actors.cluster import RunActors
from rlforge.run.actors.process import DEATHS, restarted
from rlforge.types import PolicyRef

log = logging.getLogger(__name__)

LATE_S = 5.0
"""Seconds that a publication waits for further engines of an elastic run once one has it."""


class ActorCalls:
    """Calls the actors of a run by name.

    An actor that does not answer is absent until ``back`` returns; in an elastic run that may be
    when a node joins.
    """

    # Ray restarts actors that die, as often as ``max_restarts`` says: meanwhile their calls raise
    # ActorUnavailableError, and once it has given them up, another one of ``DEATHS``.

    def __init__(self, actors: RunActors, note: Callable[[str], None], *, elastic: bool) -> None:
        self._actors, self._note, self._elastic = actors, note, elastic
        self._given_up: set[str] = set()
        #: Number of restarts of actors so far.
        self.restarts = 0

    async def ask(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of an actor once; None where the actor is lost meanwhile."""
        try:
            return await getattr(self._actors.named[name], method).remote(*arguments)
        except DEATHS as error:
            self.lost(name, error)
            return None

    async def call(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of an actor, and again when its process died and Ray restarts it."""
        while True:
            try:
                return await getattr(self._actors.named[name], method).remote(*arguments)
            except ray.exceptions.ActorUnavailableError as error:
                self.lost(name, error)
                await self.back(name)

    def lost(self, name: str, error: Exception) -> None:
        """Count an actor as absent until ``back`` returns."""
        log.warning("%s is absent: %s", name, error)
        # Without ``elastic`` the user reads of the restart (``count_restart``), which is enough.
        if self._elastic and name not in self._actors.absent:
            self._note(f"{name} does not answer")
        self._actors.absent.add(name)

    async def back(self, name: str) -> None:
        """Wait until an actor is no longer absent."""
        if name not in self._actors.absent:
            return
        await restarted(self._actors.named[name], name, elastic=self._elastic)
        if self._elastic and name in self._actors.absent:
            self._note(f"{name} has joined")
        self._actors.absent.discard(name)

    def count_restart(self, name: str) -> None:
        self.restarts += 1
        self._note(f"{name} died and is restarted")

    async def unless_given_up(self, name: str, loop: Awaitable[None]) -> None:
        """Await the loop of an actor; with ``elastic`` others of its kind may outlive it."""
        try:
            await loop
        except DEATHS as error:
            self._actors.absent.add(name)
            self._given_up.add(name)
            kind = name.partition("-")[0]
            if not self._elastic or self._given_up.issuperset(self._actors.replicas(kind)):
                raise
            self._note(f"{name} died more often than {kind}.max_restarts; the run goes on without")
            log.error("%s is given up: %s", name, error)
        except ray.exceptions.RayTaskError as error:
            # Without an engine all games fail, which may be noticed first.
            if (death := await self._death_of_engines()) is not None:
                raise death from error
            raise

    async def _death_of_engines(self) -> Exception | None:
        """Why Ray has given up an engine; with ``elastic`` all of them."""

        async def death(name: str) -> Exception | None:
            try:
                await asyncio.wait_for(self._actors.named[name].report.remote(), LATE_S)
            except (TimeoutError, ray.exceptions.ActorUnavailableError):
                return None
            except DEATHS as error:
                return error
            return None

        deaths = await asyncio.gather(*map(death, self._actors.replicas("engine")))
        if self._elastic and None in deaths:
            return None
        return next(filter(None, deaths), None)

    async def use(self, policy: PolicyRef) -> None:
        """Load a version in the engines, and let the collectors go on with it."""
        if self._elastic:
            await self._load_where_present(policy)
        else:
            names = self._actors.replicas("engine")
            await asyncio.gather(*(self.call(name, "load", policy) for name in names))
        for collector in self._actors.collectors:
            collector.use_version.remote(policy)

    async def _load_where_present(self, policy: PolicyRef) -> None:
        loads = [
            asyncio.ensure_future(self.ask(name, "load", policy))
            for name in self._actors.present("engine")
        ]
        if loads:
            await asyncio.wait(loads, return_when=asyncio.FIRST_COMPLETED)
            loaded, late = await asyncio.wait(loads, timeout=LATE_S)
            # A late engine loads the version when a request asks for it.
            for task in late:
                task.cancel()
            for task in loaded:
                task.result()
