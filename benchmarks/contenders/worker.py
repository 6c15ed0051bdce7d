"""One contender in a process of its own: ``python -m contenders.worker NAME WORK_FILE COUNT``.

It answers one line of JSON to each line it reads: ``update`` for the seconds, and those of the CPU,
that an update took, and ``gradient FILE`` for an update whose gradient, as the optimizer saw it, is
left in FILE. The first line, sent when it is ready, holds the versions of its packages. It exits
with 3 when its packages are not installed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from . import ABSENT
from .work import read


def main(name: str, work_file: str, count: str) -> None:
    # Libraries print what they like; the answers have the pipe to themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    try:
        module = importlib.import_module(f"contenders.{name}")
        contender = module.Contender(read(Path(work_file)), int(count))
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
        raise SystemExit(ABSENT) from None

    def answer(value: object) -> None:
        print(json.dumps(value), file=answers, flush=True)

    packages = ("torch", "transformers", *module.Contender.packages)
    answer({package: version(package) for package in packages})
    for line in sys.stdin:
        order, *files = line.split()
        hook = register_optimizer_step_pre_hook(_saving(files[0])) if order == "gradient" else None
        start, cpu_start = time.perf_counter(), time.process_time()
        contender.update()
        cpu_seconds = time.process_time() - cpu_start
        answer({"seconds": time.perf_counter() - start, "cpu_seconds": cpu_seconds})
        if hook is not None:
            hook.remove()


def _saving(file: str) -> Callable[[torch.optim.Optimizer, object, object], None]:
    """A hook that leaves the gradient of all trained weights, in order, in ``file``."""

    def save(optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        gradients = [
            parameter.grad.flatten()
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        torch.save(torch.cat(gradients), file)

    return save


if __name__ == "__main__":
    main(*sys.argv[1:])
