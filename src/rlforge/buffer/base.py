"""Base of both buffers: capacity, staleness, batches, admission and resume.

Single-threaded: each public method leaves a consistent state, so an actor that runs them one at a
time neither loses nor duplicates a sample.
"""

from __future__ import annotations

import dataclasses
import math
import random
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from rlforge.buffer.admission import Admission, BufferSettings, Flow, Yield
from rlforge.errors import CheckpointError
from rlforge.samples import Episode, Sample, TrainBatch

_T = TypeVar("_T")

# Layout of a saved buffer; another is refused, because in form 1 samples had other fields.
_FORM = 2


class VersionQueue(Generic[_T]):
    """Items by version: the oldest version first, random within a version.

    A random choice, by ``rng``, costs O(versions).

    Example:
        >>> queue = VersionQueue(lambda item: item[0], random.Random(0))
        >>> queue.add([(3, "new"), (2, "old")])
        >>> queue.take()
        (2, 'old')
    """

    def __init__(self, version_of: Callable[[_T], int], rng: random.Random) -> None:
        self._version_of = version_of
        self._random = rng
        #: Items by version, in order of arrival; no version is empty.
        self._by_version: dict[int, list[_T]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[_T]:
        for items in self._by_version.values():
            yield from items

    def add(self, items: Iterable[_T]) -> None:
        for item in items:
            self._by_version.setdefault(self._version_of(item), []).append(item)
            self._size += 1

    def take(self) -> _T:
        """Remove and return a random item of the oldest version. Raises ValueError when empty."""
        # In fully random order old items would wait until they exceed the staleness bound.
        version = min(self._by_version)
        return self._pop(version, self._random.randrange(len(self._by_version[version])))

    def evict(self) -> _T:
        """Remove and return an item, uniformly at random. Raises ValueError when empty."""
        place = self._random.randrange(self._size)
        for version, items in self._by_version.items():
            if place < len(items):
                return self._pop(version, place)
            place -= len(items)
        raise AssertionError("the size is that of all versions")

    def drop_older(self, oldest: int) -> list[_T]:
        """Remove and return the items of versions before ``oldest``."""
        stale = [version for version in self._by_version if version < oldest]
        gone = [item for version in stale for item in self._by_version.pop(version)]
        self._size -= len(gone)
        return gone

    def clear(self) -> None:
        self._by_version, self._size = {}, 0

    def _pop(self, version: int, place: int) -> _T:
        items = self._by_version[version]
        # Only the last item leaves a list in O(1), so it takes the place of the removed one.
        items[place], items[-1] = items[-1], items[place]
        self._size -= 1
        if len(items) == 1:
            del self._by_version[version]
        return items.pop()


class Stamp(NamedTuple):
    """How long the samples of a game, or of a group, may be trained on.

    Attributes:
        last: The last version.
        old: Whether ``last`` follows from the age of the oldest turn, not of the newest.
        turns: Turns of the game or group.
    """

    last: int
    old: bool
    turns: int


@dataclasses.dataclass
class Losses:
    """Turns thrown away between two draws.

    Attributes:
        stale: Their newest turn passed ``max_staleness``.
        old: Their oldest turn passed ``max_age``.
        evicted: There was no room.
        old_squares: Σ turns² over games that lost ``old`` turns.
    """

    stale: int = 0
    old: int = 0
    evicted: int = 0
    old_squares: int = 0

    @property
    def turns(self) -> int:
        return self.stale + self.old + self.evicted

    @property
    def old_length(self) -> float:
        """Mean trained turns of the game of an ``old`` turn; 0 without any."""
        return self.old_squares / self.old if self.old else 0.0

    def add(self, stamp: Stamp, turns: int) -> None:
        """Count ``turns``, of a game with ``stamp``, that are dropped."""
        if stamp.old:
            self.old += turns
            self.old_squares += turns * stamp.turns
        else:
            self.stale += turns


class Shaped(NamedTuple):
    """Finished game with shaped rewards: an episode of each player who is learned from.

    Attributes:
        group_size: Games of the group ``group_id``, which this one leaves if it has no episode.
        begun: Time of its begin by the clock of ``Buffer.reserve``; None: played in a round.
    """

    episodes: Sequence[Episode]
    group_id: str | None = None
    group_size: int = 1
    begun: float | None = None


class Buffer(ABC):
    """Stores samples until the learner draws them, once each.

    A sample is a turn or an episode, by subclass. Beyond ``max_size`` drawable ones, samples are
    evicted uniformly at random. Batches take first what must be trained on first.

    Samples more than ``max_staleness`` versions old are dropped, all of a game (and its group) or
    none, so that no less is learned of long games. The version of a game is that of its newest
    turn; with ``max_staleness`` 0 that of its oldest, and the learner waits for the games in
    progress.

    ``max_age`` bounds the version of the oldest turn. ``auto`` is 1.5 times the life of the games
    that 98 % of all turns come from, and the updates that a sample may wait: only games much slower
    than others of their length are dropped.
    """

    kind: ClassVar[str]
    #: Yield in mirror self-play, which trains both seats, with about four turns each.
    default_samples_per_game: ClassVar[float]

    def __init__(self, settings: BufferSettings) -> None:
        self.version = 0
        self._settings = settings
        self._random = random.Random(settings.seed)
        self._losses = Losses()
        #: Losses between the last two draws.
        self.losses = Losses()
        #: ``_age_limit``, as of the last draw.
        self._max_age = math.inf
        #: Samples of earlier versions are refused.
        self._first_version = 0
        #: Numbers of the updates that made no version.
        self._skipped: list[int] = []
        self._admission = Admission(
            settings, settings.samples_per_game or self.default_samples_per_game
        )

    # ------------------------------------------------------------ samples in, batches out

    @abstractmethod
    def size(self) -> int:
        """Samples stored."""

    @abstractmethod
    def drawable(self) -> int:
        """Samples that may be drawn now."""

    def ready(self) -> bool:
        """Whether the learner may draw."""
        # An update now would make the turns of games in progress stale.
        if self._settings.max_staleness == 0 and self.in_flight:
            return False
        return self.drawable() >= self._settings.ready_size

    def add(self, games: Iterable[Shaped]) -> None:
        """Store finished games; stale ones and those of dropped groups are refused."""
        # Draws depend on the order of storing: games without episodes, which only leave their
        # group, come last, the others stay in the order of arrival.
        for game in sorted(games, key=lambda game: not game.episodes):
            self._store(game)
        while self.drawable() > self._settings.max_size:
            self._losses.evicted += self._evict_one()

    def draw(
        self, n: int, version: int, now: float | None = None, update: int | None = None
    ) -> TrainBatch | None:
        """Remove ``n`` samples for an update of ``version``.

        None, and nothing drawn, when fewer are there once the stale ones are dropped.

        Args:
            n: Samples wanted; whole groups may bring more.
            version: Version that is updated, as of which samples are stale.
            now: Time, as in ``reserve``.
            update: Number of the update; None: the one after ``version``. After updates that made
                no version it is a later one.
        """
        if n < 1:
            raise ValueError(f"a batch has at least 1 sample, not {n}")
        self._advance(version)
        if self.drawable() < n:
            return None
        # The limit is set once per draw, so that games of one update are judged alike.
        self._max_age = self._age_limit()
        turns, samples = self._take(n)
        self.losses, self._losses = self._losses, Losses()
        lost = self.losses.turns
        before = version if update is None else update - 1
        self._admission.drawn(samples, before, lost / (lost + len(turns)), now)
        return TrainBatch(
            samples=tuple(turns),
            whole_episodes=self.kind == "episode",
            dropped_stale=self.losses.stale,
        )

    def skipped(self, update: int) -> None:
        """Take note that ``update`` makes no version: its batch makes room for games at once."""
        self._admission.skipped(update - 1)
        self._skipped.append(update)

    def set_version(self, version: int) -> int:
        """New games play with ``version`` from now on; returns the turns that are dropped.

        Batches drawn to make it count against admission until then: with max_staleness + 1
        unpublished batches no game starts.
        """
        self._admission.published(version)
        before = self._losses.turns
        self._advance(version)
        return self._losses.turns - before

    def _advance(self, version: int) -> None:
        """Drop samples that may not be trained on at ``version``, published or not."""
        if (version := self._age_of(version)) > self.version:
            self.version = version
            self._drop_before(max(version, self._first_version))

    def _age_of(self, version: int) -> int:
        """``version`` by the count of updates that made one, by which staleness is measured."""
        # Else one step after many skipped updates would make every stored game stale.
        return version - self._settings.wait * bisect_right(self._skipped, version)

    def begin_anew(self, version: int) -> None:
        """Remove all samples, and take none of versions before ``version``."""
        self._first_version = self._age_of(version)
        self.clear()

    @abstractmethod
    def clear(self) -> None:
        """Remove all samples."""

    # ------------------------------------------------------------ admission

    def reserve(self, games: int, now: float | None = None) -> int:
        """Number of ``games`` that may start now; each must end with ``release``.

        ``now`` is in seconds; None: the games are a round, and all end before the next draw.
        """
        lacks = max(0, self._settings.ready_size - self.drawable())
        return self._admission.reserve(games, self.size(), lacks, now)

    def release(self, games: int, duration_s: float | None = None) -> None:
        """Free the places of ended ``games``, whose samples were added before."""
        self._admission.release(games, duration_s)

    def waited(self, waiting_s: float, working_s: float) -> None:
        """Count the wait for the next batch, after the work on the last one."""
        self._admission.waited(waiting_s, working_s)

    @property
    def flow(self) -> Flow:
        """Games in progress, and what limits them."""
        return self._admission.flow

    @property
    def in_flight(self) -> int:
        """Games reserved and not released."""
        return self._admission.in_flight

    # ------------------------------------------------------------ resume

    def state_dict(self) -> dict[str, Any]:
        """Plain data, without the games in progress: later draws are the same."""
        kind, internal, gauss = self._random.getstate()
        return {
            "form": _FORM,
            "kind": self.kind,
            "version": self.version,
            "first_version": self._first_version,
            "random": [kind, list(internal), gauss],
            "losses": dataclasses.asdict(self._losses),
            "admission": self._admission.state_dict(),
            **({"skipped": [*self._skipped]} if self._skipped else {}),
            **self._contents(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``. Raises CheckpointError for that of another kind or version."""
        if state.get("form") != _FORM:
            raise CheckpointError(
                "the checkpoint holds a buffer of an earlier version of rlforge; go on with that "
                "version, or start a new run with the checkpoint as learner.initial_adapter"
            )
        if state["kind"] != self.kind:
            raise CheckpointError(
                f"the checkpoint holds a buffer of kind {state['kind']}, the configuration asks "
                f"for {self.kind}; resume with buffer.kind={state['kind']}"
            )
        kind, internal, gauss = state["random"]
        self._random.setstate((kind, tuple(internal), gauss))
        self.version = state["version"]
        self._first_version = state["first_version"]
        self._skipped = list(state.get("skipped", ()))
        self._losses = Losses(**state["losses"])
        self._admission.load_state_dict(state["admission"])
        self._restore(state)

    # ------------------------------------------------------------ for subclasses

    @abstractmethod
    def _store(self, game: Shaped) -> None:
        """Store a game unless it may not be trained on any more."""

    @abstractmethod
    def _evict_one(self) -> int:
        """Remove a random sample or group; returns its turns."""

    @abstractmethod
    def _take(self, n: int) -> tuple[list[Sample], int]:
        """Remove ``n`` samples, or more to keep groups whole; returns turns and number."""

    @abstractmethod
    def _drop_before(self, version: int) -> None:
        """Remove, and count, samples whose last version is before ``version``."""

    @abstractmethod
    def _contents(self) -> dict[str, Any]: ...

    @abstractmethod
    def _restore(self, state: Mapping[str, Any]) -> None: ...

    def _observe(self, game: Shaped) -> None:
        """Let admission see a game that can be drawn or was dropped."""
        turns = sum(map(len, game.episodes))
        samples = len(game.episodes) if self.kind == "episode" else turns
        self._admission.observe(Yield(samples, turns, self._admission.draws_since(game.begun)))

    def _stamp(self, turns: Iterable[Sample]) -> Stamp:
        versions = [self._age_of(turn.policy_version) for turn in turns]
        settings, oldest, newest = self._settings, min(versions), max(versions)
        # After ``begin_anew`` no version may be trained on games of the time before.
        if newest < self._first_version:
            return Stamp(-1, False, len(versions))
        # Without staleness no turn may be older than the version that is trained.
        if not settings.max_staleness:
            return Stamp(oldest, False, len(versions))
        by_newest = newest + settings.max_staleness * settings.wait
        by_oldest = oldest + self._max_age
        return Stamp(math.floor(min(by_newest, by_oldest)), by_oldest < by_newest, len(versions))

    def _too_old(self, stamp: Stamp) -> bool:
        return stamp.last < max(self.version, self._first_version)

    def _age_limit(self) -> float:
        settings = self._settings
        if settings.max_age != "auto":
            return settings.max_age * settings.wait
        life = self._admission.life(0.98)
        return settings.wait * (1.5 * life + settings.max_staleness + settings.save_every)
