"""Several actors in one process, where cores are few: each process costs seconds of start.

A ``Host`` is the Ray actor of the process; ``Hosted`` is the handle of an object in it, and is used
as that of a Ray actor. Calls of one caller begin in their order.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pkgutil import resolve_name
from typing import Any

import ray

from rlforge.config.names import described
from rlforge.errors import RunError
from rlforge.run.actors.process import begin

STATE = "state"
"""Process of the actors that hold the state of a run and compute little."""


class Host:
    """A process for several actors."""

    def __init__(self, name: str, run_dir: str) -> None:
        begin(name, run_dir)
        self._made: dict[str, Any] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}

    async def make(self, name: str, path: str, given: Mapping[str, Any]) -> None:
        """Make the actor ``name`` of the class at ``path``; its constructor gets ``given``."""
        cls = resolve_name(path)
        self._made[name] = cls(**given)
        # Calls of a class without coroutines must not overlap: a thread makes them, as in an actor.
        if not any(inspect.iscoroutinefunction(method) for _, method in inspect.getmembers(cls)):
            self._threads[name] = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def call(self, name: str, method: str, *arguments: Any, **named: Any) -> Any:
        made = self._made[name]
        if method == "__ray_ready__":
            return True
        if method == "__ray_call__":
            called = partial(arguments[0], made, *arguments[1:], **named)
        else:
            called = partial(getattr(made, method), *arguments, **named)
        try:
            if (thread := self._threads.get(name)) is not None:
                return await asyncio.get_running_loop().run_in_executor(thread, called)
            result = called()
            return await result if inspect.isawaitable(result) else result
        except (SystemExit, KeyboardInterrupt) as error:
            # Either would end the event loop of all actors in this process.
            raise RunError(f"{name} fails: {described(error)}") from error


class Hosted:
    """The handle of an actor in a host."""

    def __init__(self, host: Any, name: str) -> None:
        self.host, self._name = host, name

    def __getattr__(self, method: str) -> Method:
        if method.startswith("_") and method not in ("__ray_call__", "__ray_ready__"):
            raise AttributeError(method)
        return Method(self.host.call, self._name, method)


class Method:
    """A method of a hosted actor, called by ``remote``."""

    def __init__(self, call: Any, name: str, method: str) -> None:
        self._call, self._name, self._method = call, name, method

    def options(self, **options: Any) -> Method:
        return Method(self._call.options(**options), self._name, self._method)

    def remote(self, *arguments: Any, **named: Any) -> Any:
        return self._call.remote(self._name, self._method, *arguments, **named)


def find_actor(name: str) -> Any:
    """Handle of the actor ``name`` of this run."""
    try:
        return ray.get_actor(name)
    except ValueError:
        return Hosted(ray.get_actor(STATE), name)
