"""The wall clock may jump."""

import asyncio
import logging
import time

from rlforge.continuous.loop.simulation import WallClock


def test_the_wall_clock_shows_the_machines_time_and_a_step_back_is_logged_once(caplog):
    assert abs(WallClock().now() - time.time()) < 5
    readings = iter([1000.0, 999.5, 400.0, 401.0, 2000.0, 1990.0])
    clock = WallClock(lambda: next(readings))
    with caplog.at_level(logging.WARNING):
        assert [clock.now() for _ in range(6)] == [1000.0, 999.5, 400.0, 401.0, 2000.0, 1990.0]
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "the clock was set back by 600 s",
        "the clock was set back by 10 s",
    ]


async def test_waiting_continues_when_the_wall_clock_is_set_back(monkeypatch):
    readings = iter([10.0, 45.0, 5.0, 61.0])
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await WallClock(lambda: next(readings)).wait_until(60.0)
    assert slept == [30.0, 15.0, 30.0]
