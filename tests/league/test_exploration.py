import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.league.exploration import OPTIMISTIC_COVERAGE, ExplorationTracker, NgramWindow

games = st.lists(st.lists(st.sampled_from("xyz"), max_size=7), max_size=20)


def grams(game: list[str], n: int) -> list[str]:
    """Recounted from scratch; single-letter actions make an n-gram a string."""
    text = "".join(game)
    if 0 < len(text) < n:
        return [text]
    return [text[i : i + n] for i in range(len(text) - n + 1)]


@given(games, st.integers(1, 4), st.integers(1, 6))
def test_incremental_counts_equal_a_recount_of_the_window(games, n, size):
    window = NgramWindow(n, size)
    for game in games:
        window.add(game)
    counts = Counter(gram for game in games[-size:] for gram in grams(game, n))
    assert window.counts() == {
        "coverage": len(counts) / counts.total() if counts else OPTIMISTIC_COVERAGE,
        "games": min(len(games), size),
        "ngrams": counts.total(),
        "unique": len(counts),
        "games_total": len(games),
        "ngrams_total": sum(len(grams(game, n)) for game in games),
    }


@given(games, games, st.integers(1, 4), st.integers(1, 6))
def test_a_restored_tracker_counts_on_as_if_never_stopped(before, after, n, size):
    tracker, restored = ExplorationTracker(n, size), ExplorationTracker(n, size)
    for game in before:
        tracker.add(["a", "b"], "env", game)
    restored.load_state_dict(json.loads(json.dumps(tracker.state_dict())))
    for game in after:
        tracker.add(["b"], "env", game)
        restored.add(["b"], "env", game)
    assert restored.snapshot() == tracker.snapshot()


def test_environments_are_counted_over_all_opponents_and_each_by_itself():
    tracker = ExplorationTracker(ngram=1, window=8)
    tracker.add(["a"], "env", ["x", "y"])
    tracker.add(["b", "b"], "env", ["x"])
    tracker.add([], "other", ["x"])
    found = tracker.snapshot()
    assert (found["envs"]["env"]["unique"], found["envs"]["env"]["ngrams"]) == (2, 3)
    assert found["opponents"]["b"]["env"]["games"] == 1
    assert found["opponents"].keys() == {"a", "b"}
    assert "other" not in found["opponents"]["a"]


def test_diversity_averages_environments_and_hopes_for_the_unmet():
    tracker = ExplorationTracker(ngram=1, window=8)
    tracker.add(["a"], "env", [])  # no action says nothing
    assert tracker.diversity("a") == OPTIMISTIC_COVERAGE
    tracker.add(["a"], "env", ["x", "x", "x", "x"])
    assert tracker.diversity("a") == 0.25
    assert tracker.diversity("never met") == OPTIMISTIC_COVERAGE
    tracker.add(["b"], "other", ["x", "x"])
    assert tracker.diversity("a") == pytest.approx((0.25 + 1) / 2)
    assert tracker.diversity("b") == pytest.approx((1 + 0.5) / 2)


def test_forgotten_opponents_leave_the_environment_counts():
    tracker = ExplorationTracker(ngram=1)
    tracker.add(["a"], "env", ["x", "x"])
    tracker.forget("a")
    tracker.forget("never met")
    assert tracker.diversity("a") == OPTIMISTIC_COVERAGE
    counts = {"games": 1, "ngrams": 2, "unique": 1, "games_total": 1, "ngrams_total": 2}
    assert tracker.snapshot() == {"envs": {"env": {"coverage": 0.5, **counts}}, "opponents": {}}
