"""Named scalars on their way to the sinks: means over a moving window, or since the last flush."""

from __future__ import annotations

from collections import defaultdict, deque

#: What a metric's name starts with says where it comes from.
NAMESPACES = ("collection-", "evaluation-", "inference/", "learner/", "pool/")


class Metrics:
    """Takes every scalar and averages it.

    ``collection-ENV/…`` values are noisy, one per game, turn or seat: their mean runs over the
    last ``window`` values. Everything else is measured at a step: its mean is over what arrived
    since the last ``drain``, so that a curve shows each stretch of the run once.
    """

    def __init__(self, window: int) -> None:
        self._recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=window))
        self._fresh: dict[str, list[float]] = defaultdict(list)

    def put(self, key: str, number: float) -> None:
        """Add one value under ``NAMESPACE…/name``.

        Raises:
            ValueError: the key is in no namespace.
        """
        prefix, slash, name = key.partition("/")
        if not slash or not name or not f"{prefix}/".startswith(NAMESPACES):
            known = ", ".join(f"{namespace}…" for namespace in NAMESPACES)
            raise ValueError(f"metric {key!r} is in none of the namespaces {known}")
        self._recent[key].append(float(number))
        self._fresh[key].append(float(number))

    def mean(self, key: str) -> float | None:
        """The mean of the last ``window`` values; None when there are none."""
        values = self._recent.get(key)
        return sum(values) / len(values) if values else None

    def means(self, prefix: str) -> dict[str, float]:
        """``mean`` of every key that starts with ``prefix``."""
        return {
            key: sum(values) / len(values)
            for key, values in self._recent.items()
            if key.startswith(prefix)
        }

    def drain(self) -> dict[str, float]:
        """What the sinks get: a mean for each key that had a value since the last call."""
        drained = {}
        for key, values in self._fresh.items():
            shown = self._recent[key] if key.startswith("collection-") else values
            drained[key] = sum(shown) / len(shown)
        self._fresh.clear()
        return drained
