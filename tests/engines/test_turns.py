"""Threads take turns in the order in which they ask."""

import threading
import time

from rlforge.engines.turns import Turns


def test_a_thread_that_asks_again_waits_behind_those_that_asked_before():
    turns, order = Turns(), []
    asked = threading.Event()

    def other():
        asked.set()
        with turns:
            order.append("other")

    with turns:
        thread = threading.Thread(target=other)
        thread.start()
        asked.wait()
        time.sleep(0.05)  # it waits by now
        order.append("first")
    with turns:
        order.append("first again")
    thread.join()
    assert order == ["first", "other", "first again"]


def test_one_thread_at_a_time_is_in_the_block():
    turns, inside, most = Turns(), 0, 0

    def work():
        nonlocal inside, most
        for _ in range(200):
            with turns:
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
