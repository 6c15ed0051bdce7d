"""What both buffers do: capacity, staleness, batches, admission and resume.

Plain and single-threaded: each public method is one complete change, so an actor (or a lock) that
runs them one at a time loses and doubles nothing.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rlforge.buffer.admission import Admission
from rlforge.errors import CheckpointError
from rlforge.types import Episode, Step, TrainBatch, value


@value
class AddResult:
    """What became of samples that were offered, in the buffer's unit.

    stored: taken in. evicted: pushed out for them, perhaps some of their own. refused: too old
    already, or of a group that was given up.
    """

    stored: int
    evicted: int
    refused: int


@value
class BufferSettings:
    """A buffer's limits.

    batch_size * batch_delay samples make it ready. samples_per_game: how many a game is expected to
    bring before the first has ended; None takes the guess of the buffer's kind.
    """

    max_size: int
    max_staleness: int
    batch_size: int
    batch_delay: float
    seed: int
    samples_per_game: float | None = None

    @property
    def ready_size(self) -> int:
        return math.ceil(self.batch_size * self.batch_delay)


class Buffer(ABC):
    """Samples wait here until the learner draws them, once each.

    A sample is a step or an episode, by subclass; every count is in that unit unless it says steps.
    Beyond ``max_size``, samples are evicted, uniformly at random among those stored and the
    newcomers. A sample made more than ``max_staleness`` versions before the current one is dropped;
    which version made it is the subclass's to say, where its tokens come from several.
    Batches are drawn from the oldest version first, uniformly among the samples of one version, so
    that games within the limits of admission end in a batch and not among the stale.
    """

    kind: ClassVar[str]
    #: Mirror self-play trains both seats; a few turns each.
    default_samples_per_game: ClassVar[float]

    def __init__(self, settings: BufferSettings) -> None:
        self.version = 0
        self._settings = settings
        self._random = random.Random(settings.seed)
        self._dropped_stale_steps = 0
        self._admission = Admission(
            max_stored=settings.max_size,
            max_ahead=(settings.max_staleness + 1) * settings.ready_size,
            samples_per_game=settings.samples_per_game or self.default_samples_per_game,
        )

    # ------------------------------------------------------------ samples in, batches out

    @abstractmethod
    def size(self) -> int:
        """Samples stored."""

    @abstractmethod
    def drawable(self) -> int:
        """Samples that a batch could be made of now."""

    def ready(self) -> bool:
        """Whether the learner may draw."""
        return self.drawable() >= self._settings.ready_size

    def add(self, episodes: Sequence[Episode]) -> AddResult:
        """Take in finished games; all episodes of one game come in one call."""
        yields: Counter[str] = Counter()
        for episode in episodes:
            yields[episode.game_id] += self._samples_in(episode)
        self._admission.observe(yields.values())
        stored = self._store(episodes)
        evicted = 0
        excess = self.size() - self._settings.max_size
        while evicted < excess:
            evicted += self._evict_one()
        return AddResult(stored=stored, evicted=evicted, refused=sum(yields.values()) - stored)

    def draw(self, n: int, version: int) -> TrainBatch | None:
        """Remove ``n`` samples at random, oldest versions first, for an update of ``version``.

        None, and nothing drawn, when fewer are there once the stale ones are dropped.
        """
        if n < 1:
            raise ValueError(f"a batch has at least 1 sample, not {n}")
        self._advance(version)
        if self.drawable() < n:
            return None
        steps, samples = self._take(n)
        self._admission.drawn(samples, version)
        dropped, self._dropped_stale_steps = self._dropped_stale_steps, 0
        versions = [step.policy_version for step in steps]
        return TrainBatch(
            steps=tuple(steps),
            whole_episodes=self.kind == "episode",
            min_version=min(versions),
            max_version=max(versions),
            dropped_stale=dropped,
        )

    def set_version(self, version: int) -> int:
        """New games play with ``version`` from now on; returns the steps dropped as stale.

        Until then, the batches that were drawn to make it count against admission: at most
        max_staleness + 1 of them fit, and then no game starts until a newer version is out.
        """
        self._admission.published(version)
        return self._advance(version)

    def _advance(self, version: int) -> int:
        """The learner is at ``version`` or further; publication may lag behind it."""
        if version <= self.version:
            return 0
        self.version = version
        dropped = self._drop_stale(self._oldest_allowed())
        self._dropped_stale_steps += dropped
        return dropped

    def drop_group(self, group_id: str) -> int:
        """A game of the group brings nothing to learn from; returns the samples given up with it.

        Only whole groups are of use to a buffer that keeps them together; a step buffer does not.
        """
        return 0

    @abstractmethod
    def clear(self) -> None:
        """Throw away everything stored."""

    # ------------------------------------------------------------ admission

    def reserve(self, games: int) -> int:
        """How many of ``games`` may start now; each must be given back with ``release``."""
        return self._admission.reserve(games, self.size(), short=not self.ready())

    def release(self, games: int) -> None:
        """``games`` that were reserved have ended; what they brought was added before."""
        self._admission.release(games)

    @property
    def in_flight(self) -> int:
        """Games reserved and not released."""
        return self._admission.in_flight

    # ------------------------------------------------------------ resume

    def state_dict(self) -> dict[str, Any]:
        """Everything but the games under way, JSON-able: the same draws follow after loading."""
        kind, internal, gauss = self._random.getstate()
        return {
            "kind": self.kind,
            "version": self.version,
            "random": [kind, list(internal), gauss],
            "dropped_stale_steps": self._dropped_stale_steps,
            "admission": self._admission.state_dict(),
            **self._contents(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state_dict`` gave. Raises CheckpointError for another kind of buffer."""
        if state["kind"] != self.kind:
            raise CheckpointError(
                f"the checkpoint holds a buffer of kind {state['kind']}, the configuration asks "
                f"for {self.kind}; resume with buffer.kind={state['kind']}"
            )
        kind, internal, gauss = state["random"]
        self._random.setstate((kind, tuple(internal), gauss))
        self.version = state["version"]
        self._dropped_stale_steps = state["dropped_stale_steps"]
        self._admission.load_state_dict(state["admission"])
        self._restore(state)

    # ------------------------------------------------------------ what a subclass gives

    @abstractmethod
    def _samples_in(self, episode: Episode) -> int: ...

    @abstractmethod
    def _store(self, episodes: Sequence[Episode]) -> int:
        """Take in what is fresh enough; the number of samples taken."""

    @abstractmethod
    def _evict_one(self) -> int:
        """Throw away one random unit; its number of samples."""

    @abstractmethod
    def _take(self, n: int) -> tuple[list[Step], int]:
        """Remove random units until ``n`` samples are there; their steps, and the samples."""

    @abstractmethod
    def _drop_stale(self, oldest: int) -> int:
        """Throw away what is older than version ``oldest``; the number of steps."""

    @abstractmethod
    def _contents(self) -> dict[str, Any]: ...

    @abstractmethod
    def _restore(self, state: Mapping[str, Any]) -> None: ...

    def _oldest_allowed(self) -> int:
        return self.version - self._settings.max_staleness
