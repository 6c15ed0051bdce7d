import pytest

from rlforge.utilisation import Utilisation, union_length


def test_overlapping_spans_count_once() -> None:
    assert union_length([(0, 2), (1, 3), (5, 6)]) == pytest.approx(4)


def test_nested_spans_count_once() -> None:
    assert union_length([(0, 10), (2, 3), (4, 5)]) == pytest.approx(10)


def test_shares_split_wall_time_into_engine_learner_and_neither() -> None:
    watch = Utilisation(started=100.0)
    watch.learner_worked((104.0, 108.0))
    watch.engines_worked([(99.0, 102.0), (103.0, 105.0)])
    shares = watch.shares(now=110.0)
    assert shares["learner_share"] == pytest.approx(0.4)
    assert shares["engine_share"] == pytest.approx(0.4)  # what lies before the start is not counted
    assert shares["idle_share"] == pytest.approx(0.3)  # 102-103 and 108-110
