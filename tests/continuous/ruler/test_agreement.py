import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.continuous.ruler.agreement import agreement, pooled


@pytest.mark.parametrize(
    ("scores", "truths", "tau", "accuracy", "pairs"),
    [
        ([0.1, 0.5, 0.9], [-1.0, 0.0, 3.0], 1.0, 1.0, 3),
        ([0.9, 0.5, 0.1], [-1.0, 0.0, 3.0], -1.0, 0.0, 3),
        # Equal scores count half and have no tau, equal truths count not at all.
        ([0.2, 0.2, 0.9], [0.0, 1.0, 1.0], 0.5, 0.75, 2),
        ([0.5, 0.5], [0.0, 1.0], None, 0.5, 1),
        ([], [], None, None, 0),
        ([0.3], [1.0], None, None, 0),
        ([0.3, 0.4, 0.5], [1.0] * 3, None, None, 0),
        # What has no score or no truth is left out.
        ([0.1, None, 0.9, 0.5], [0.0, 5.0, 1.0, None], 1.0, 1.0, 1),
    ],
)
def test_agreement_by_hand(scores, truths, tau, accuracy, pairs):
    found = agreement(scores, truths)
    assert (found.pairwise_accuracy, found.pairs) == (accuracy, pairs)
    assert found.kendall_tau == pytest.approx(tau)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_agreement_equals_a_count_over_all_pairs(rows):
    found = agreement([x / 4 for x, _ in rows], [float(y) for _, y in rows])
    gaps = [
        (rows[i][0] - rows[j][0], rows[i][1] - rows[j][1])
        for i in range(len(rows))
        for j in range(i)
    ]
    products = [math.copysign(1, x * y) if x * y else 0 for x, y in gaps]
    by_truth = [p for p, (_, y) in zip(products, gaps, strict=True) if y]
    if not by_truth:
        assert found.pairwise_accuracy is None
        return
    assert found.pairwise_accuracy == pytest.approx(
        sum(p / 2 + 0.5 for p in by_truth) / len(by_truth)
    )


def test_windows_count_by_their_pairs():
    one, other = agreement([0.1, 0.9], [0.0, 1.0]), agreement([0.9, 0.5, 0.1], [1.0, 0.0, 2.0])
    assert (other.pairwise_accuracy, other.pairs) == (1 / 3, 3)
    both = pooled([one, other, agreement([], [])])
    assert both.pairs == 4
    assert both.pairwise_accuracy == pytest.approx((1 + 3 / 3) / 4)
    assert both.kendall_tau == pytest.approx((1 - 3 / 3) / 4)
    assert pooled([]).metrics("") == {}
