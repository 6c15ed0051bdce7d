import subprocess
import sys
import threading
import time

import pytest

from rlforge.games.watchdog import Watchdog


def loop_forever():
    while True:
        pass


def in_thread(function):
    outcome = []

    def run():
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=20)
    assert not thread.is_alive()
    return outcome[0]


def test_a_result_in_time_is_handed_back_and_nothing_strikes_later():
    watchdog = Watchdog()
    assert watchdog.run(lambda: 7, limit_s=0.1) == 7
    end = time.monotonic() + 0.35
    while time.monotonic() < end:
        pass


def test_an_error_of_the_watched_code_passes_through():
    with pytest.raises(KeyError, match="gone"):
        Watchdog().run(lambda: {}["gone"], limit_s=1)


def test_a_python_loop_is_broken_in_the_main_thread():
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"did not return within 0\.1 s"):
        Watchdog().run(loop_forever, limit_s=0.1)
    assert time.monotonic() - start < 5


def test_loops_are_broken_in_other_threads_while_a_third_goes_on():
    watchdog = Watchdog()
    outcomes = []
    threads = [
        threading.Thread(
            target=lambda: outcomes.append(
                in_thread(lambda: watchdog.run(loop_forever, limit_s=0.1))
            )
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    assert watchdog.run(lambda: sum(range(1000)), limit_s=5) == 499500
    for thread in threads:
        thread.join(timeout=20)
    assert [type(outcome) for outcome in outcomes] == [TimeoutError] * 3


def test_code_that_catches_every_exception_is_broken_too():
    def stubborn():
        while True:
            try:
                loop_forever()
            except Exception:
                continue

    with pytest.raises(TimeoutError):
        Watchdog().run(stubborn, limit_s=0.1)


def test_code_that_swallows_the_first_strike_gets_another():
    strikes = []

    def swallows_once():
        try:
            loop_forever()
        except BaseException as error:
            strikes.append(error)
        loop_forever()

    with pytest.raises(TimeoutError):
        Watchdog().run(swallows_once, limit_s=0.1)
    assert len(strikes) == 1


def test_a_call_that_ends_around_its_limit_gives_its_result_or_times_out_and_leaves_no_trace():
    watchdog = Watchdog()

    def attempt(seconds):
        def busy():
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass
            return "done"

        try:
            return watchdog.run(busy, limit_s=0.05)
        except TimeoutError:
            return "late"

    def many():
        return [attempt(0.05 + 0.01 * (i % 12)) for i in range(24)]

    outcome = in_thread(many)
    assert isinstance(outcome, list), outcome
    assert set(outcome) == {"done", "late"}


def test_watching_is_cheap():
    watchdog = Watchdog()
    best = min(
        (
            lambda start: (
                [watchdog.run(int, limit_s=10) for _ in range(1000)] and time.perf_counter() - start
            )
        )(time.perf_counter())
        for _ in range(5)
    )
    assert best / 1000 < 50e-6


def test_traced_code_still_runs_after_a_call_was_broken():
    """CPython 3.11 hangs in traced functions while it believes an exception is under way."""
    code = (
        "import sys\n"
        "from rlforge.games.watchdog import Watchdog\n"
        "def loop():\n"
        "    while True: pass\n"
        "try: Watchdog().run(loop, limit_s=0.1)\n"
        "except TimeoutError: print('broken')\n"
        "sys.settrace(lambda *_: None)\n"
        "def traced(): return 'traced'\n"
        "print(traced())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["broken", "traced"]
