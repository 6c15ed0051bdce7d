"""What checks of finished runs say on their way."""

from __future__ import annotations

import time

from rlforge.record.recorded import paced


def test_a_long_check_says_every_few_seconds_how_far_it_is(monkeypatch):
    clock, said = iter(range(0, 100, 2)), []
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    assert [*paced("abcdefghij", 1_000, "answers are computed again", said.append)] == [
        *"abcdefghij"
    ]
    assert said[0].endswith("of 1,000 answers are computed again")
    assert 1 < len(said) < 5


def test_a_short_check_says_nothing():
    said = []
    assert [*paced(range(3), 3, "updates are made again", said.append)] == [0, 1, 2]
    assert said == []
