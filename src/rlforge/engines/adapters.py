"""Which adapter versions a vLLM engine holds, and the names under which it knows them.

vLLM finds weights by integer id and cached prompts by name and path. Each loading takes a fresh
id and name here, so that neither weights nor cached prompts of an older version ever answer.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path

from rlforge.engines.policies import PolicyKey
from rlforge.errors import ConfigError, EngineError, PolicyLoadError
from rlforge.models.files import ADAPTER_WEIGHTS
from rlforge.models.fit import kind_of_weights, read_adapter, read_shapes
from rlforge.types import value

log = logging.getLogger(__name__)


@value
class Adapter:
    """One loading of an adapter: ``number`` and ``name`` are never used again."""

    number: int
    name: str
    path: str


class AdapterTable:
    """At most ``capacity`` adapters beside the base model, the least recently used one goes first.

    add: loads an adapter into the engine, or raises EngineError. remove: unloads it.
    """

    def __init__(
        self, capacity: int, *, add: Callable[[Adapter], None], remove: Callable[[Adapter], None]
    ) -> None:
        self._capacity = capacity
        self._add, self._remove = add, remove
        self._numbers = itertools.count(1)
        self._held: OrderedDict[PolicyKey, Adapter] = OrderedDict()

    @property
    def resident(self) -> tuple[PolicyKey, ...]:
        """What is held beside the base model, least recently used first."""
        return tuple(self._held)

    def is_resident(self, key: PolicyKey) -> bool:
        """Whether ``key`` can answer now."""
        return key.path is None or key in self._held

    def use(self, key: PolicyKey) -> Adapter | None:
        """The adapter of a resident policy, now the most recently used; None for the base."""
        if key.path is None:
            return None
        self._held.move_to_end(key)
        return self._held[key]

    def load(self, key: PolicyKey, busy: Collection[PolicyKey]) -> bool:
        """Makes ``key`` resident, in place of the least recently used one that is not busy.

        Returns False when all places are busy. Raises EngineError when the policy cannot load.

        The engine has no place for one more, so another version leaves before it takes this one.
        Files that are not whole are therefore refused first, and where the engine itself refuses,
        who left is loaded again: what is resident stays resident, unless its own files are gone.
        """
        if key.path is None or key in self._held:
            return True
        check_files(key.path, key.uid)
        victim = None
        if len(self._held) >= self._capacity:
            victim = next((held for held in self._held if held not in busy), None)
            if victim is None:
                return False
            self._remove(self._held[victim])
        try:
            self._held[key] = self._added(key.uid, key.path)
        except EngineError:
            if victim is not None:
                self._bring_back(victim)
            raise
        if victim is not None:
            del self._held[victim]
        return True

    def _added(self, uid: str, path: str) -> Adapter:
        """The adapter in ``path`` in the engine, under a fresh number."""
        number = next(self._numbers)
        adapter = Adapter(number=number, name=f"{uid}#{number}", path=path)
        self._add(adapter)
        return adapter

    def _bring_back(self, victim: PolicyKey) -> None:
        """Loads who left for nothing, in its old place among the least recently used."""
        try:
            self._held[victim] = self._added(victim.uid, self._held[victim].path)
        except EngineError as error:  # its files are gone; whoever asks for it next is told
            log.warning("%s is not resident any more: %s", victim.uid, error)
            del self._held[victim]


def check_files(path: str, uid: str) -> None:
    """Raises PolicyLoadError unless ``path`` is a directory with the whole files of an adapter."""
    folder = Path(path)
    try:
        if kind_of_weights(folder) == "model":
            raise ConfigError(
                f"{path} holds full weights, and vLLM plays adapters only: use engine=transformers"
            )
        read_adapter(folder)
        read_shapes(folder / ADAPTER_WEIGHTS)
    except ConfigError as error:
        raise PolicyLoadError(
            f"policy {uid!r} cannot be loaded: {error}; is it complete?"
        ) from error
