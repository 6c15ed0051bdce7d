"""A command that gets a signal at a named place: ``python -m tests.harness.ends ENDS WORD...``.

ENDS is a list of [place, count, signal] as JSON. A place is a function, MODULE:NAME, and the signal
comes when it is called for the ``count``-th time; or a module alone, when it is imported. Then it
goes on as ``rlforge WORD...``, in this process, from its first line on.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

#: A file in the working directory: a place was reached.
REACHED = "reached"

#: Phases in the life of a command, by kind: the place of each, and for which call of it.
PLACES: dict[str, dict[str, tuple[str, int]]] = {
    "games": {
        "imports": ("rlforge.config.schema", 1),
        "compose": ("rlforge.launch:checked", 1),
        "Ray's start": ("ray._private.node:Node.start_head_processes", 1),
        "actors": ("rlforge.run.lifecycle:start_actors", 1),
        "first evaluation": ("rlforge.run.evaluations:Evaluations.started", 1),
        "update": ("rlforge.run.watch:Watch.learner_worked", 1),
        "publish": ("rlforge.run.resume:Retention.prune", 2),
        "last evaluation": ("rlforge.run.evaluations:Evaluations.end", 1),
        "report": ("rlforge.run.lifecycle:write_report", 1),
        "exit": ("logging:shutdown", 1),
    }
}
PLACES["sweep"] = PLACES["games"]
PLACES["sft"] = PLACES["games"] | {
    "first evaluation": ("rlforge.run.sft:batch_of", 1),
    "update": ("rlforge.run.sft:batch_of", 2),
    "publish": ("rlforge.run.resume:Retention.prune", 1),
    "last evaluation": ("rlforge.run.sft:batch_of", 4),
}
PLACES["continuous"] = PLACES["games"] | {
    "first evaluation": ("rlforge.continuous.loop.run:read_json", 1),
    "update": ("rlforge.continuous.loop.trainer:ContinuousTrainer.run", 1),
    "publish": ("rlforge.continuous.loop.policy_side:PolicySide.deploy", 1),
    "last evaluation": ("rlforge.continuous.loop.run:read_json", 3),
}
_SERVER = "rlforge.continuous.serving.server"
PLACES["serve"] = PLACES["games"] | {
    "compose": ("rlforge.continuous.serving.setup:compose_service", 1),
    "actors": ("rlforge.run.actors.cluster:start_actors", 1),
    "first evaluation": ("rlforge.continuous.serving.service:DeploymentService.open", 1),
    "update": (f"{_SERVER}:http_over", 1),
    "publish": ("rlforge.continuous.serving.service:DeploymentService.deploy_staged", 1),
    "last evaluation": (f"{_SERVER}:found_at", 1),
    "report": (f"{_SERVER}:answer_requests", 1),
}

End = tuple[str, int, str]


class _Places(importlib.abc.MetaPathFinder):
    """Prepares the places of each module once it is imported."""

    def __init__(self, ends: Sequence[End]) -> None:
        self._ends = list(ends)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        mine = [end for end in self._ends if end[0].partition(":")[0] == name]
        if not mine:
            return None
        for end in mine:
            self._ends.remove(end)
            if ":" not in end[0]:
                send(end[2])
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_prepare(module: ModuleType) -> None:
            load(module)
            for end in mine:
                prepare(module, end)

        spec.loader.exec_module = load_and_prepare  # type: ignore[method-assign]
        return spec


def prepare(module: ModuleType, end: End) -> None:
    """Let the function of a place send its signal when it is called."""
    place, count, name = end
    *owners, last = place.partition(":")[2].split(".")
    if not last:
        return
    owner: Any = functools.reduce(getattr, owners, module)
    called = getattr(owner, last)
    calls = 0

    @functools.wraps(called)
    def sends(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            send(name)
        return called(*arguments, **named)

    setattr(owner, last, sends)


def send(name: str) -> None:
    Path(REACHED).touch()
    os.kill(os.getpid(), signal.Signals[name])


def main() -> None:
    ends: list[End] = [tuple(end) for end in json.loads(sys.argv[1])]
    sys.meta_path.insert(0, _Places(ends))
    for end in ends:
        module = sys.modules.get(end[0].partition(":")[0])
        if module is not None:
            prepare(module, end)
    sys.argv = ["rlforge", *sys.argv[2:]]
    from rlforge.__main__ import command

    command()


if __name__ == "__main__":
    main()
