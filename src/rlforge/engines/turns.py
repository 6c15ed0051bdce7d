"""Turns of threads of one process."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A lock that threads get in the order in which they ask for it.

    With ``threading.Lock`` the thread that releases it gets it again before the ones that wait for
    it have woken up.

    Example:
        >>> turns = Turns()
        >>> with turns:
        ...     "alone"
        'alone'
    """

    def __init__(self) -> None:
        self._state = threading.Lock()
        self._waiting = deque[threading.Lock]()
        self._taken = False

    def __enter__(self) -> None:
        with self._state:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # until it is handed over

    def __exit__(self, *error: object) -> None:
        with self._state:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
