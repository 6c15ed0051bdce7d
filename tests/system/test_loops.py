"""Waiting for coroutines: in scripts, in running loops, and when the user interrupts."""

import asyncio
import contextvars
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rlforge.system import loops
from rlforge.system.loops import in_thread, wait_for


@pytest.fixture(autouse=True)
def handler_of_a_notebook() -> Iterator[None]:
    """Cells run with Python's own handler of Ctrl-C; each test must leave it there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    after = signal.signal(signal.SIGINT, before)
    assert after is signal.default_int_handler


def send(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def fail() -> None:
    raise ValueError("broken")


async def sent_when_running(number: int = signal.SIGINT) -> None:
    """Work that interrupts the thread that waits for it, and goes on for long."""
    send(number)
    await asyncio.sleep(60)


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_script_and_a_running_loop_get_result_and_error(in_loop):
    def both():
        assert wait_for(double(21)) == 42
        with pytest.raises(ValueError, match="broken"):
            wait_for(fail())

    within_asyncio_run(both) if in_loop else both()


async def test_work_in_a_running_loop_has_a_thread_of_its_own_and_the_callers_context():
    cell = contextvars.ContextVar("cell", default="none")
    cell.set("first")

    async def where() -> tuple[threading.Thread, str]:
        return threading.current_thread(), cell.get()

    thread, seen = wait_for(where())
    assert thread is not threading.current_thread()
    assert not thread.is_alive()
    assert seen == "first"


async def test_ctrl_c_before_the_work_begins_cancels_it(monkeypatch):
    begun = []

    async def work() -> None:
        begun.append(True)
        await asyncio.sleep(60)
        begun.append(True)

    class Slow(threading.Thread):
        def start(self) -> None:
            super().start()
            send()

    monkeypatch.setattr(threading, "Thread", Slow)
    with pytest.raises(KeyboardInterrupt):
        wait_for(work())
    assert begun in ([], [True])


async def test_work_that_accepts_the_interrupt_ends_with_its_result():
    stop = threading.Event()

    async def work() -> str:
        send()
        await asyncio.to_thread(stop.wait, 30)
        return "saved"

    def interrupt() -> bool:
        stop.set()
        return True

    assert wait_for(work(), interrupt) == "saved"


async def test_work_that_cannot_be_interrupted_is_cancelled_and_cleans_up_once():
    cleaned = []

    async def work() -> None:
        try:
            await sent_when_running()
        finally:
            send()
            await asyncio.sleep(0.2)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt):
        wait_for(work())
    assert cleaned == [True]


async def test_a_signal_that_does_not_wake_the_waiting_thread_ends_the_wait():
    """One that arrives just before the thread blocks on a lock, or in another thread, does not."""

    async def work() -> None:
        # sends to this thread alone: the other one sees it when it looks
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        await asyncio.sleep(60)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait_for(work())
    assert time.monotonic() - started < 20


async def test_work_that_cannot_be_cancelled_is_left_after_a_while(monkeypatch):
    monkeypatch.setattr(loops, "CANCEL_PATIENCE_S", 0.2)
    release = threading.Event()

    async def work() -> None:
        send()
        release.wait(30)  # blocks the loop

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait_for(work())
    assert time.monotonic() - started < 20
    release.set()


def within_asyncio_run(run: Callable[[], object]) -> object:
    async def main() -> object:
        return run()

    return asyncio.run(main())


def test_the_first_ctrl_c_interrupts_within_asyncio_run():
    """The handler of ``asyncio.run`` would cancel the task that waits, and the wait would go on."""
    interrupted: list[bool] = []

    def interrupt() -> bool:
        interrupted.append(True)
        return False

    with pytest.raises(KeyboardInterrupt):
        within_asyncio_run(lambda: wait_for(sent_when_running(), interrupt))
    assert interrupted == [True]


async def test_sigterm_counts_as_ctrl_c_where_it_has_the_same_handler():
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_for(sent_when_running(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_ctrl_c_that_the_process_ignores_is_ignored():
    async def work() -> str:
        send()
        return "done"

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert wait_for(work()) == "done"
    signal.signal(signal.SIGINT, signal.default_int_handler)


async def test_a_running_loop_in_another_thread_than_the_main_one():
    def elsewhere() -> object:
        return within_asyncio_run(lambda: wait_for(double(4)))

    assert await asyncio.to_thread(elsewhere) == 8


def test_work_in_a_thread_of_its_own_gives_its_result_or_its_error():
    before = threading.active_count()
    assert in_thread(lambda: 6 * 7) == 42
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 // 0)
    assert threading.active_count() == before
