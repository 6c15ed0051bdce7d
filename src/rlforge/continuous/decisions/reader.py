"""Queries over a store, also while another process writes it."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from rlforge.continuous.decisions.columns import to_decisions
from rlforge.continuous.decisions.grid import window_start
from rlforge.continuous.decisions.layout import StoreLayout, WindowFile
from rlforge.continuous.decisions.open_windows import read_open_windows
from rlforge.continuous.decisions.records import CONTROL, PROBLEM, SCRIPTED, AgentActivity, Decision
from rlforge.errors import StoreError
from rlforge.system.files import readable_size
from rlforge.system.values import Codec

log = logging.getLogger(__name__)

#: Times that the files are listed again because the writer replaced some, before a query fails.
_LOOKS = 20

_ACTIVITY = f"""
    SELECT windowId, agentId, count(*) AS decisions,
        bool_or(NOT regexp_matches(metadata.provider, '^({SCRIPTED}|{CONTROL})')) AS learns,
        count(*) FILTER (
            NOT accepted OR coalesce(json_extract_string(action, '$.type'), '') <> 'NO_OP'
        ) AS actions,
        count(*) FILTER (complete) AS complete, count(reward) FILTER (accepted) AS rewarded,
        coalesce(sum(reward) FILTER (accepted), 0) AS rewardSum, max(timestamp) AS newest
    FROM (SELECT *, NOT json_exists(action, '$.{PROBLEM}') AS accepted FROM decisions)
    GROUP BY windowId, agentId ORDER BY windowId, agentId
"""
_ACTIVITIES = Codec(AgentActivity, camel_case=True)


class StoreReader:
    """The decisions in the folder ``root``, as it is at each query, also while a process writes.

    A damaged file is named once in a warning and left out. Threads may share a reader. Raises
    StoreError unless ``root`` is a store of this version.

    Example: see ``rlforge.continuous.decisions.store.TrajectoryStore``, which reads as well.
    """

    def __init__(self, root: Path | str) -> None:
        self.layout = StoreLayout(root=Path(root))
        self.layout.check()
        self._db = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
        self._sound: dict[Path, bool] = {}

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
        sound = self._sound.get(file.path)
        if sound is None:
            content = file.path.read_bytes()
            self._sound[file.path] = sound = zlib.crc32(content) == file.crc
            if not sound:
                what = f"its {readable_size(len(content))} are not what was written"
                log.warning("%s is damaged: %s; the rest is served", file.path, what)
        return sound

    def _query(
        self,
        sql: str,
        window_ids: Collection[str] | None,
        agent_id: str | None = None,
        *,
        texts: bool = True,
        **parameters: Any,
    ) -> pa.Table:
        """``sql`` over the table ``decisions``; anew where the writer moves windows meanwhile."""
        where = "" if agent_id is None else " WHERE agentId = $agent"
        given = parameters if agent_id is None else {**parameters, "agent": agent_id}
        failed: list[WindowFile] | None = None
        for _ in range(_LOOKS):
            files = self.layout.files()
            try:
                place = self.layout.open_windows
                here, fresh = read_open_windows(place, window_ids, agent_id, texts=texts)
                wanted = [
                    file
                    for file in files
                    if file.window_id not in here
                    and (window_ids is None or file.window_id in window_ids)
                    and self.is_sound(file)
                ]
                if self.layout.files() != files:
                    continue
                with closing(self._db.cursor()) as cursor:
                    cursor.register("fresh", fresh)
                    table = f"WITH decisions AS (FROM ({_union(wanted)}){where}) {sql}"
                    return cursor.sql(table, params=given).to_arrow_table()
            except FileNotFoundError:
                continue
            except duckdb.Error as error:
                if wanted == failed:
                    raise StoreError(f"{self.layout.root} cannot be read: {error}") from error
                failed = wanted  # checked anew: they may be damaged or deleted since
                for file in wanted:
                    self._sound.pop(file.path, None)
        raise StoreError(f"{self.layout.root}: its files keep changing; try again")


def _one(window_id: str | None) -> tuple[str] | None:
    return None if window_id is None else (window_id,)


def _union(files: Sequence[WindowFile]) -> str:
    """SQL for all rows, of ``fresh`` and of ``files``."""
    if not files:
        return "FROM fresh"
    paths = ", ".join("'" + str(file.path).replace("'", "''") + "'" for file in files)
    return f"FROM fresh UNION ALL BY NAME FROM read_parquet([{paths}])"
