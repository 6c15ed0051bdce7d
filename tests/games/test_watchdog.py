import subprocess
import sys
import time
import timeit
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlforge.games.watchdog import Watchdog


def loop_forever():
    while True:
        pass


def test_results_and_errors_in_time_are_handed_back_and_nothing_strikes_later():
    with pytest.raises(KeyError, match="gone"):
        Watchdog().run(lambda: {}["gone"], limit_s=1)
    watchdog = Watchdog()
    assert watchdog.run(lambda: 7, limit_s=0.1) == 7
    end = time.monotonic() + 0.35
    while time.monotonic() < end:
        pass


def test_a_python_loop_is_broken_in_the_main_thread():
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"did not return within 0\.1 s"):
        Watchdog().run(loop_forever, limit_s=0.1)
    assert time.monotonic() - start < 5


def test_loops_are_broken_in_other_threads_while_a_third_goes_on():
    watchdog = Watchdog()
    with ThreadPoolExecutor(3) as pool:
        looping = [pool.submit(watchdog.run, loop_forever, limit_s=0.1) for _ in range(3)]
        assert watchdog.run(lambda: sum(range(1000)), limit_s=5) == 499500
        assert [type(each.exception(timeout=20)) for each in looping] == [TimeoutError] * 3


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

    with ThreadPoolExecutor(1) as pool:
        assert set(pool.submit(many).result(timeout=20)) == {"done", "late"}


def test_watching_is_cheap():
    watchdog = Watchdog()
    assert min(timeit.repeat(lambda: watchdog.run(int, limit_s=10), number=1000)) < 50e-3


def test_traced_code_still_runs_after_a_call_was_broken():
    """CPython 3.11 hangs in traced functions while it believes an exception is under way."""
    code = """
import sys
from rlforge.games.watchdog import Watchdog
def loop():
    while True: pass
try: Watchdog().run(loop, limit_s=0.1)
except TimeoutError: print("broken")
sys.settrace(lambda *_: None)
def traced(): return "traced"
print(traced())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["broken", "traced"]
