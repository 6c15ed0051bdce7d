"""Queries over a store, also while another process writes it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from rlforge.errors import StoreError
from rlforge.system.values import Codec
from rlforge.trajectories.columns import DECISIONS, to_decisions
from rlforge.trajectories.grid import window_start
from rlforge.trajectories.layout import StoreLayout, WindowFile
from rlforge.trajectories.open_windows import read_open_windows
from rlforge.trajectories.records import CONTROL, PROBLEM, SCRIPTED, AgentActivity, Decision

log = logging.getLogger(__name__)

#: Times that the files are listed again because the writer replaced some, before a query fails.
_LOOKS = 20

_ACTIVITY = f"""
    SELECT windowId, agentId, count(*) AS decisions,
        bool_or(NOT regexp_matches(metadata.provider, '^({SCRIPTED}|{CONTROL})')) AS learns,
        count(*) FILTER (coalesce(json_extract_string(action, '$.type'), '') <> 'NO_OP') AS actions,
        count(*) FILTER (complete) AS complete, count(reward) FILTER (accepted) AS rewarded,
        coalesce(sum(reward) FILTER (accepted), 0) AS rewardSum, max(timestamp) AS newest
    FROM (SELECT *, NOT json_exists(action, '$.{PROBLEM}') AS accepted FROM decisions)
    GROUP BY windowId, agentId ORDER BY windowId, agentId
"""
_ACTIVITIES = Codec(AgentActivity, camel_case=True)


class StoreReader:
    """The decisions in the folder ``root``.

    A damaged file is named once in a warning and left out. Every query sees the store as it is at
    that moment. Any number of readers may read while one process writes; one reader may serve
    several threads. Raises StoreError unless ``root`` is a store of this version.

    Example: see ``rlforge.trajectories.store.TrajectoryStore``, which reads as well.
    """

    def __init__(self, root: Path | str) -> None:
        self.layout = StoreLayout(root=Path(root))
        self.layout.check()
        self._db = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
        self._sound: dict[Path, bool] = {}

    @property
    def damaged(self) -> list[Path]:
        """Files left out so far because they are damaged."""
        return sorted(path for path, sound in self._sound.items() if not sound)

    def window_ids(self) -> list[str]:
        """Windows that hold decisions, in order of time."""
        # The files first: a window that the writer closes meanwhile is open no more, but a file.
        files = {file.window_id for file in self.layout.files()}
        here, _ = read_open_windows(self.layout.open_windows, (), None, texts=False)
        return sorted(files | here | {file.window_id for file in self.layout.files()})

    def count(self, window_id: str | None = None, agent_id: str | None = None) -> int:
        """The number of decisions, of one window, one agent, or both."""
        sql = "SELECT count(*) AS n FROM decisions"
        return int(self._query(sql, _one(window_id), agent_id, texts=False)["n"][0].as_py())

    def decisions(
        self, *, window_id: str | None = None, agent_id: str | None = None
    ) -> list[Decision]:
        """The decisions of a window, an agent, or both, in order of time."""
        return to_decisions(self.rows(_one(window_id), agent_id))

    def rows(
        self, window_ids: Collection[str] | None = None, agent_id: str | None = None
    ) -> pa.Table:
        """As ``decisions``, as a table of ``columns.DECISIONS``; window_ids None: all."""
        return self._query("FROM decisions ORDER BY timestamp, id", window_ids, agent_id)

    def newest_complete(self, count: int, before: float) -> list[Decision]:
        """The newest ``count`` decisions before a time whose outcome is known, in order of time."""
        found: list[Decision] = []
        sql = """FROM decisions WHERE complete AND timestamp < $before
            ORDER BY timestamp DESC, id DESC LIMIT $room"""
        for window_id in reversed(self.window_ids()):
            if window_start(window_id) >= before:
                continue
            room = count - len(found)
            found += to_decisions(self._query(sql, (window_id,), before=before, room=room))
            if len(found) == count:
                break
        return found[::-1]

    def activity(self, window_ids: Collection[str] | None = None) -> list[AgentActivity]:
        """Counts of each agent in each of the windows; reads no states."""
        rows = self._query(_ACTIVITY, window_ids, texts=False).to_pylist()
        return [_ACTIVITIES.decode(row) for row in rows]

    def close(self) -> None:
        """Free the memory of the queries."""
        self._db.close()

    def is_sound(self, file: WindowFile) -> bool:
        """Whether a file is as it was written; a damaged one is named in a warning once."""
        if file.path not in self._sound:
            damage = file.damage()
            self._sound[file.path] = damage is None
            if damage is not None:
                log.warning("%s is damaged: %s; the rest is served", file.path, damage)
        return self._sound[file.path]

    def _query(
        self,
        sql: str,
        window_ids: Collection[str] | None,
        agent_id: str | None = None,
        *,
        texts: bool = True,
        **parameters: Any,
    ) -> pa.Table:
        """``sql`` over the table ``decisions`` of these windows and agent."""
        where = "" if agent_id is None else " WHERE agentId = $agent"
        given = parameters if agent_id is None else {**parameters, "agent": agent_id}
        for _ in range(_LOOKS):
            try:
                fresh, files = self._look(window_ids, agent_id, texts=texts)
                with closing(self._db.cursor()) as cursor:
                    cursor.register("fresh", fresh)
                    table = f"WITH decisions AS ({_union(files)}{where}) {sql}"
                    return cursor.sql(table, params=given).to_arrow_table()
            except FileNotFoundError:
                continue
            except duckdb.Error as error:
                if not self._changed(files):
                    raise StoreError(f"{self.layout.root} cannot be read: {error}") from error
        raise StoreError(f"{self.layout.root}: its files keep changing; try again")

    def _look(
        self, window_ids: Collection[str] | None, agent_id: str | None, *, texts: bool
    ) -> tuple[pa.Table, list[WindowFile]]:
        """Rows of the open windows, and files of the closed ones.

        Raises FileNotFoundError if the writer moved a window from one to the other meanwhile.
        """
        before = self.layout.files()
        place = self.layout.open_windows
        here, fresh = read_open_windows(place, window_ids, agent_id, texts=texts)
        if self.layout.files() != before:
            raise FileNotFoundError
        wanted = [
            file
            for file in before
            if file.window_id not in here and (window_ids is None or file.window_id in window_ids)
        ]
        return fresh, [file for file in wanted if self.is_sound(file)]

    def _changed(self, files: Sequence[WindowFile]) -> bool:
        """Whether any of the files was deleted or damaged since it was listed."""
        for file in files:
            self._sound.pop(file.path, None)
        try:
            return not all(self.is_sound(file) for file in files)
        except FileNotFoundError:
            return True


def _one(window_id: str | None) -> tuple[str] | None:
    return None if window_id is None else (window_id,)


def _union(files: Sequence[WindowFile]) -> str:
    """SQL for all rows; its columns do not depend on which parts are empty."""
    columns = ", ".join(f'"{name}"' for name in DECISIONS.names)
    fresh = f"SELECT {columns} FROM fresh"
    if not files:
        return f"SELECT * FROM ({fresh})"
    paths = ", ".join("'" + str(file.path).replace("'", "''") + "'" for file in files)
    closed = f"SELECT * FROM read_parquet([{paths}], union_by_name = true)"
    return f"SELECT {columns} FROM ({fresh} UNION ALL BY NAME {closed})"
