"""Named scalars: namespaces, moving windows, flushes."""

import pytest

from rlforge.record.metrics import Metrics


def test_a_key_outside_the_namespaces_is_refused():
    metrics = Metrics(4)
    for key in ("loss", "learn/loss", "learner/", "collection/x"):
        with pytest.raises(ValueError, match="in none of the namespaces"):
            metrics.put(key, 1.0)


def test_a_flush_has_windows_for_games_and_fresh_means_for_the_rest():
    metrics = Metrics(8)
    metrics.put("collection-Tak/reward", 1.0)
    metrics.put("inference/engine-0/tok_s", 4.0)
    assert metrics.drain() == {"collection-Tak/reward": 1.0, "inference/engine-0/tok_s": 4.0}
    metrics.put("collection-Tak/reward", 0.0)
    metrics.put("inference/engine-0/tok_s", 1.0)
    metrics.put("inference/engine-0/tok_s", 2.0)
    assert metrics.drain() == {"collection-Tak/reward": 0.5, "inference/engine-0/tok_s": 1.5}
    assert metrics.drain() == {}
    assert metrics.means() == {"collection-Tak/reward": 0.5}
