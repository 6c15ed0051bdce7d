"""Things that go stale: the oldest first, in random order where they are as old."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")


class VersionQueue(Generic[_T]):
    """A bag of things made by versions.

    The oldest version's things are taken first, in random order. With all of them used once, order
    does not change how old they are on average, but what is left to chance is left behind: newer
    things would be used before older ones, which would then be thrown away as stale.

    version_of: the version that counts. rng: decides every choice. Choices cost O(versions).
    """

    def __init__(self, version_of: Callable[[_T], int], rng: random.Random) -> None:
        self._version_of = version_of
        self._random = rng
        #: Versions come in the order they came in; none without things.
        self._by_version: dict[int, list[_T]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[_T]:
        for things in self._by_version.values():
            yield from things

    def add(self, things: Iterable[_T]) -> None:
        """Take in ``things``."""
        for thing in things:
            self._by_version.setdefault(self._version_of(thing), []).append(thing)
            self._size += 1

    def take(self) -> _T:
        """Remove one to be used. Raises ValueError when there is none."""
        version = min(self._by_version)
        return self._pop(version, self._random.randrange(len(self._by_version[version])))

    def evict(self) -> _T:
        """Remove any one, all alike. Raises ValueError when there is none."""
        place = self._random.randrange(self._size)
        for version, things in self._by_version.items():
            if place < len(things):
                return self._pop(version, place)
            place -= len(things)
        raise AssertionError("the size is that of all versions")

    def drop_older(self, oldest: int) -> list[_T]:
        """Remove the things of versions before ``oldest``, and return them."""
        stale = [version for version in self._by_version if version < oldest]
        gone = [thing for version in stale for thing in self._by_version.pop(version)]
        self._size -= len(gone)
        return gone

    def clear(self) -> None:
        """Throw away everything."""
        self._by_version, self._size = {}, 0

    def _pop(self, version: int, place: int) -> _T:
        """Remove the thing at ``place``; the last of its version takes that."""
        things = self._by_version[version]
        things[place], things[-1] = things[-1], things[place]
        self._size -= 1
        if len(things) == 1:
            del self._by_version[version]
        return things.pop()
