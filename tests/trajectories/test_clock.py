"""Clocks go on, jump back with a word, and wake who waits."""

from __future__ import annotations

import asyncio
import logging
import math
import time

import pytest

from rlforge.trajectories.clock import SimulatedClock, WallClock


async def test_a_simulated_clock_wakes_those_whose_time_has_come() -> None:
    clock = SimulatedClock(100.0)
    woken: list[int] = []

    async def waiter(moment: int) -> None:
        await clock.wait_until(moment)
        woken.append(moment)

    tasks = [asyncio.create_task(waiter(moment)) for moment in (90, 110, 120, 130)]
    await asyncio.sleep(0)
    clock.advance(20)
    assert clock.now() == 120
    await asyncio.gather(*tasks[:3])
    assert sorted(woken) == [90, 110, 120]
    clock.set(130)
    await tasks[3]


async def test_a_simulated_clock_set_back_is_logged_and_waited_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = SimulatedClock(100.0)
    task = asyncio.create_task(clock.wait_until(110))
    await asyncio.sleep(0)
    clock.set(115)
    clock.set(50)
    await asyncio.sleep(0)
    assert not task.done()
    assert "set back by 65 s" in caplog.text
    clock.set(110)
    await task


async def test_one_that_gave_up_waiting_does_no_harm() -> None:
    clock = SimulatedClock()
    task = asyncio.create_task(clock.wait_until(1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    clock.advance(2)


def test_a_clock_shows_times_only() -> None:
    with pytest.raises(ValueError, match="nan"):
        SimulatedClock().set(math.nan)


def test_the_wall_clock_is_the_machines() -> None:
    assert abs(WallClock().now() - time.time()) < 5


def test_a_wall_clock_set_back_is_logged_once_and_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    readings = iter([1000.0, 999.5, 400.0, 401.0, 2000.0, 1990.0])
    clock = WallClock(lambda: next(readings))
    with caplog.at_level(logging.WARNING):
        assert [clock.now() for _ in range(6)] == [1000.0, 999.5, 400.0, 401.0, 2000.0, 1990.0]
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "the clock was set back by 600 s",
        "the clock was set back by 10 s",
    ]


async def test_who_waits_goes_on_waiting_when_the_wall_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = iter([10.0, 45.0, 5.0, 61.0])
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await WallClock(lambda: next(readings)).wait_until(60.0)
    assert slept == [30.0, 15.0, 30.0]
