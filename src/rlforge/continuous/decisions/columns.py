"""Decisions as rows of a table, with camelCase names, and back."""

from __future__ import annotations

import functools
import gc
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rlforge.continuous.decisions.records import (
    Decision,
    DecisionOutcome,
    Metadata,
    Result,
    calendar_date,
    window_start,
)
from rlforge.errors import RlforgeError
from rlforge.record.digests import digest_of
from rlforge.system.values import Codec, writable
from rlforge.types import Completion

METADATA = Codec(Metadata, camel_case=True)
RESULT = Codec(Result, camel_case=True)
COMPLETION = Codec(Completion, camel_case=True)


def decision_row(decision: Decision) -> dict[str, Any]:
    """``decision`` as a row; RlforgeError names the field that cannot be stored."""
    who = f"decision {decision.id!r}"
    if not decision.id or not decision.agent_id:
        raise RlforgeError(f"{who} of agent {decision.agent_id!r}: both need a name")
    window_start(decision.window_id)
    calendar_date(decision.timestamp)
    _finite(who, "metadata.confidence", decision.metadata.confidence)
    return {
        "id": writable(decision.id),
        "agentId": writable(decision.agent_id),
        "windowId": decision.window_id,
        # States and actions are JSON text, because their fields vary.
        "state": _json(who, "state", decision.state),
        "action": _json(who, "action", decision.action),
        "reward": None if decision.reward is None else _finite(who, "reward", decision.reward),
        "nextState": (
            None if decision.next_state is None else _json(who, "next_state", decision.next_state)
        ),
        "timestamp": decision.timestamp,
        "metadata": METADATA.encode(decision.metadata),
        **_result_columns(decision.result),
        "observation": writable(decision.observation),
        "completion": decision.completion and COMPLETION.encode(decision.completion),
        "complete": decision.complete,
    }


def digest_of_decisions(decisions: Iterable[Decision]) -> str:
    """The SHA-256 of decisions in order, as they are written."""
    rows = list(map(decision_row, decisions))
    for row in rows:
        if row["completion"] is not None:
            # Names of deployments count interrupted ones, too, which a repeated run has not.
            del row["completion"]["policyUid"]
    return digest_of(rows)


def outcome_row(outcome: DecisionOutcome) -> dict[str, Any]:
    """The columns of its decision that ``outcome`` knows."""
    who = f"outcome of decision {outcome.decision_id!r}"
    return {
        "id": writable(outcome.decision_id),
        "reward": _finite(who, "reward", outcome.reward),
        "nextState": _json(who, "next_state", outcome.next_state),
        **_result_columns(outcome.result),
    }


def to_decisions(rows: Iterable[Mapping[str, Any]]) -> list[Decision]:
    """The decisions of rows, as they were written."""
    # Next states are the states of later decisions: equal texts are parsed once.
    parse, collects = functools.cache(json.loads), gc.isenabled()
    # Thousands of states are a million small objects, none of them garbage: to walk them again and
    # again would take as long as to parse them.
    gc.disable()
    try:
        return [to_decision(row, parse) for row in rows]
    finally:
        if collects:
            gc.enable()


def to_decision(row: Mapping[str, Any], parse: Callable[[str], Any] = json.loads) -> Decision:
    """One decision; states and actions are JSON text, which ``parse`` reads, or objects.

    Raises ValueError where one is neither.
    """

    def parsed(name: str) -> dict[str, Any]:
        content = row[name]
        found = parse(content) if isinstance(content, str) else content
        if not isinstance(found, dict):
            raise ValueError(f"{name} is not a JSON object; it is {found!r:.60}")
        return found

    meta, completion = row.get("metadata") or {}, row.get("completion")
    result, stats = row.get("result"), row.get("agentStats") or {}
    return Decision(
        id=row["id"],
        agent_id=row["agentId"],
        window_id=row["windowId"],
        state=parsed("state"),
        action=parsed("action"),
        timestamp=row["timestamp"],
        # Datasets that others made may lack some columns.
        metadata=METADATA.decode({**meta, "provider": meta.get("provider") or ""}),
        reward=row.get("reward"),
        next_state=None if row.get("nextState") is None else parsed("nextState"),
        result=None
        if result is None
        else RESULT.decode({**result, "winRate": stats.get("winRate") or 0.0}),
        observation=row.get("observation") or "",
        completion=None if completion is None else COMPLETION.decode(completion),
    )


def _result_columns(result: Result | None) -> dict[str, Any]:
    if result is None:
        return {"result": None, "agentStats": None}
    columns = RESULT.encode(result)
    stats = {"winRate": columns.pop("winRate")}
    return {"result": columns, "agentStats": stats}


def _finite(who: str, field: str, number: float) -> float:
    if not math.isfinite(number):
        raise RlforgeError(f"{who}: {field} is {number}, which cannot be stored")
    return number


def _json(who: str, field: str, content: Mapping[str, Any]) -> str:
    try:
        return _ENCODER.encode(content)
    except (TypeError, ValueError) as error:
        raise RlforgeError(f"{who}: {field} is not JSON: {error}") from error


def _plain(content: Any) -> Any:
    if isinstance(content, Mapping):
        return dict(content)
    # Users compute with numpy, whose scalars the encoder does not know.
    if hasattr(content, "item"):
        return content.item()
    raise TypeError(f"a {type(content).__name__} cannot be stored")


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain)
