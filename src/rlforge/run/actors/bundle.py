"""Many values that travel between actors as one."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any


class Bundle:
    """Arrives at an actor as its ``content``; pickled once, whatever the number of actors.

    Example:
        >>> pickle.loads(pickle.dumps(Bundle([1, 2])))
        [1, 2]
    """

    def __init__(self, content: object) -> None:
        """Take objects of classes that can be imported, as ``pickle`` needs it."""
        self.content = content
        self._pickled: bytes | None = None

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        # Ray's pickler calls a Python function for each object. Games, requests and answers are
        # hundreds of small objects, for which the standard pickler takes a third of the time.
        if self._pickled is None:
            self._pickled = pickle.dumps(self.content, protocol=pickle.HIGHEST_PROTOCOL)
        return pickle.loads, (self._pickled,)


Sent = tuple[str, int]
"""Sender of a call and the call's number, which are the same when the call is made again."""


class Received:
    """The newest call of each sender.

    A call whose connection broke may have been executed: the sender makes it again before its next
    one, and the receiver executes it once.

    Example:
        >>> received = Received()
        >>> [received.is_new(sent) for sent in (("collector-0", 1), ("collector-0", 1), None)]
        [True, False, True]
    """

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}

    def is_new(self, sent: Sent | None) -> bool:
        """Whether a call is to be executed; one without sender always is."""
        if sent is None:
            return True
        sender, number = sent
        before, self._newest[sender] = self._newest.get(sender), number
        return before != number
