"""Named scalars: namespaces, moving windows, and what one flush hands over."""

from __future__ import annotations

import pytest

from rlforge.tracking.metrics import Metrics


def test_a_key_outside_the_namespaces_is_refused() -> None:
    metrics = Metrics(4)
    for key in ("loss", "learn/loss", "learner/", "collection/x"):
        with pytest.raises(ValueError, match="in none of the namespaces"):
            metrics.put(key, 1.0)


def test_the_window_forgets_the_oldest() -> None:
    metrics = Metrics(3)
    for number in (100.0, 1.0, 2.0, 3.0):
        metrics.put("collection-Tak/reward", number)
    assert metrics.mean("collection-Tak/reward") == 2.0
    assert metrics.mean("collection-Tak/none") is None
    assert metrics.means("collection-") == {"collection-Tak/reward": 2.0}


def test_a_flush_has_windows_for_games_and_fresh_means_for_the_rest() -> None:
    metrics = Metrics(8)
    metrics.put("collection-Tak/reward", 1.0)
    metrics.put("learner/loss", 4.0)
    assert metrics.drain() == {"collection-Tak/reward": 1.0, "learner/loss": 4.0}
    metrics.put("collection-Tak/reward", 0.0)
    metrics.put("learner/loss", 1.0)
    metrics.put("learner/loss", 2.0)
    assert metrics.drain() == {"collection-Tak/reward": 0.5, "learner/loss": 1.5}
    assert metrics.drain() == {}
