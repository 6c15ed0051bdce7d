"""The view of several jobs: how each stands, and when watching ends."""

import io
import threading

import pytest
from rich.console import Console
from tests.harness.sweep_runs import write_job, write_jobs

from rlforge.record.sweeps import write_sweep
from rlforge.show.display import monitor_jobs
from rlforge.system.locks import RunLock


def once(folder, width=80):
    console = Console(file=io.StringIO(), width=width, record=True)
    monitor_jobs(folder, once=True, console=console)
    return console.export_text()


def test_jobs_that_wait_are_shown_beside_those_that_are_done(tmp_path):
    sweep = write_jobs(tmp_path / "sweep_1", (0, 1))
    write_job(sweep, 2, done=False)
    text = once(sweep)
    assert "sweep_1  4 jobs: 2 done, 1 running, 1 not started" in text
    rows = [line.strip("│ ").split() for line in text.splitlines()[2:6]]
    assert [" ".join(row).split(" ", 1)[1].partition("%")[0] for row in rows] == [
        "done 2/2 0 0.001 40",
        "done 2/2, best 0 0.01 60",
        "running 2/2, ETA 0:00 1 0.001 30",
        "not started 1 0.01 – –",
    ]
    assert "seed=1" in once(sweep, 60)


@pytest.mark.parametrize("width", [40, 120])
def test_a_frame_is_as_wide_as_the_terminal(tmp_path, width):
    lines = once(write_jobs(tmp_path / "sweep_1"), width).splitlines()
    assert {len(line) for line in lines} == {width}


def test_the_number_of_jobs_is_open_where_a_sweeper_chooses_them_or_there_is_no_sweep(tmp_path):
    sweep = write_jobs(tmp_path / "sweep_1", (0,))
    write_sweep(sweep, (), None)
    assert "1 job so far: 1 done" in once(sweep)
    for number in (0, 1):
        write_job(tmp_path / "kept", number)
    assert "kept  2 runs: 2 done" in once(tmp_path / "kept")


def test_watching_ends_with_the_sweep_and_tells_each_change_once(tmp_path):
    sweep = write_jobs(tmp_path / "sweep_1", (0,))
    console = Console(file=io.StringIO(), width=80, record=True)
    show = threading.Thread(
        target=monitor_jobs, args=(sweep,), kwargs={"refresh_s": 0.05, "console": console}
    )
    with RunLock(sweep):
        show.start()
        show.join(0.5)
        assert show.is_alive()
        for number in (1, 2, 3):
            write_job(sweep, number)
    show.join(60)
    assert not show.is_alive()
    lines = console.export_text().splitlines()
    assert lines[-1] == "4 jobs: 4 done"
    done = [line for line in lines if ": done 2/2, vs random_legal" in line]
    assert [line[0] for line in done] == ["0", "1", "2", "3"]
    assert len(lines) == len(set(lines))
