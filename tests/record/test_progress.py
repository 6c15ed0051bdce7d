"""A run's rates and the time left."""

import pytest

from rlforge.record.progress import Pace


def test_rates_cover_the_last_minute_only():
    pace = Pace(0.0, {"games": 0})
    assert pace.rates(0.0, {"games": 0}) == {"games": 0.0}
    assert pace.rates(50.0, {"games": 500}) == {"games": 10.0}
    for now in range(60, 200, 10):
        pace.rates(float(now), {"games": 500 + (now - 50)})
    assert pace.rates(200.0, {"games": 650})["games"] == pytest.approx(1.0)


def test_time_left_follows_the_updates_and_leaves_the_start_up_out():
    pace = Pace(0.0, {})
    assert pace.seconds_for(5, 3.0) is None
    pace.update(100.0, {})
    assert pace.seconds_for(5, 100.0) is None
    for now in range(110, 210, 10):
        pace.update(float(now), {})
    assert pace.seconds_for(4, 200.0) == pytest.approx(40.0)
    assert pace.seconds_for(4, 205.0) == pytest.approx(35.0)
    assert pace.seconds_for(4, 900.0) == 0.0
    assert pace.seconds_for(0, 200.0) == 0.0


def test_time_left_follows_a_run_that_becomes_slower():
    pace, now = Pace(0.0, {}), 0.0
    for seconds in [1.0] * 200 + [5.0] * 50:
        now += seconds
        pace.update(now, {})
    assert pace.seconds_for(10, now) == pytest.approx(50.0)


def series(each, evaluation, *, beside, start_s=30.0, updates=80):
    """When the updates of a run end, and when the run ends, evaluated every 20 updates.

    each, evaluation: seconds. beside: an evaluation makes the two updates after it slower;
    otherwise the next one waits for it.
    """
    now, ends, owed = start_s, [], 0.0
    for update in range(updates):
        if update % 20 == 0:
            owed = evaluation
        extra = min(owed, evaluation / 2 if beside else owed)
        owed -= extra
        now += each + extra
        ends.append(now)
    return ends, now + evaluation


def check_time_left(ends, updates, end, after):
    """After these updates the time left is right within a factor of 1.5."""
    pace = Pace(0.0, {})
    for number, now in enumerate(ends, start=1):
        pace.update(now, {})
        if number in after:
            left = pace.seconds_for(updates - number, now)
            assert 1 / 1.5 < left / (end - now) < 1.5, (number, left, end - now)


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(("each", "evaluation"), [(3.0, 20.0), (6.0, 20.0), (1.5, 4.0), (60, 300)])
def test_after_the_third_update_the_time_left_is_right_within_a_factor_of_one_and_a_half(
    each, evaluation, beside
):
    ends, end = series(each, evaluation, beside=beside)
    check_time_left(ends, 80, end, range(3, 61))


@pytest.mark.parametrize(
    ("ends", "updates", "end", "since"),
    [
        # SmolLM2 plays Kuhn poker: the second update waits for the evaluation at the start.
        ([33, 45, 52, 58, 64, 71, 76, 81, 87, 94, 100, 105, 111, 118, 123], 60, 406, 3),
        # README's run: the third update is slower, the evaluation at the start ends beside it.
        ([13.2, 14.9, 17.8, 19.4, 21.1, 22.6, 24.2, 25.9, 27.3, 28.8, 30.3, 31.8], 80, 140.4, 3),
        # The games of the start fill two batches at once.
        ([10.0, 10.9, 14.7, 16.9, 19.7, 22.5, 25.4, 28.0, 31.0, 33.5, 36.5, 39.0], 25, 75.0, 4),
    ],
    ids=["evaluation-first", "evaluation-beside", "burst"],
)
def test_the_time_left_of_measured_runs_is_soon_right(ends, updates, end, since):
    check_time_left(ends, updates, end, range(since, updates))
