"""One pipeline in a process of its own: ``python -m pipelines.worker NAME WORK_FILE``.

It prints one JSON object: the seconds at which each update was done, by the clock and of the CPU,
each from a start of its own, the games that ended, with their turns and tokens, and the versions of
its packages. It exits with 3 when its packages are not installed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from contenders import ABSENT

from .work import read


def main(name: str, work_file: str) -> None:
    # Libraries print what they like; the answer has the pipe to itself.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        importlib.import_module("textarena")
        module = importlib.import_module(f"pipelines.{name}")
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
        raise SystemExit(ABSENT) from None
    work = read(Path(work_file))
    torch.set_num_threads(work.threads)
    torch.manual_seed(work.seed)
    done: list[tuple[float, float]] = []
    games = module.run(work, lambda: done.append((time.perf_counter(), time.process_time())))
    packages = ("torch", "transformers", *module.PACKAGES)
    answer = {
        "updates_done_s": [clock for clock, _ in done],
        "updates_done_cpu_s": [cpu for _, cpu in done],
        "games": games.games,
        "turns": games.turns,
        "answer_tokens": games.answer_tokens,
        "versions": {package: version(package) for package in packages},
    }
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
