"""Engines are looked at every few seconds; what lies between two looks is a rate, or a death."""

from __future__ import annotations

import pytest

import rlforge.actors.cluster  # noqa: F401  # configures Ray before its first import
from rlforge.actors.engine import EngineReport
from rlforge.actors.watch import EngineWatch
from rlforge.engines.base import EngineStats


def _report(life: str, tokens: int) -> EngineReport:
    stats = EngineStats(
        queued=3,
        running=2,
        requests=1,
        prompt_tokens=9,
        generated_tokens=tokens,
        busy_s=0.5,
        resident=(),
    )
    return EngineReport(life=life, stats=stats, spans=())


def test_token_rates_are_those_since_the_last_look_at_the_same_engine() -> None:
    watch = EngineWatch(100.0)
    assert watch.look(0, _report("a", 50), 110.0) == (
        {"queued": 3, "running": 2, "tok_s": 5.0},
        False,
    )
    assert watch.look(1, _report("b", 200), 110.0)[0]["tok_s"] == 20.0
    assert watch.look(0, _report("a", 80), 115.0)[0]["tok_s"] == pytest.approx(6.0)


def test_an_engine_of_another_life_was_restarted_once_and_counts_from_nothing() -> None:
    watch = EngineWatch(0.0)
    watch.look(0, _report("first", 1000), 10.0)
    seen, restarted = watch.look(0, _report("second", 40), 20.0)
    assert restarted
    assert seen["tok_s"] == 4.0
    assert watch.look(0, _report("second", 40), 30.0) == (seen | {"tok_s": 0.0}, False)
