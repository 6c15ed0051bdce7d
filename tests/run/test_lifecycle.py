"""How runs end: what the run directory says, what the user reads, and in which order."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from rich.console import Console
from tests.harness.live_run import train_arguments

from rlforge.config.compose import compose
from rlforge.config.schema import TrackerConfig
from rlforge.errors import RunError
from rlforge.preflight.plan import make_plan
from rlforge.record.files import open_run, read_jsonl
from rlforge.record.status import read_progress, read_summary
from rlforge.record.tracker import Tracker
from rlforge.run import lifecycle
from rlforge.run.lifecycle import prepared
from rlforge.samples import UpdateResult
from rlforge.show.display import monitor
from rlforge.system.checkpoint import write_checkpoint
from rlforge.system.hardware import detect

RUN = Path("run")


def a_run(model: Path, folder: Path = RUN, *, resume: bool = False) -> AbstractContextManager[Path]:
    """The block in which a run would start its actors."""
    _, *arguments = train_arguments(model)
    config = compose(arguments).config
    plan = make_plan(config, detect(), RUN)
    return prepared(config, plan, folder.absolute(), ["train", *arguments], resume=resume)


def ended(summary: str = "summary.json") -> tuple[str | None, str | None]:
    content = json.loads((RUN / summary).read_text())
    return content["status"], content.get("error")


def stopped(
    model: Path,
    error: BaseException,
    before: Callable[[Path], object] = lambda folder: None,
    *,
    resume: bool = False,
) -> BaseException:
    """What the caller gets from a run that ``error`` ends."""
    try:
        with a_run(model, resume=resume):
            before(RUN.absolute())
            raise error
    except type(error) as caught:
        return caught


def tracked(folder: Path) -> Tracker:
    """A tracker that has seen two of three updates."""
    tracker = Tracker(folder, TrackerConfig(), "demo", 3)
    for step in (1, 2):
        tracker.log_learner(UpdateResult(version=step, samples=8, tokens=8, metrics={}), {})
    return tracker


def test_a_run_whose_actors_do_not_start_has_failed_for_every_reader(
    small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_running(folder: Path) -> None:
        assert read_summary(open_run(RUN))["status"] == "running"
        assert read_progress(open_run(RUN))["status"] == "running"

    stopped(small_model, RunError("an actor could not be started: out of memory"), is_running)
    assert ended() == ("failed", "an actor could not be started: out of memory")
    assert ended("progress.json") == ("failed", None)
    assert "The run failed: an actor could not be started" in (RUN / "report.html").read_text()
    monitor(RUN, refresh_s=60.0)  # would time out if it waited
    assert "failed: an actor could not be started: out of memory" in capsys.readouterr().out


def test_a_new_run_directory_that_cannot_be_filled_is_removed_with_its_parents(
    small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(lifecycle, "atomic_write", full)
    before = {*Path().rglob("*")}
    for folder in (RUN, Path("new/below/run")):
        full_disk = pytest.raises(OSError, match=r"No space left on device: .*config\.yaml")
        with full_disk, a_run(small_model, folder):
            pass
        assert {*Path().rglob("*")} == before
    RUN.mkdir()
    with pytest.raises(OSError, match="No space left"), a_run(small_model):
        pass
    assert RUN.is_dir()  # it was there before


def test_an_end_that_the_tracker_has_written_stays(small_model: Path) -> None:
    ending = {"status": "failed", "error": "the learner died"}
    stopped(small_model, KeyboardInterrupt(), lambda folder: tracked(folder).close(ending))
    assert ended() == ("failed", "the learner died")


def test_the_second_ctrl_c_says_what_is_saved_and_how_to_go_on(small_model: Path) -> None:
    again = f"rlforge train --resume {RUN.absolute()}"
    assert str(stopped(small_model, KeyboardInterrupt(), tracked)) == (
        f"before a first state was saved; start it again with: {again}"
    )
    assert ended() == ("interrupted", None)
    assert read_summary(open_run(RUN))["updates"] == 2

    def state(folder: Path) -> None:
        (folder / "state").mkdir()
        (folder / "state" / "run.json").write_text("{}")

    write_checkpoint(RUN / "checkpoints", "step-2", state, {"version": 2})
    write_checkpoint(RUN / "checkpoints", "step-3", lambda folder: None, {"version": 3})
    assert str(stopped(small_model, KeyboardInterrupt(), resume=True)) == (
        f"with step-2 saved; later work is lost; go on with: {again}"
    )


def test_a_report_that_cannot_be_written_is_one_line_beside_the_first_error(
    small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = RunError("no space on disk for checkpoint step-2")
    assert stopped(small_model, error, lambda folder: (RUN / "report.html").mkdir()) is error
    (line,) = capsys.readouterr().err.splitlines()
    assert "report is not written" in line
    assert line.endswith(f"again with: rlforge report {RUN.absolute()}")
    assert ended() == ("failed", "no space on disk for checkpoint step-2")


def test_a_finished_run_is_no_failure_because_its_report_cannot_be_written(
    small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_run(small_model):
        (RUN / "report.html").mkdir()
    assert "report is not written" in capsys.readouterr().err


def test_a_resumed_run_names_damaged_lines_and_keeps_the_file_as_it_was(
    small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_run(small_model):
        damaged = b'{"step": 1}\n\x00\xff\n{"step": 3}\n'
        (RUN / "metrics.jsonl").write_bytes(damaged)
    capsys.readouterr()
    with a_run(small_model, resume=True):
        assert read_jsonl(RUN / "metrics.jsonl") == [{"step": 1}, {"step": 3}]
    assert (RUN / "metrics.jsonl.damaged").read_bytes() == damaged
    assert capsys.readouterr().err.splitlines() == [
        f"{RUN.absolute()}/metrics.jsonl:2 is damaged (not UTF-8) and left out; the file as it was "
        "is metrics.jsonl.damaged"
    ]


IN_ASCII = r"""
import locale, logging, sys
from rlforge.config.compose import compose
from rlforge.system.hardware import detect
from rlforge.record.files import open_log
from rlforge.preflight.plan import make_plan
from rlforge.run.lifecycle import prepared
from pathlib import Path

assert locale.getencoding() != "UTF-8"
arguments = [*sys.argv[1:], "name='l\xe4uft'"]
config = compose(arguments).config
plan = make_plan(config, detect())
with prepared(config, plan, Path("run").absolute(), arguments, resume=False):
    with open_log("run", "run"):
        logging.getLogger("rlforge").info("l\xe4uft")
"""


@pytest.mark.slow
def test_files_of_a_run_are_utf8_whatever_the_locale(small_model: Path) -> None:
    arguments = train_arguments(small_model)[1:]
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    subprocess.run(
        [sys.executable, "-c", IN_ASCII, *arguments], check=True, env=os.environ | ascii_only
    )
    for name in ("config.yaml", "command.txt", "logs/run.log", "report.html"):
        assert "läuft" in (RUN / name).read_text(encoding="utf-8"), name


def test_monitor_says_why_a_killed_run_has_ended(small_model: Path) -> None:
    script = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from rlforge.system.locks import RunLock\n"
        "from rlforge.record.files import create_run\n"
        "from rlforge.record.status import write_start\n"
        "run = create_run('run')\n"
        "RunLock(run.root).acquire()\n"
        "write_start(run, 'demo', 80)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    assert ended() == ("running", None)
    assert read_summary(open_run(RUN))["status"] == "killed"
    out = Console(width=100, record=True)
    monitor(RUN, refresh_s=60.0, console=out)
    assert "killed at update 0/80" in out.export_text()
    with a_run(small_model, resume=True):
        assert read_summary(open_run(RUN))["status"] == "running"
