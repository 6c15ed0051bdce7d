"""Runs where an event loop is running, as in a notebook: interrupted, failed, and repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel
from tests.harness.live_run import actor_pids, change_config, rows, train_arguments, wait_for

pytestmark = pytest.mark.release

PATIENCE_S = 240

SEVERAL_RUNS = """
import asyncio, logging, os, psutil, rlforge, signal, sys

async def main():
    # asyncio's own handler of Ctrl-C is set now.
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for name in ("early", "dead", "twice", "whole"):
        updates = 2 if name == "whole" else 400
        try:
            end = rlforge.train(*sys.argv[1:], learner={"total_updates": updates}).summary["status"]
        except (rlforge.RunError, KeyboardInterrupt) as error:
            end = type(error).__name__
        log = logging.getLogger("rlforge")
        after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        clean = after == handlers and not log.handlers and log.propagate
        left = psutil.Process().children(recursive=True)
        os.rename("run", name)
        print(name, end, clean, left, flush=True)

asyncio.run(main())
"""


@pytest.mark.timeout(900)  # four runs; two in one process are in tests/test_api.py
def test_a_process_trains_again_after_interrupted_and_failed_runs(small_model: Path) -> None:
    command = [sys.executable, "-c", SEVERAL_RUNS, *train_arguments(small_model)[1:]]
    pipe, environment = subprocess.PIPE, os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)

    def ended() -> str:
        """The line about a run."""
        assert process.stdout is not None
        return process.stdout.readline()

    # Before the actors are up, Ctrl-C ends the run at once.
    wait_for(lambda: bool(actor_pids("state") or actor_pids("tracker")), process)
    process.send_signal(signal.SIGINT)
    assert ended() == "early KeyboardInterrupt True []\n"

    # A run whose learner dies.
    wait_for(lambda: len(rows("metrics.jsonl")) >= 1, process)
    os.kill(actor_pids("learner")[-1], signal.SIGKILL)
    assert ended() == "dead RunError True []\n"

    # The update in hand cannot end: only the second Ctrl-C ends the run.
    wait_for(lambda: len(rows("metrics.jsonl")) >= 1, process)
    os.kill(actor_pids("learner")[-1], signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(2)
    assert Path("run").is_dir()
    process.send_signal(signal.SIGINT)
    assert ended() == "twice KeyboardInterrupt True []\n"

    assert ended() == "whole done True []\n"
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, stderr
    for name in ("dead", "twice", "whole"):
        assert (Path(name) / "logs/run.log").read_text().count("started as process") == 1


class Notebook:
    """A kernel, and the messages that its cells send."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(startup_timeout=PATIENCE_S)

    def start(self, code: str) -> str:
        return str(self.client.execute(code))

    def finish(self, cell: str) -> list[dict[str, Any]]:
        """The messages of a cell, when it has ended."""
        messages = []
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") != cell:
                continue
            messages.append(message)
            if message["content"].get("execution_state") == "idle":
                return messages

    def run(self, code: str) -> str:
        """The value that a cell shows."""
        found = [
            message["content"]
            for message in self.finish(self.start(code))
            if message["msg_type"] in ("execute_result", "error")
        ]
        assert [content.get("evalue") for content in found] == [None], found
        return str(found[0]["data"]["text/plain"])

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_stop_in_a_notebook_saves_the_run_and_resume_goes_on(small_model: Path) -> None:
    arguments = [*train_arguments(small_model)[1:], "tracker.progress=auto"]
    notebook = Notebook()
    try:
        assert notebook.run("import rlforge\n1") == "1"
        cell = notebook.start(
            f"run = rlforge.train(*{arguments!r}, **{{'learner.total_updates': 400}})"
        )
        until(lambda: len(rows("metrics.jsonl")) >= 1)
        notebook.manager.interrupt_kernel()
        sent = notebook.finish(cell)
        assert not [message["content"] for message in sent if message["msg_type"] == "error"]
        kinds = [message["msg_type"] for message in sent]
        assert kinds.count("display_data") == 1  # one output, which is replaced
        assert kinds.count("update_display_data") >= 2
        newest = [m for m in sent if m["msg_type"] == "update_display_data"][-1]["content"]["data"]
        assert "stopping: the work in hand is finished and saved" in newest["text/plain"]
        assert notebook.run("run.summary['status']") == "'interrupted'"
        stopped_at = len(rows("metrics.jsonl"))
        assert json.loads(Path("run/summary.json").read_text())["updates"] == stopped_at

        change_config("total_updates", 400, stopped_at + 2)
        assert notebook.run("rlforge.resume(run.path).summary['status']") == "'done'"
        assert [row["step"] for row in rows("metrics.jsonl")] == list(range(1, stopped_at + 3))
        children = "import psutil\nlen(psutil.Process().children(recursive=True))"
        assert notebook.run(children) == "0"
    finally:
        notebook.close()
