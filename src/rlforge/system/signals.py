"""The signals that end a command, from its first line to its exit code, in one place.

    at_once    nothing is there yet, or any more, that an end must look after: a line, and 130
    owned      KeyboardInterrupt, which unwinds what is under way
    heard      a call, such as the one that lets a run save its state
    held       KeyboardInterrupt, when the block is over

Blocks lie in each other, and the innermost decides. Python runs handlers in the main thread alone:
in other threads the blocks change nothing.
"""

from __future__ import annotations

import _thread
import contextlib
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

#: Signals by which schedulers say that the time of a job is nearly over, by their names.
WARNINGS = {"USR1": signal.SIGUSR1, "USR2": signal.SIGUSR2}
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *WARNINGS.values())

INTERRUPT = signal.SIGTERM
"""Signal by which a process of rlforge lets another one end."""

INTERRUPTED = 130
"""Exit code of a command that a signal ended."""

ONE_SIGNAL_S = 1.0
"""Signals within so many seconds are one: shells and ``timeout`` send them twice."""

IMPORT_PATIENCE_S = 10.0
"""Seconds for which KeyboardInterrupt waits for the end of an import."""

_LOOK_S = 0.05


class _Owner:
    """The process's handlers as they were, and the call that takes the next signal."""

    def __init__(self) -> None:
        self.replaced: dict[signal.Signals, Any] = {}
        self.call: Callable[[], None] = self.interrupt
        self.forget()

    def forget(self) -> None:
        """Begin without a signal."""
        #: When the last signal came, and when one first had to wait for an import; 0: never.
        self.last = self.waiting = 0.0
        #: Whether KeyboardInterrupt was raised, and whether a block has heard a signal.
        self.raised = self.heeded = False

    def interrupt(self) -> None:
        self.raised = True
        raise KeyboardInterrupt

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.last and now - self.last < ONE_SIGNAL_S:
            return
        if self.call == self.interrupt and _imports(frame):
            # Native code that imports (numpy, torch) drops the exception, or makes another of it,
            # and half of a module would stay.
            self.waiting = self.waiting or now
            if now - self.waiting < IMPORT_PATIENCE_S:
                again = threading.Timer(_LOOK_S, _thread.interrupt_main, (number,))
                again.daemon = True
                again.start()
                return
        self.last = now
        self.call()


_owner = _Owner()


def at_once() -> None:
    """From now on a signal ends the process with a line and exit code 130.

    SIGHUP and the warnings of schedulers stay ignored where they are, as under ``nohup``. The
    others are not: shells let jobs in the background of a script ignore SIGINT.
    """
    for number in ENDING:
        ignored = signal.getsignal(number) is signal.SIG_IGN
        if not ignored or number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    # An exception could be dropped by what is being imported or taken apart.
    with contextlib.suppress(OSError):
        os.write(2, b"rlforge: interrupted\n")
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def owned() -> Iterator[None]:
    """In the block signals raise KeyboardInterrupt, all of ``ENDING`` that are not ignored.

    The handlers are then as before. In an owned block it does nothing.
    """
    if _owner.replaced or not _hears():
        yield
        return
    _owner.forget()
    for number in ENDING:
        before = signal.getsignal(number)
        if before not in (signal.SIG_IGN, None):
            _owner.replaced[number] = before
            signal.signal(number, _owner.on_signal)
    try:
        yield
    finally:
        _give_back()


@contextlib.contextmanager
def regained() -> Iterator[None]:
    """Own the handlers again that native code in the block has replaced; signals wait meanwhile.

    Threads that begin in the block leave signals to the main one.
    """
    if not _hears():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        for number in _owner.replaced:
            # One that ``warned_by`` has given back stays where it is.
            if signal.getsignal(number) == _owner.on_signal:
                signal.signal(number, _owner.on_signal)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


#: Processes that look after others: at their start they let signals into the thread again.
_TRACKERS = ("multiprocessing.resource_tracker", "joblib.externals.loky.backend.resource_tracker")


@contextlib.contextmanager
def kept_from_children() -> Iterator[None]:
    """In the block processes begin with signals held back, until they have a block ``let_in``.

    Before that a signal to their whole group would end them with a stack trace.
    """
    if not _hears():
        yield
        return
    for name in _TRACKERS:
        # Those that are not imported yet may be when the block starts processes.
        with contextlib.suppress(ImportError):
            importlib.import_module(name).ensure_running()
    over = threading.Event()
    # The mask of this thread is inherited, and another thread takes signals for it meanwhile.
    threading.Thread(target=over.wait, name="signals", daemon=True).start()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        over.set()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def let_in() -> Iterator[None]:
    """In the block signals come that ``kept_from_children`` has held back."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _give_back() -> None:
    _owner.forget()
    for number in list(_owner.replaced):
        signal.signal(number, _owner.replaced.pop(number))


# Processes that are forked end by signals as any other does; those of ``exec`` do anyway.
os.register_at_fork(after_in_child=_give_back)


@contextlib.contextmanager
def warned_by(name: str | None) -> Iterator[None]:
    """In the block the signal ``name`` of ``WARNINGS`` counts, and the others do what they did."""
    others = [number for own, number in WARNINGS.items() if own != name]
    left = [number for number in others if number in _owner.replaced] if _hears() else []
    for number in left:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in left:
            signal.signal(number, _owner.on_signal)


@contextlib.contextmanager
def heard(call: Callable[[], None]) -> Iterator[None]:
    """In the block a signal calls ``call``, at any point of the main thread's code."""

    def take() -> None:
        _owner.heeded = True
        call()

    if not _hears():
        yield
        return
    before, _owner.call = _owner.call, take
    try:
        yield
    finally:
        _owner.call = before


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Signals in the block raise KeyboardInterrupt at its end.

    They do nothing where an exception is under way, or a signal was heard before.
    """
    fails, heeded, came = sys.exception() is not None, _owner.heeded, list[bool]()
    with heard(lambda: came.append(True)):
        yield
    _owner.heeded = heeded
    if came and not (fails or heeded):
        _owner.interrupt()


def dropped() -> bool:
    """Whether a KeyboardInterrupt was raised; where the code went on, it was lost on its way."""
    return _owner.raised


def came() -> bool:
    """Whether a signal has come since the handlers are owned."""
    return _owner.raised or _owner.heeded


def heed() -> None:
    """Raise the KeyboardInterrupt again that native code may have dropped."""
    if dropped():
        raise KeyboardInterrupt


def _hears() -> bool:
    return threading.current_thread() is threading.main_thread()


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
