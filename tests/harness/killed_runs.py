"""Runs ``rlforge continuous`` in forked processes, and kills them at a phase of the journal.

Imports are paid for once, by the process that forks. It reads one JSON object per line:
``arguments`` of the command, ``log`` file, and ``kill``, null or [window, phase, when]: SIGKILL
``before`` or ``after`` that phase is entered into the journal. It answers each line with the exit
code; a negative one is the signal that ended the process. Actors are objects of the forked process
(see ``in_process``), so that SIGKILL ends them all at once, and a start takes no time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch
from tests.harness.in_process import use_actors_in_process

import rlforge.cli
import rlforge.continuous.loop.run
import rlforge.launch
from rlforge.continuous.loop.journal import Entry, Journal


def run(arguments: list[str], log: str, kill: list[Any] | None) -> None:
    """The command, in the forked process; does not return."""
    torch.set_num_threads(1)
    if kill is not None:
        kill_at(*kill)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = ["rlforge", "continuous", *arguments]
    rlforge.cli.main()


def kill_at(number: int, last_phase: str, when: str) -> None:
    """Have this process killed before or after one entry of its journal."""
    reach = Journal.reach

    def reach_or_die(journal: Journal, entry: Entry, phase: str, **facts: Any) -> Entry:
        is_last = (entry.number, phase) == (number, last_phase)
        if is_last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        further = reach(journal, entry, phase, **facts)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return further

    Journal.reach = reach_or_die  # type: ignore[method-assign]


def main() -> None:
    """One process per line of standard input."""
    use_actors_in_process(setattr)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(**order)
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
