"""A stopped clock pauses every limit; each keeps the time it had left."""

import asyncio

import pytest

from rlforge.system.timeouts import Clock


async def test_a_limit_ends_its_block_in_time():
    with pytest.raises(TimeoutError):
        async with Clock().timeout(0.01) as limit:
            await asyncio.sleep(3600)
    assert limit.expired()


@pytest.mark.parametrize("stopped", ["before", "inside"])
async def test_no_time_passes_while_the_clock_is_stopped(stopped):
    clock = Clock()
    if stopped == "before":
        clock.stop()

    async def work():
        async with clock.timeout(0.05) as limit:
            clock.stop()
            clock.stop()
            await asyncio.sleep(0.2)
            assert not limit.expired()
            clock.go_on()
            assert not limit.expired()
            await asyncio.sleep(3600)

    with pytest.raises(TimeoutError):
        await work()


async def test_a_resumed_limit_has_only_the_time_it_had_left():
    clock = Clock()
    loop = asyncio.get_running_loop()
    async with clock.timeout(60) as limit:
        await asyncio.sleep(0.05)
        clock.stop()
        assert limit.when() is None
        clock.go_on()
        assert limit.when() < loop.time() + 60 - 0.04


async def test_an_expired_limit_stays_expired():
    clock = Clock()
    expired = asyncio.Event()

    async def late() -> None:
        try:
            async with clock.timeout(0.01):
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    expired.set()
                    await asyncio.sleep(0.05)  # the block takes its time to end
                    raise
        except TimeoutError:
            return

    task = asyncio.create_task(late())
    await expired.wait()
    clock.stop()
    clock.go_on()
    await task


async def test_other_errors_and_cancellation_pass_through():
    clock = Clock()
    with pytest.raises(KeyError):
        async with clock.timeout(60):
            raise KeyError("mine")
    with pytest.raises(asyncio.CancelledError):
        async with clock.timeout(60):
            raise asyncio.CancelledError
    clock.stop()  # nothing is left to hold up


async def test_no_limit_stays_none_when_the_clock_goes_on():
    clock = Clock()
    async with clock.timeout(None) as limit:
        clock.stop()
        clock.go_on()
        assert limit.when() is None
