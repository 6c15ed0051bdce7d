"""The policy versions that an engine holds: bounded, the least recently used one is replaced."""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from rlforge.errors import ConfigError, EngineError, PolicyLoadError
from rlforge.models.files import ADAPTER_WEIGHTS
from rlforge.models.fit import kind_of_weights, read_adapter, read_shapes
from rlforge.types import PolicyRef, value

log = logging.getLogger(__name__)

T = TypeVar("T")


class PolicyKey(NamedTuple):
    """Identifies weights; all policies without a path have the base model's key.

    Example:
        >>> PolicyKey.of(PolicyRef(uid="step-0", kind="checkpoint")).path is None
        True
    """

    uid: str
    path: str | None

    @classmethod
    def of(cls, policy: PolicyRef) -> PolicyKey:
        """The key of the weights of ``policy``."""
        if policy.path_or_name is None:
            return BASE
        return cls(policy.uid, policy.path_or_name)


#: Key of the base model.
BASE = PolicyKey("", None)


class Versions(ABC, Generic[T]):
    """At most ``capacity`` loaded versions; the base model is always resident and not counted.

    uid and path together identify a version: the same path under a new uid is read again, and the
    same uid with another path never gets the old weights.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._held: OrderedDict[PolicyKey, T] = OrderedDict()

    @property
    def resident(self) -> tuple[PolicyKey, ...]:
        """The versions held, without the base model, least recently used first."""
        return tuple(self._held)

    def is_resident(self, key: PolicyKey) -> bool:
        """Whether ``key`` can answer now."""
        return key.path is None or key in self._held

    def use(self, key: PolicyKey) -> T | None:
        """A resident version, now the most recently used one; None for the base model."""
        if key.path is None:
            return None
        self._held.move_to_end(key)
        return self._held[key]

    def load(self, key: PolicyKey, busy: Collection[PolicyKey]) -> bool:
        """Make ``key`` resident, in place of the least recently used version that is not busy.

        Returns False when all places are busy. Raises EngineError when the policy does not load.
        """
        if self.is_resident(key):
            return True
        assert key.path is not None
        victim = None
        if len(self._held) >= self.capacity:
            victim = next((held for held in self._held if held not in busy), None)
            if victim is None:
                return False
        self._replace(victim, key, key.path)
        return True

    @abstractmethod
    def _replace(self, victim: PolicyKey | None, key: PolicyKey, path: str) -> None:
        """Load ``key`` from ``path`` and drop ``victim``; EngineError if it does not load."""


@value
class Adapter:
    """One loading of an adapter; ``number`` and ``name`` are never reused."""

    number: int
    name: str
    path: str


class AdapterTable(Versions[Adapter]):
    """The adapters in a vLLM engine.

    ``add`` loads an adapter into the engine, or raises EngineError; ``remove`` unloads it.
    """

    def __init__(
        self, capacity: int, *, add: Callable[[Adapter], None], remove: Callable[[Adapter], None]
    ) -> None:
        super().__init__(capacity)
        self._add, self._remove = add, remove
        self._numbers = itertools.count(1)

    def load(self, key: PolicyKey, busy: Collection[PolicyKey]) -> bool:
        # Before any adapter is unloaded.
        if not self.is_resident(key):
            check_files(key)
        return super().load(key, busy)

    def _replace(self, victim: PolicyKey | None, key: PolicyKey, path: str) -> None:
        # First: at capacity the engine has no place for one more.
        if victim is not None:
            self._remove(self._held[victim])
        try:
            self._held[key] = self._added(key.uid, path)
        except EngineError:
            if victim is not None:
                self._load_again(victim)
            raise
        if victim is not None:
            del self._held[victim]

    def _added(self, uid: str, path: str) -> Adapter:
        # vLLM finds weights by number, and cached prompts by name and path: with new ones, none of
        # an older version are ever used.
        number = next(self._numbers)
        adapter = Adapter(number=number, name=f"{uid}#{number}", path=path)
        self._add(adapter)
        return adapter

    def _load_again(self, victim: PolicyKey) -> None:
        """Load an adapter that was unloaded in vain; it keeps its place in the order of use."""
        try:
            self._held[victim] = self._added(victim.uid, self._held[victim].path)
        except EngineError as error:  # its files are gone: the next request for it fails
            log.warning("%s is not resident any more: %s", victim.uid, error)
            del self._held[victim]


def check_files(key: PolicyKey) -> None:
    """Raise PolicyLoadError unless the path of ``key`` holds the complete files of an adapter."""
    folder = Path(key.path or "")
    try:
        if kind_of_weights(folder) == "model":
            raise ConfigError(
                f"{folder} holds full weights, and vLLM plays adapters only; use "
                "engine=transformers"
            )
        read_adapter(folder)
        read_shapes(folder / ADAPTER_WEIGHTS)
    except ConfigError as error:
        message = f"policy {key.uid!r} cannot be loaded: {error}; is it complete?"
        raise PolicyLoadError(message) from error
