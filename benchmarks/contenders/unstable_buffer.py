"""unstable-rl's step buffer in a process: ``python -m contenders.unstable_buffer MAX_SIZE``.

It answers one line, the seconds it took, to each line it reads: ``add N`` for a player's trajectory
of N steps, ``draw N`` for a batch, ``size`` for the number of steps instead. The first line, sent
when it is ready, is its version. It exits with 3 when its packages are not installed.

The class and all it does are the package's own. What is different from a run of it: it is taken out
of its Ray actor, and the package's ``__init__``, which imports vLLM, is not executed. It is spared
its log, and the file that it writes of each batch. Every turn has a text of its own, as in games.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
import time
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from . import ABSENT
from .unstable_package import register_package


def make_buffer(max_size: int) -> Any:
    """Its ``StepBuffer`` without reward transforms. Raises ModuleNotFoundError."""
    register_package()
    buffers = importlib.import_module("unstable.buffers")
    buffers.ray = SimpleNamespace(get=lambda value: value)  # type: ignore[attr-defined]
    buffers.write_training_data_to_file = lambda **_: None  # type: ignore[attr-defined]
    folder = SimpleNamespace(remote=lambda: tempfile.mkdtemp(prefix="unstable-rl-"))
    buffer = buffers.StepBuffer.__ray_metadata__.modified_class(
        max_buffer_size=max_size,
        tracker=SimpleNamespace(get_train_dir=folder, get_log_dir=folder),
        final_reward_transformation=None,
        step_reward_transformation=None,
        sampling_reward_transformation=None,
    )
    buffer.logger.setLevel(logging.WARNING)
    return buffer


def make_trajectory(number: int, steps: int) -> Any:
    """One seat's turns of one game."""
    return importlib.import_module("unstable._types").PlayerTrajectory(
        pid=number % 2,
        final_reward=1.0,
        obs=[f"board {number} after {index} turns" for index in range(steps)],
        actions=["[4]"] * steps,
        num_turns=steps,
    )


def main(max_size: str) -> None:
    # Libraries print what they like; the answers have the pipe to themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        buffer = make_buffer(int(max_size))
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
        raise SystemExit(ABSENT) from None
    print(version("unstable-rl"), file=answers, flush=True)
    for number, line in enumerate(sys.stdin):
        order, *count = line.split()
        if order == "size":
            print(buffer.size(), file=answers, flush=True)
            continue
        trajectory = make_trajectory(number, int(count[0]))
        start = time.perf_counter()
        if order == "add":
            buffer.add_player_trajectory(trajectory, "SimpleTak-v0-train")
        else:
            buffer.get_batch(int(count[0]))
        print(time.perf_counter() - start, file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
