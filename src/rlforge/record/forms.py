"""Types of the fields that readers rely on in the JSON of a run, by the name of its file.

Files whose content is a value (pool.json, evals.jsonl) are checked by ``from_json`` as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: JSON has null for a number that is not finite.
_NUMBER, _COUNT, _TEXT = int | float | None, int | None, str | None
_NUMBERS, _STEP = {"*": _NUMBER}, {"step": int, "*": object}
_ROWS = [{"*": object}]
_PLAYERS = {"*": {"*": _NUMBER, "decisions": int, "trades": int, "refused": int}}
_ENDED = {"status": str, "run_name": str, "total_updates": _COUNT, "signals": _ROWS}
_SHOWN = {"observation": str, "answer": str, "kind": str, "agent": str, "version": str}
_SCORES = {"reward": _NUMBER, "profit": _NUMBER, "score": _NUMBER, "time": int | float}

#: A type, ``[type of each item]``, ``{key: type}`` with ``*`` for all other keys, or ``(type,)``,
#: which may be null as well.
_FORMS: Mapping[str, Mapping[str, Any]] = {
    "metrics.jsonl": {"step": int, "window_id": str, "*": _NUMBER},
    "scalars.jsonl": {"step": int, "*": _NUMBER},
    "windows.jsonl": {
        "window": int,
        "window_id": str,
        "version": _TEXT,
        "reason": str,
        "players": _PLAYERS,
        "trajectories": int,
        "batch/trained_decisions": int,
        "*": _NUMBER,
    },
    "digests.jsonl": {
        "step": int,
        "computed": {"threads": _COUNT, "*": object},
        "played": int,
        "part": int,
        "name": str,
        "window_id": str,
        "*": object,
    },
    "sentinel.jsonl": {"step": int, "actions": [str], "*": object},
    "evals.jsonl": _STEP,
    "exact.jsonl": _STEP,
    "ratings.jsonl": _STEP,
    "summary.json": {
        **_ENDED,
        "updates": int,
        "windows": int,
        "total_windows": _COUNT,
        "*": object,
        "wall_time_s": _NUMBER,
        "objective": _NUMBER,
        "sinks": {"*": str},
        "error": _TEXT,
        "evaluations": _ROWS,
        "versions": {"*": str},
        "command": _TEXT,
        "serving": _TEXT,
    },
    "progress.json": {**_ENDED, "update": int, "elapsed_s": _NUMBER, "eta_s": _NUMBER, "*": object},
    "comparison.json": {
        "change": {"*": {"*": ({"*": int | float},)}},
        "*": {
            "players": _PLAYERS,
            "agents": [{"*": {"*": _NUMBERS}}],
            "version": _TEXT,
            "*": object,
        },
    },
    "decisions.json": {
        "*": ({"window": str, "decisions": [{**_SHOWN, **_SCORES, "action": {}, "*": object}]},)
    },
    "scores": {
        "scores": {"*": {"score": _NUMBER, "explanation": _TEXT}},
        "metrics": _NUMBERS,
        "*": object,
    },
    "api.json": {"players": _ROWS, "games": int, "declined": int, "closed": _TEXT, "*": object},
    "sweep.json": {"shared": [str], "jobs": object, "*": object},
    "trackers.json": {"wandb": str, "sent": _NUMBERS, "*": object},
    # Of saved states, and the facts of a window in its row.
    "run.json": {
        **{part: {"*": object} for part in ("pool", "buffer", "policies", "observers")},
        "evaluations": {"*": object},
        "run_dir": str,
        "game_files": int,
        "layout": int,
        "due": ({"*": object},),
        "*": object,
    },
    "journal.sqlite": {
        "trained": {"uid": _TEXT, "reason": str, "seconds": _NUMBER, "*": object},
        "*": {"seconds": _NUMBER, "*": object},
    },
}
#: Fields that each line of a growing file has.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "windows.jsonl": ("window", "window_id"),
    **dict.fromkeys(("metrics.jsonl", "evals.jsonl", "exact.jsonl", "sentinel.jsonl"), ("step",)),
    **dict.fromkeys(("ratings.jsonl", "scalars.jsonl", "digests.jsonl"), ("step",)),
}


def checked(path: Path, data: Any) -> dict[str, Any]:
    """The object ``data`` that was read from ``path``; ValueError where readers cannot use it.

    Example:
        >>> checked(Path("runs/kuhn/metrics.jsonl"), {"step": 3, "loss": "low"})
        Traceback (most recent call last):
        ValueError: loss is 'low'
    """
    if not isinstance(data, dict):
        raise ValueError("no object")
    # The files of a folder, such as those of scores, have one form.
    form = _FORMS.get(path.name, _FORMS.get(path.parent.name, {"*": object}))
    if lacking := [key for key in _NEEDED.get(path.name, ()) if key not in data]:
        raise ValueError(f"no {lacking[0]}")
    _check(form, data, "")
    return data


def _check(form: Any, data: Any, where: str) -> None:
    if isinstance(form, tuple):
        if data is not None:
            _check(form[0], data, where)
    elif isinstance(form, Mapping) and isinstance(data, dict):
        for key, item in data.items():
            _check(form.get(key, form.get("*", object)), item, f"{where}.{key}" if where else key)
    elif isinstance(form, list) and isinstance(data, list):
        for place, item in enumerate(data):
            _check(form[0], item, f"{where}[{place}]")
    elif isinstance(form, Mapping | list) or not isinstance(data, form):
        raise ValueError(f"{where} is {data!r:.60}")
