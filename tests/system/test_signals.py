"""What a signal does to a command: in a process of its own, at each kind of place."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from rlforge.system import signals
from rlforge.system.loops import wait_for

SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"]


@pytest.fixture(autouse=True)
def by_default():
    """No signal is ignored, in children neither: pytest may run in the background or by nohup."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def script(code: str, *ignored: signal.Signals) -> subprocess.CompletedProcess[str]:
    """Run lines of Python that know ``signals`` and ``send``, with ``ignored`` signals."""
    head = (
        "import contextlib, os, signal, sys, time\n"
        "from rlforge.system import signals\n"
        "def send(number=signal.SIGTERM):\n"
        "    os.kill(os.getpid(), number)\n"
        "    time.sleep(0.01)\n"
    )

    def ignore() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        preexec_fn=ignore,
    )


@pytest.mark.parametrize("name", SIGNALS)
def test_before_there_is_anything_to_look_after_a_signal_is_a_line_and_an_exit_code(name):
    done = script(f"signals.at_once(); send(signal.{name}); print('went on')")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rlforge: interrupted\n")


def test_nohup_is_heeded_and_the_background_of_a_script_is_not():
    alone = script("signals.at_once(); send(signal.SIGHUP); print('on')", signal.SIGHUP)
    assert (alone.returncode, alone.stdout) == (0, "on\n")
    background = script("signals.at_once(); send(signal.SIGINT); print('on')", signal.SIGINT)
    assert (background.returncode, background.stdout) == (130, "")


@pytest.mark.parametrize("name", SIGNALS)
def test_in_an_owned_block_every_signal_unwinds_and_the_handlers_are_then_as_before(name):
    number, before = signal.Signals[name], [signal.getsignal(each) for each in signals.ENDING]
    unwound = []

    def work() -> None:
        try:
            send(number)
        finally:
            unwound.append(signals.came())

    with pytest.raises(KeyboardInterrupt), signals.owned():
        work()
    assert unwound == [True]
    assert [signal.getsignal(each) for each in signals.ENDING] == before
    assert not signals.came()


def test_a_signal_that_is_sent_twice_is_one(monkeypatch):
    heard = []
    with signals.owned(), signals.heard(lambda: heard.append(1)):
        send(signal.SIGINT)
        send(signal.SIGTERM)
        assert heard == [1]
        monkeypatch.setattr(signals, "ONE_SIGNAL_S", 0.0)
        send()
    assert heard == [1, 1]


def test_the_innermost_block_decides():
    with signals.owned():
        with signals.heard(lambda: pytest.fail("not this one")):
            inner = []
            with signals.heard(lambda: inner.append(1)), signals.owned():
                send()
        assert inner == [1]


def test_a_held_signal_is_heeded_once_the_block_is_over():
    steps = []

    @signals.held()
    def work() -> None:
        send()
        steps.append("whole")

    with pytest.raises(KeyboardInterrupt), signals.owned():
        work()
    assert steps == ["whole"]


def test_a_held_signal_hides_no_failure_and_adds_nothing_to_one_that_was_heard(monkeypatch):
    with signals.owned():
        try:
            raise ValueError("first")
        except ValueError:
            with signals.held():
                send()
    monkeypatch.setattr(signals, "ONE_SIGNAL_S", 0.0)
    with signals.owned():
        with signals.heard(lambda: None):
            send()
        with signals.held():
            send()


def test_an_import_is_finished_first(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, signal, time\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "for _ in range(10):\n"
        "    time.sleep(0.02)\n"
        "print('whole')\n"
    )
    code = f"""
        sys.path.insert(0, {str(tmp_path)!r})
        with signals.owned():
            try:
                import slow
                time.sleep(10)
            except KeyboardInterrupt:
                print("interrupted", "slow" in sys.modules)
    """
    done = script(code)
    assert (done.stdout, done.returncode) == ("whole\ninterrupted True\n", 0), done.stderr


def test_an_interrupt_that_was_dropped_is_known():
    with signals.owned():
        signals.heed()
        with contextlib.suppress(KeyboardInterrupt):
            send()
        assert signals.dropped()
        with pytest.raises(KeyboardInterrupt):
            signals.heed()


def test_the_signal_that_is_not_configured_does_what_it_did():
    with signals.owned(), signals.warned_by("USR1"):
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGUSR1)


def test_other_threads_change_nothing():
    heard = []

    def elsewhere() -> None:
        with signals.owned(), signals.heard(lambda: pytest.fail("not in this thread")):
            send()

    with signals.owned(), signals.heard(lambda: heard.append(1)):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        for _ in range(100):  # Python runs handlers between two steps of the main thread
            pass
    assert heard == [1]


def test_processes_of_a_launcher_hold_signals_back_until_they_let_them_in():
    """They import and compose first, where Ctrl-C would end them with a stack trace."""
    code = """
        import sys, time
        print("begun", flush=True)
        sys.stdin.readline()
        from rlforge.system import signals
        with signals.owned():
            try:
                with signals.let_in():
                    time.sleep(60)
            except KeyboardInterrupt:
                print("heard")
    """
    heard = []
    with signals.owned(), signals.heard(lambda: heard.append(True)), signals.kept_from_children():
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        deadline = time.monotonic() + 10
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
    assert heard == [True]
    assert process.communicate("go on\n", timeout=60) == ("heard\n", "")
    assert process.returncode == 0


def test_a_forked_process_ends_by_signals_as_any_other():
    code = """
        signals.at_once()
        with signals.owned():
            child = os.fork()
            if child == 0:
                time.sleep(20)
            time.sleep(0.2)
            os.kill(child, signal.SIGTERM)
            print(os.waitpid(child, 0)[1])
    """
    # The handler of the first lines ends it, too.
    done = script(code)
    assert done.stdout == f"{130 << 8}\n", done.stderr


def test_work_under_asyncio_is_cancelled_and_cleans_up():
    cleaned = []

    async def work() -> None:
        try:
            send(signal.SIGHUP)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt):
        wait_for(work())
    assert cleaned == [True]
