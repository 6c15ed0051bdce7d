"""What a writer remembers of decisions that are on disk: enough to write nothing twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rlforge.errors import StoreError
from rlforge.trajectories.reader import StoreReader

#: Ids kept in memory; beyond it, those of windows least lately written are read again if need be.
_MOST_IDS = 1_000_000
_MOST_WINDOWS = 64

Row = Mapping[str, Any]
#: Agent and window of a decision.
Place = tuple[str, str]


class WindowIds:
    """The ids in each window that is being written."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._by_window: OrderedDict[str, set[str]] = OrderedDict()

    def of(self, window_id: str) -> set[str]:
        """The ids of the decisions in a window."""
        if window_id not in self._by_window:
            index = self._reader.index(window_id)
            self._by_window[window_id] = {row["id"] for row in index}
        self._by_window.move_to_end(window_id)
        return self._by_window[window_id]

    def add(self, rows: Iterable[Row]) -> None:
        """These are written now; their windows have been asked for with ``of``."""
        for row in rows:
            self._by_window[row["windowId"]].add(row["id"])
        while len(self._by_window) > _MOST_WINDOWS or (
            len(self._by_window) > 1 and sum(map(len, self._by_window.values())) > _MOST_IDS
        ):
            self._by_window.popitem(last=False)

    def remove(self, rows: Iterable[Row]) -> None:
        """These could not be written after all."""
        for row in rows:
            self._by_window.get(row["windowId"], set()).discard(row["id"])


class OpenDecisions:
    """Decisions whose outcome is not known yet, and where they lie."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._taken: set[str] = set()

    def add(self, rows: Iterable[Row]) -> None:
        """Decisions that are written now; complete ones are passed over."""
        for row in rows:
            if not row["complete"]:
                self._places[row["id"]] = row["agentId"], row["windowId"]
        while len(self._places) > _MOST_IDS:
            self._places.popitem(last=False)

    def remove(self, rows: Iterable[Row]) -> None:
        """These could not be written after all."""
        for row in rows:
            self._places.pop(row["id"], None)

    def take(self, ids: Collection[str]) -> dict[str, Place]:
        """Those of ``ids`` that are open, to be completed: ``done`` or ``give_back`` must follow.

        Raises StoreError, and takes none, where one is not in the store.
        """
        sought = {one for one in ids if one not in self._places and one not in self._taken}
        complete = self._search(sought) if sought else set()
        taken = {
            one: self._places[one] for one in ids if one not in complete and one not in self._taken
        }
        for one in taken:
            del self._places[one]
        self._taken |= taken.keys()
        return taken

    def done(self, taken: Mapping[str, Place]) -> None:
        """Their outcomes are written."""
        self._taken -= taken.keys()

    def give_back(self, taken: Mapping[str, Place]) -> None:
        """Their outcomes could not be written."""
        self._taken -= taken.keys()
        self._places.update(taken)

    def _search(self, sought: set[str]) -> set[str]:
        """Look for ids on disk, newest windows first; returns those that are complete."""
        left, complete = set(sought), set()
        for window_id in reversed(self._reader.window_ids()):
            index = self._reader.index(window_id)
            # The other open ones of the window will be asked for next.
            self.add(row for row in index if row["id"] not in self._taken)
            complete |= {row["id"] for row in index if row["complete"] and row["id"] in left}
            left -= {row["id"] for row in index}
            if not left:
                return complete
        raise StoreError(
            f"no decision {min(left)!r} in {self._reader.layout.root}; its outcome cannot be kept"
        )
