"""Things that go stale: the oldest first, in random order where they are as old."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Ageing(Generic[_T]):
    """A bag of things made by versions; what is older than ``oldest`` is no longer of use.

    The oldest version's things are taken first, in random order. With all of them used once, order
    does not change how old they are on average, but what is left to chance is left behind: newer
    things would be used before older ones, which would then be thrown away as stale.

    version_of: the version that counts. rng: decides every choice. Choices cost O(versions).
    """

    def __init__(self, version_of: Callable[[_T], int], rng: random.Random, oldest: int) -> None:
        self.oldest = oldest
        self._version_of = version_of
        self._random = rng
        self._by_version: dict[int, list[_T]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[_T]:
        for version in sorted(self._by_version):
            yield from self._by_version[version]

    def is_stale(self, thing: _T) -> bool:
        """Whether ``thing`` came too late."""
        return self._version_of(thing) < self.oldest

    def add(self, things: Iterable[_T]) -> None:
        """Take in ``things``, none of them stale."""
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
        for version in sorted(self._by_version):
            if place < len(self._by_version[version]):
                return self._pop(version, place)
            place -= len(self._by_version[version])
        raise AssertionError("the size is that of all versions")

    def advance(self, oldest: int) -> list[_T]:
        """Things older than version ``oldest`` go, and are returned."""
        self.oldest = oldest
        stale = sorted(version for version in self._by_version if version < oldest)
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
            return self._by_version.pop(version)[0]
        return things.pop()
