"""Shares of wall time, compared with the plain sum over all spans."""

import pickle
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.system.utilisation import LATEST_REPORT_S, Span, Utilisation


def union_length(spans: Iterable[Span]) -> float:
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


_SECONDS = st.floats(0, LATEST_REPORT_S / 2)
"""Most seconds of an engine's span, and most seconds from its end to its report."""


@given(
    events=st.lists(
        st.tuples(st.sampled_from(["engine", "learner"]), _SECONDS, _SECONDS, _SECONDS), max_size=40
    ),
    ahead=st.floats(0, 5),
)
def test_shares_count_all_spans_also_after_settling(events, ahead):
    """ahead: seconds by which the clocks of engines are ahead of this one."""
    started = now = learned = 1000.0
    watch = Utilisation(started)
    spans: dict[str, list[Span]] = {"engine": [], "learner": []}
    for who, passed, late, length in events:
        now += passed
        if who == "engine":
            span = (now - late - length + ahead, now - late + ahead)
            watch.engines_worked([span])
        else:
            learned = (span := (learned, min(now, learned + 10 * length)))[1]
            watch.learner_worked(span)
        spans[who].append(span)
        clipped = {
            name: [(max(a, started), min(b, now)) for a, b in all_ if b > started and a < now]
            for name, all_ in spans.items()
        }
        wall, shares = max(now - started, 1e-9), watch.shares(now)
        if wall > 1e-3:
            assert shares == {
                "engine_share": pytest.approx(union_length(clipped["engine"]) / wall, abs=1e-9),
                "learner_share": pytest.approx(union_length(clipped["learner"]) / wall, abs=1e-9),
                "idle_share": pytest.approx(
                    1 - union_length(clipped["engine"] + clipped["learner"]) / wall, abs=1e-9
                ),
            }


def test_kept_spans_do_not_grow_with_the_run():
    watch, sizes = Utilisation(started=0.0), []
    for hour in range(8):
        for second in range(3600 * hour, 3600 * (hour + 1)):
            watch.engines_worked([(second + 0.2, second + 0.4), (second + 0.6, second + 0.9)])
            if second % 10 == 9:
                watch.learner_worked((second - 4.0, second + 0.3))
                shares = watch.shares(second + 1.0)
        sizes.append(len(pickle.dumps(watch)))
    assert sizes[-1] < 1.1 * sizes[0]
    # In every 10 s the learner works from 5.0 to 9.3, and engines half of each second.
    assert shares == {
        "engine_share": pytest.approx(0.5),
        "learner_share": pytest.approx(0.43),
        "idle_share": pytest.approx(1 - 0.43 - (5 * 0.5 + 0.1 + 0.3) / 10),
    }
