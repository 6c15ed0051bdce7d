"""Queries over a store, also while another process writes it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from rlforge.errors import StoreError
from rlforge.system.values import Codec
from rlforge.trajectories.columns import SCHEMAS, to_decisions
from rlforge.trajectories.grid import window_start
from rlforge.trajectories.layout import DataFile, StoreLayout
from rlforge.trajectories.records import CONTROL, PROBLEM, SCRIPTED, AgentActivity, Decision
from rlforge.trajectories.wal import SegmentContent, read_segment
from rlforge.types import value

log = logging.getLogger(__name__)

#: Times that the files are listed again because a merge replaced some, before a query fails.
_LOOKS = 20

_ROWS = """
    SELECT d.* REPLACE (
        coalesce(d.reward, o.reward) AS reward,
        coalesce(d.nextState, o.nextState) AS nextState,
        coalesce(d.result, o.result) AS result,
        coalesce(d.agentStats, o.agentStats) AS agentStats,
        (d.complete OR o.id IS NOT NULL) AS complete)
    FROM decisions d LEFT JOIN outcomes o USING (id)
"""
_ACTIVITY = f"""
    SELECT windowId, agentId, count(*) AS decisions,
        bool_or(NOT regexp_matches(metadata.provider, '^({SCRIPTED}|{CONTROL})')) AS learns,
        count(*) FILTER (coalesce(json_extract_string(action, '$.type'), '') <> 'NO_OP') AS actions,
        count(*) FILTER (complete) AS complete, count(reward) FILTER (accepted) AS rewarded,
        coalesce(sum(reward) FILTER (accepted), 0) AS rewardSum, max(timestamp) AS newest
    FROM (SELECT *, NOT json_exists(action, '$.{PROBLEM}') AS accepted FROM ({_ROWS}))
    GROUP BY windowId, agentId ORDER BY windowId, agentId
"""
_ACTIVITIES = Codec(AgentActivity, camel_case=True)


@value
class _View:
    """The data of a query, by table: rows in the log, and files."""

    log: Mapping[str, pa.Table]
    files: Mapping[str, Sequence[DataFile]]


class StoreReader:
    """The decisions in the folder ``root``, each joined with its outcome.

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
        # The log first: rows that leave it meanwhile have a folder by then.
        contents = [self._read_log(number) for number in self.layout.segments()]
        fresh = {
            window_id
            for content in contents
            if content is not None
            for window_id in pc.unique(content.tables["decisions"]["windowId"]).to_pylist()
        }
        return sorted({*self.layout.window_ids(), *fresh})

    def count(self, window_id: str | None = None, agent_id: str | None = None) -> int:
        """The number of decisions, of one window, one agent, or both."""
        table = self._query("SELECT count(*) AS n FROM decisions", _one(window_id), agent_id)
        return int(table["n"][0].as_py())

    def decisions(
        self, *, window_id: str | None = None, agent_id: str | None = None
    ) -> list[Decision]:
        """The decisions of a window, an agent, or both, in order of time."""
        return to_decisions(self.rows(_one(window_id), agent_id))

    def rows(
        self, window_ids: Collection[str] | None = None, agent_id: str | None = None
    ) -> pa.Table:
        """As ``decisions``, as a table of ``columns.DECISIONS``; window_ids None: all."""
        return self._query(f"{_ROWS} ORDER BY timestamp, id", window_ids, agent_id)

    def index(self, window_id: str) -> list[dict[str, Any]]:
        """``id``, ``agentId``, ``windowId`` and ``complete`` of a window's decisions."""
        sql = f"SELECT id, agentId, windowId, complete FROM ({_ROWS})"
        rows: list[dict[str, Any]] = self._query(sql, (window_id,)).to_pylist()
        return rows

    def newest_complete(self, count: int, before: float) -> list[Decision]:
        """The newest ``count`` decisions before a time whose outcome is known, in order of time."""
        found: list[Decision] = []
        for window_id in reversed(self.window_ids()):
            if window_start(window_id) >= before:
                continue
            sql = f"""SELECT * FROM ({_ROWS}) WHERE complete AND timestamp < $before
                ORDER BY timestamp DESC, id DESC LIMIT $room"""
            room = count - len(found)
            found += to_decisions(self._query(sql, (window_id,), before=before, room=room))
            if len(found) == count:
                break
        return found[::-1]

    def activity(self, window_ids: Collection[str] | None = None) -> list[AgentActivity]:
        """Counts of each agent in each of the windows; reads no states."""
        rows = self._query(_ACTIVITY, window_ids).to_pylist()
        return [_ACTIVITIES.decode(row) for row in rows]

    def close(self) -> None:
        """Free the memory of the queries."""
        self._db.close()

    def _query(
        self,
        sql: str,
        window_ids: Collection[str] | None,
        agent_id: str | None = None,
        **parameters: Any,
    ) -> pa.Table:
        """``sql`` over the tables ``decisions`` and ``outcomes`` of these windows and agent."""
        where = "" if agent_id is None else " WHERE agentId = $agent"
        given = parameters if agent_id is None else {**parameters, "agent": agent_id}
        for _ in range(_LOOKS):
            try:
                view = self._look(window_ids)
                with closing(self._db.cursor()) as cursor:
                    for kind, table in view.log.items():
                        cursor.register(f"log_{kind}", table)
                    tables = ", ".join(
                        f"{kind} AS ({_table(kind, view)}{where})" for kind in SCHEMAS
                    )
                    return cursor.sql(f"WITH {tables} {sql}", params=given).to_arrow_table()
            except FileNotFoundError:
                continue
            except duckdb.Error as error:
                if not self._changed(view):
                    raise StoreError(f"{self.layout.root} cannot be read: {error}") from error
        raise StoreError(f"{self.layout.root}: its files keep changing; try again")

    def _look(self, window_ids: Collection[str] | None) -> _View:
        """The current rows and files. Raises FileNotFoundError if a merge replaced some."""
        # The log first: rows of a segment that is deleted meanwhile are in the windows by then.
        segments = [(number, self._read_log(number)) for number in self.layout.segments()]
        known = self.layout.window_ids()
        wanted = known if window_ids is None else [w for w in known if w in window_ids]
        files = {w: [f for f in self.layout.files(w) if self._is_sound(f)] for w in wanted}
        logs: dict[str, pa.Table] = {}
        for kind, schema in SCHEMAS.items():
            fresh = [
                _not_moved(number, kind, content.tables[kind], files, window_ids)
                for number, content in segments
                if content is not None
            ]
            logs[kind] = pa.concat_tables([schema.empty_table(), *fresh], promote_options="default")
        by_kind = {
            kind: [f for of_window in files.values() for f in of_window if f.kind == kind]
            for kind in SCHEMAS
        }
        return _View(log=logs, files=by_kind)

    def _read_log(self, number: int) -> SegmentContent | None:
        path = self.layout.segment(number)
        try:
            content = read_segment(path)
        except FileNotFoundError:
            return None
        if content.damaged and path not in self._sound:
            self._sound[path] = False
            log.warning("%s: %d bytes are damaged; the rest is served", path, content.damaged)
        return content

    def _is_sound(self, file: DataFile) -> bool:
        if file.path not in self._sound:
            damage = file.damage()
            self._sound[file.path] = damage is None
            if damage is not None:
                log.warning("%s is damaged: %s; the rest is served", file.path, damage)
        return self._sound[file.path]

    def _changed(self, view: _View) -> bool:
        """Whether any of its files was deleted or damaged since it was listed."""
        files = [file for of_kind in view.files.values() for file in of_kind]
        for file in files:
            self._sound.pop(file.path, None)
        try:
            return not all(self._is_sound(file) for file in files)
        except FileNotFoundError:
            return True


def _one(window_id: str | None) -> tuple[str] | None:
    return None if window_id is None else (window_id,)


def _table(kind: str, view: _View) -> str:
    """SQL for the rows of one table; its columns do not depend on which parts are empty."""
    columns = ", ".join(f'"{name}"' for name in SCHEMAS[kind].names)
    fresh = f"SELECT {columns} FROM log_{kind}"
    if not view.files[kind]:
        return f"SELECT * FROM ({fresh})"
    paths = ", ".join("'" + str(f.path).replace("'", "''") + "'" for f in view.files[kind])
    stored = f"SELECT * FROM read_parquet([{paths}], union_by_name = true)"
    return f"SELECT * FROM ({fresh} UNION ALL BY NAME {stored})"


def _not_moved(
    number: int,
    kind: str,
    rows: pa.Table,
    files: Mapping[str, Sequence[DataFile]],
    window_ids: Collection[str] | None,
) -> pa.Table:
    """The rows of a log segment, of the wanted windows, that no parquet file holds already."""
    windows = pc.unique(rows["windowId"]).to_pylist()
    wanted = [
        window_id
        for window_id in windows
        if (window_ids is None or window_id in window_ids)
        and not any(f.kind == kind and f.covers(number) for f in files.get(window_id, ()))
    ]
    if len(wanted) == len(windows):
        return rows
    return rows.filter(pc.is_in(rows["windowId"], pa.array(wanted, pa.string())))
