"""Numbers that users' code reports, in any process of a run."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from rlforge.errors import check_type

Sums = dict[str, tuple[float, int]]
"""Sum and number of the reported values, by name."""

_reported: Sums = {}
# Users' code may report from threads of its own.
_lock = threading.Lock()


def log_scalar(name: str, value: float) -> None:
    """Record a number of your own with the run whose code calls this; in no run it does nothing.

    The mean since the last update or window, over all processes, is ``custom/NAME`` in
    metrics.jsonl or windows.jsonl and in every sink. Raises ValueError for an empty name, and what
    ``float`` raises for no number.

    Example: in a reward transform
        >>> def transform(rewards, env_id):
        ...     log_scalar(f"spread/{env_id}", max(rewards.values()) - min(rewards.values()))
        ...     return rewards
        >>> transform({0: 1.0, 1: -1.0}, "kuhn_poker")
        {0: 1.0, 1: -1.0}
        >>> taken()
        {'spread/kuhn_poker': (2.0, 1)}
    """
    check_type(name, str, what="a scalar has a name")
    if not name.strip():
        raise ValueError("a scalar needs a name")
    number = float(value)
    with _lock:
        total, count = _reported.get(name, (0.0, 0))
        _reported[name] = (total + number, count + 1)


def taken() -> Sums:
    """Take the scalars that this process reported since the last call."""
    with _lock:
        sums = dict(_reported)
        _reported.clear()
    return sums


def means(reports: Iterable[Mapping[str, tuple[float, int]]]) -> dict[str, float]:
    """Means over what several processes reported, as ``custom/NAME``.

    Example:
        >>> means([{"spread": (2.0, 1)}, {"spread": (1.0, 2)}])
        {'custom/spread': 1.0}
    """
    sums: Sums = {}
    # By sums and numbers: of the means, a process that reported once would count as much as any.
    for report in reports:
        for name, (total, count) in report.items():
            before = sums.get(name, (0.0, 0))
            sums[name] = (before[0] + total, before[1] + count)
    return {f"custom/{name}": total / count for name, (total, count) in sums.items()}
