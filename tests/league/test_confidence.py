"""Confidence sequences hold at all times at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlforge.league.confidence import confidence_sequence


@pytest.mark.parametrize("mean", [0.02, 0.5, 0.8])
def test_at_most_five_percent_of_sequences_ever_miss_the_mean(mean):
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(150):
        bounds = confidence_sequence((rng.random((60, 2)) < mean).mean(axis=1))
        missed += bool(((bounds[:, 0] > mean) | (bounds[:, 1] < mean)).any())
    assert missed <= 0.05 * 150


@settings(max_examples=40)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), max_size=30))
def test_intervals_only_shrink_and_mirrored_scores_have_mirrored_intervals(scores):
    bounds = confidence_sequence(scores)
    mirrored = confidence_sequence([1 - score for score in scores])
    assert bounds.shape == (len(scores) + 1, 2)
    assert (np.diff(bounds[:, 0]) >= 0).all()
    assert (np.diff(bounds[:, 1]) <= 0).all()
    assert (bounds[:, 0] < bounds[:, 1]).all()
    np.testing.assert_allclose(mirrored, 1 - bounds[:, ::-1], atol=0.0021)


def test_a_point_is_refused_when_a_gambler_who_bets_against_it_has_twenty_times_the_stake():
    scores = [1.0, 0.75, 1.0, 1.0, 0.5, 1.0, 1.0, 0.75, 1.0, 1.0, 1.0, 1.0]
    low = confidence_sequence(scores)[-1, 0]

    def largest_capital(point: float) -> float:
        """Of a gambler who starts with one half and bets that the mean is above ``point``."""
        capital, most, total, squares = 0.5, 0.0, 0.5, 0.25
        for count, score in enumerate(scores, start=1):
            variance = squares / count
            bet = min(np.sqrt(2 * np.log(40) / (variance * count * np.log(count + 1))), 0.5 / point)
            capital *= 1 + bet * (score - point)
            most = max(most, capital)
            total += score
            squares += (score - total / (count + 1)) ** 2
        return most

    assert largest_capital(low - 0.003) > 20 > largest_capital(low + 0.003)
