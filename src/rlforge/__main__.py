"""The process of a command: ``rlforge`` and ``python -m rlforge``."""

import atexit
import logging
import os
import sys
from typing import NoReturn

from rlforge.system import signals
from rlforge.system.output import crashes_to_stderr, flush


def command() -> NoReturn:
    """Run the command line, then end the process with its exit code.

    A crash in native code prints the stack of each thread to standard error.
    """
    signals.at_once()
    crashes_to_stderr()
    code: int | None = None

    def end() -> None:
        # Ray's native threads go on while the interpreter takes itself apart. Now and then one
        # crashes there, and a run that is done would end with a signal in place of its exit code.
        if code is not None and "ray" in sys.modules:
            logging.shutdown()
            flush(sys.stdout)
            flush(sys.stderr)
            os._exit(code)

    # Python calls such functions in the opposite order: what is imported below ends before.
    atexit.register(end)
    from rlforge.cli import main

    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else None
        raise


if __name__ == "__main__":
    command()
