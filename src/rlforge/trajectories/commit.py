"""One sync of the disk for all who write at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class _Ticket:
    """One caller's frame, and what became of it."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.done = False
        self.error: BaseException | None = None


class GroupCommit:
    """Hands the frames of all waiting threads to ``write`` together.

    A disk takes as long to sync one decision as a thousand. While one thread writes, the others
    queue up; the first of them to go on then writes for all that wait, in the order of their
    ``enter``.
    """

    def __init__(self, write: Callable[[Sequence[bytes]], None]) -> None:
        self._write = write
        self._writing = threading.Lock()
        self._queueing = threading.Lock()
        self._queue: list[_Ticket] = []

    def enter(self, frame: bytes) -> _Ticket:
        """A place in the queue; ``wait`` must follow."""
        ticket = _Ticket(frame)
        with self._queueing:
            self._queue.append(ticket)
        return ticket

    def wait(self, ticket: _Ticket) -> None:
        """Return once the frame is written. Raises what ``write`` raised for it."""
        with self._writing:
            if not ticket.done:
                self._write_all()
        if ticket.error is not None:
            raise ticket.error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is written inside."""
        with self._writing:
            yield

    def _write_all(self) -> None:
        with self._queueing:
            tickets, self._queue = self._queue, []
        try:
            self._write([ticket.frame for ticket in tickets])
        except BaseException as error:  # an interrupt, too: others wait for these tickets
            for ticket in tickets:
                ticket.error = error
        for ticket in tickets:
            ticket.done = True
