"""Starts ``rlforge continuous`` again and again, each time in a process of its own, without paying
for imports each time: this process imports them once and forks.

Reads one JSON object per line: ``arguments`` of the command, ``log`` file, and ``death``, null or
[window, phase, when]: SIGKILL ``before`` or ``after`` the journal says so. Answers each with the
exit code; a negative one is the signal that ended the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch

import rlforge.cli
import rlforge.continuous.run
import rlforge.launch
from rlforge.continuous.journal import Entry, Journal


def run(arguments: list[str], log: str, death: list[Any] | None) -> None:
    """The command, in the process that it is to have; does not return."""
    torch.set_num_threads(1)
    if death is not None:
        die_at(*death)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = ["rlforge", "continuous", *arguments]
    rlforge.cli.main()


def die_at(number: int, fatal: str, when: str) -> None:
    """Let this process be killed around one entry of its journal."""
    reach = Journal.reach

    def deadly(journal: Journal, entry: Entry, phase: str, **facts: Any) -> Entry:
        dies = (entry.number, phase) == (number, fatal)
        if dies and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        further = reach(journal, entry, phase, **facts)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return further

    Journal.reach = deadly  # type: ignore[method-assign]


def main() -> None:
    """One process per line of standard input."""
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
