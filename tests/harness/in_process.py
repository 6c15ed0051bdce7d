"""A run's actors as objects of this process: the same classes, calls and files, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import pickle
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from rlforge.cli import main
from rlforge.config.schema import PolicyConfig
from rlforge.preflight.plan import RunPlan, make_plan
from rlforge.run import lifecycle
from rlforge.run.actors import collector, engine, learner, state
from rlforge.run.actors.bundle import Bundle
from rlforge.run.actors.cluster import RunActors
from rlforge.run.actors.folder import RunFolder
from rlforge.run.actors.session import RayProcesses
from rlforge.system.hardware import detect


class InProcessActor:
    """Looks like the handle of a Ray actor; calls of plain methods run one after the other."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self._thread = ThreadPoolExecutor(1)

    def __getattr__(self, name: str) -> Method:
        return Method(getattr(self._made, name), self._thread)

    @property
    def __ray_call__(self) -> Method:
        return Method(lambda function, *given: function(self._made, *given), self._thread)


class Method:
    """A method of an actor, called by ``remote``."""

    def __init__(self, method: Any, thread: ThreadPoolExecutor, num_returns: int = 1) -> None:
        self._method, self._thread, self._num_returns = method, thread, num_returns

    def options(self, num_returns: int) -> Method:
        """The method, each of whose returned values is a future of its own."""
        return Method(self._method, self._thread, num_returns)

    def remote(self, *arguments: Any, **named: Any) -> Any:
        """A future of what is returned; futures among ``arguments`` are awaited first."""
        if self._num_returns == 1:
            if any(isinstance(argument, asyncio.Future) for argument in arguments):
                return asyncio.ensure_future(self._after(arguments, named))
            return self._call(arguments, named)
        call = self._call(arguments, named)
        return [asyncio.ensure_future(_item(call, index)) for index in range(self._num_returns)]

    def _call(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> asyncio.Future[Any]:
        arguments = tuple(map(_arrived, arguments))
        if inspect.iscoroutinefunction(self._method):
            return asyncio.ensure_future(_result(self._method(*arguments, **named)))
        call = partial(self._method, *arguments, **named)
        return asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _after(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        known = [await each if isinstance(each, asyncio.Future) else each for each in arguments]
        return await self._call(tuple(known), named)


def _arrived(what: Any) -> Any:
    """``what`` as the other side of a remote call has it."""
    return pickle.loads(pickle.dumps(what)) if isinstance(what, Bundle) else what


async def _result(call: Coroutine[Any, Any, Any]) -> Any:
    return _arrived(await call)


async def _item(call: asyncio.Future[Any], index: int) -> Any:
    return (await call)[index]


def use_actors_in_process(replace: Callable[[Any, str, Any], None]) -> None:
    """Let runs start their actors here; replace: ``setattr``, or that of a ``monkeypatch``."""
    replace(lifecycle, "start_actors", start_in_process)
    none = contextlib.nullcontext(RayProcesses(()))
    replace(lifecycle, "ray_started", lambda hardware, num_cpus: none)


def rlforge_here(*arguments: str) -> int:
    """The exit code of a command of ``rlforge`` in this process."""
    with mock.patch.object(sys, "argv", ["rlforge", *arguments]):
        try:
            main()
        except SystemExit as ending:
            return int(ending.code or 0)
    raise RuntimeError("the command did not set an exit code")


async def start_in_process(plan: RunPlan[Any], run_dir: Path, part: int = 0) -> RunActors:
    """In place of ``rlforge.run.actors.cluster.start_actors``."""
    given: dict[str, Any] = {"config": plan.config, "hardware": plan.hardware, "part": part}
    given |= {"run_dir": str(run_dir)}
    given["folder"] = RunFolder(run_dir=str(run_dir))
    named: dict[str, InProcessActor] = {}
    for spec in plan.nodes:
        for rank, name in enumerate(spec.actor_names):
            assert spec.actor is not None
            named[name] = _create(spec.actor, given | {"name": name, "rank": rank}, named)
    actors = RunActors(named)
    if "learner" in named:
        await actors.learner.start()
    return actors


async def make_context(config: PolicyConfig, run_dir: Path) -> lifecycle.RunContext:
    """What a controller is made from, as ``rlforge.run.lifecycle.execute`` makes it."""
    plan = make_plan(config, detect())
    return lifecycle.RunContext(
        config=plan.config,
        hardware=plan.hardware,
        run_dir=run_dir,
        actors=await start_in_process(plan, run_dir),
        note=lambda text: None,
        started=0.0,
    )


def _create(path: str, given: dict[str, Any], named: dict[str, InProcessActor]) -> InProcessActor:
    """The actor of class ``path``, which finds those that are ``named`` already."""
    module, _, class_name = path.partition(":")
    made = getattr(importlib.import_module(module), class_name)
    wanted = inspect.signature(made).parameters
    # Log file and garbage collector belong to the process, which here is not the actor's own.
    with (
        mock.patch.multiple(engine, begin=mock.DEFAULT, freeze_gc=mock.DEFAULT),
        mock.patch.multiple(state, begin=mock.DEFAULT, freeze_gc=mock.DEFAULT),
        mock.patch.multiple(collector, begin=mock.DEFAULT, freeze_gc=mock.DEFAULT),
        mock.patch.multiple(learner, begin=mock.DEFAULT),
        mock.patch.object(collector, "find_actor", named.__getitem__),
    ):
        return InProcessActor(made(**{key: each for key, each in given.items() if key in wanted}))
