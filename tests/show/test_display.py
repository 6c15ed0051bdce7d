"""Display and monitor: rich on a terminal, plain lines elsewhere, both end with the run."""

import dataclasses
import io
import threading
import time

import pytest
from rich.console import Console
from tests.factories import SHARES, equal_turns, evaluation, update
from tests.harness.records import progress_of, running
from tests.harness.sweep_runs import write_job, write_jobs

from rlforge.record.files import create_run
from rlforge.record.progress import EngineRow, ExactRow
from rlforge.record.signals import Signal
from rlforge.record.sweeps import write_sweep
from rlforge.show import display as display_module
from rlforge.show.display import NOTES, Display, collection_line, exact_line, monitor, monitor_jobs
from rlforge.system.locks import RunLock


def console(**options):
    return Console(file=io.StringIO(), width=80, **options)


def written(to):
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


class Utf8(io.StringIO):
    encoding = "utf-8"


@pytest.fixture
def now(clock, monkeypatch):
    """The clock of the display, which is that of the tracker."""
    monkeypatch.setattr(display_module.time, "monotonic", clock)
    return clock


def test_auto_is_plain_without_a_terminal_and_rich_on_one():
    assert Display("demo", console=console()).mode == "plain"
    terminal = Console(file=Utf8(), force_terminal=True, width=80)
    assert Display("demo", console=terminal).mode == "rich"
    dumb = Console(file=Utf8(), force_terminal=True, width=80, _environ={"TERM": "dumb"})
    assert Display("demo", console=dumb).mode == "plain"
    for chosen in ("rich", "plain", "off"):
        assert Display("demo", chosen, console()).mode == chosen


def test_lines_of_a_run_without_games_are_about_samples():
    out = console()
    learner = {"loss": 1.5, "validation_loss": 1.25, "grad_norm": 0.5, "epoch": 1.5}
    learner["tokens_per_s"] = 400.0
    sft = running(elapsed_s=9.0, update=3, total_updates=4, samples=192, learner=learner)
    with Display("sft", "plain", out, plain_every_s=0.0) as shown:
        shown.show(sft)
        shown.show(dataclasses.replace(sft, update=4, status="done"))
    assert written(out).splitlines() == [
        "[0:09] update 3/4  loss 1.5  held-out 1.25  grad 0.5  samples 192  400 tok/s",
        "[0:09] update 4/4  loss 1.5  held-out 1.25  grad 0.5  samples 192  400 tok/s",
        "[0:09] done at update 4/4",
    ]
    measuring = dataclasses.replace(sft, activity="measuring 30 held-out samples", learner={})
    assert collection_line(sft) == "learning, update 4/4"
    assert collection_line(measuring) == "measuring 30 held-out samples, update 4/4"


def test_a_resumed_run_says_where_it_goes_on_and_repeats_nothing(full_run):
    out = console(soft_wrap=True)
    again = progress_of(full_run, status="running", update=2, total_updates=9, learner={})
    with Display("demo", "plain", out, plain_every_s=0.0) as shown:
        shown.show(again)
        shown.show(dataclasses.replace(again, update=3, learner={"loss": 1.0}))
    resumed, update = written(out).splitlines()
    assert resumed.endswith("] resumed at update 2/9")
    assert "update 3/9  loss 1" in update


def test_every_line_of_a_job_of_a_sweep_says_which_it_is():
    out = console()
    done = running(status="done", elapsed_s=5.0, update=2, total_updates=2, games=64)
    with Display("kuhn", "plain", out, job="2/6 seed=1") as shown:
        shown.note("vs openai:m: 3 games")  # no markup
        shown.show(done)
    assert written(out).splitlines() == [
        "[2/6 seed=1] kuhn: vs openai:m: 3 games",
        "[2/6 seed=1] [0:05] update 2/2  games 64 (0.0/s)  0 tok/s",
        "[2/6 seed=1] [0:05] done at update 2/2, 64 games",
    ]


def test_plain_lines_report_updates_evaluations_and_the_end(tracker, clock):
    out = console()
    with Display("demo", "plain", out, plain_every_s=0.0) as shown:
        shown.note("starting the actors")
        shown.show(tracker.progress())
        tracker.add_eval(evaluation(0, 33))
        shown.show(tracker.progress())
        clock.now += 10
        tracker.add_games([equal_turns() for _ in range(20)])
        tracker.log_learner(update(1), SHARES)
        shown.show(tracker.progress())
        shown.show(tracker.progress())
        tracker.add_games([equal_turns(error="broke")])
        tracker.log_learner(update(2), SHARES)
        tracker.add_eval(evaluation(2, 70))
        tracker.close({"status": "done"})
        shown.show(tracker.progress())
        shown.show(tracker.progress())
    assert written(out).splitlines() == [
        "demo: starting the actors",
        "[0:00] eval at 0: SimpleTak-v0-train vs random_legal: win 33.0% [24.6%, 42.7%], "
        "draw 33.0%, loss 34.0% (100 games)",
        "[0:10] update 1/10  loss 0.5  reward 0.25  grad 0.4  games 20 (2.0/s)  8 tok/s",
        "[0:10] update 2/10  loss 0.25  reward 0.25  grad 0.4  games 20 (2.0/s)  8 tok/s  failed 1",
        "[0:10] eval at 2: SimpleTak-v0-train vs random_legal: win 70.0% [60.4%, 78.1%], "
        "start 33.0%, draw 15.0%, loss 15.0% (100 games)",
        "[0:10] done at update 2/10, 20 games",
    ]
    assert written(out).isascii()


def test_plain_says_once_that_a_signal_begins_and_once_that_it_ends(tracker):
    out = console()
    one = Signal(name="idle", step=2, text="all rest", mend="add games", weight="slow")
    with Display("demo", "plain", out, plain_every_s=0.0) as shown:
        for signals in ((), (one,), (one,), (dataclasses.replace(one, until=7),)):
            shown.show(dataclasses.replace(tracker.progress(), signals=signals))
    lines = [line for line in written(out).splitlines() if "signal" in line]
    assert [line.partition("] ")[2] for line in lines] == [
        "signal at update 2, idle: all rest; add games",
        "signal of update 2 has ended, idle",
    ]


def test_plain_updates_are_spaced_out(tracker, now):
    out = console()
    with Display("demo", "plain", out, plain_every_s=2.0) as shown:
        for step, pause in ((1, 0.5), (2, 0.5), (3, 1.5), (4, 0.5)):
            tracker.log_learner(update(step), {})
            shown.show(tracker.progress())
            now.now += pause
    steps = [line.split("update ")[1].split("/")[0] for line in written(out).splitlines()]
    assert steps == ["1", "4"]


def test_off_shows_nothing(full_run):
    out = console()
    with Display("demo", "off", out) as shown:
        shown.note("hello")
        shown.show(progress_of(full_run))
    assert written(out) == ""


def test_rich_draws_the_frame_and_notes_above_it(full_run):
    out = Console(file=Utf8(), force_terminal=True, width=100, height=50)
    with Display("demo", "rich", out) as shown:
        shown.note("starting the actors")
        shown.show(progress_of(full_run))
    text = written(out)
    assert "demo: starting the actors" in text
    assert "Win rate" in text
    assert text.count("\x1b[?25h") == 1  # the cursor is back


class Cell:
    """What a notebook shows below a cell: outputs, which a handle can replace."""

    def __init__(self):
        self.outputs: list[dict[str, str]] = []
        self.drawn = 0

    def display(self, bundle, *, raw, display_id):
        assert raw
        assert display_id
        self.outputs.append(bundle)
        return self

    def update(self, bundle, *, raw):
        assert raw
        self.drawn += 1
        self.outputs[-1] = bundle


@pytest.fixture
def cell(monkeypatch):
    cell = Cell()
    monkeypatch.setattr("IPython.display.display", cell.display)
    return cell


def test_auto_is_one_frame_in_a_notebook(cell, full_run):
    out = console(force_jupyter=True)
    with Display("demo", console=out) as shown:
        assert shown.mode == "notebook"
        shown.note("starting the actors")
        shown.show(progress_of(full_run))
        shown.note("<b>stopping</b>")
        progress = dataclasses.replace(progress_of(full_run), games=4711)
        thread = threading.Thread(target=shown.show, args=(progress,))
        thread.start()
        thread.join()
    [output] = cell.outputs
    html, plain = output["text/html"], output["text/plain"]
    assert html.startswith("<pre")
    assert plain.splitlines()[:2] == ["demo: starting the actors", "demo: <b>stopping</b>"]
    assert "&lt;b&gt;stopping" in html
    for text in (html, plain):
        assert "Win rate" in text
        assert "4,711" in text
        assert "\x1b" not in text
    assert written(out) == ""


def test_a_frame_that_is_the_same_is_not_sent_again(cell, full_run):
    with Display("demo", console=console(force_jupyter=True)) as shown:
        shown.show(progress_of(full_run))
        shown.show(progress_of(full_run))
        assert cell.drawn == 0
        for number in range(NOTES + 2):
            shown.note(f"note {number}")
    [output] = cell.outputs
    assert "note 1\n" not in output["text/plain"]
    assert f"note {NOTES + 1}\n" in output["text/plain"]


class Broken(io.StringIO):
    """Standard error whose disk is full."""

    def write(self, text):
        raise OSError("No space left on device")


@pytest.mark.parametrize("mode", ["plain", "rich"])
def test_a_display_that_fails_is_no_part_of_its_run_and_ends_a_monitor(
    mode, full_run, monkeypatch, caplog
):
    monkeypatch.setattr("sys.stderr", Broken())
    with Display("demo", mode) as display:
        display.note("a note")
        display.show(progress_of(full_run))
        display.note("another")
    assert caplog.text.count("the run goes on without it") == 1
    with pytest.raises(OSError, match="No space"):
        Display("demo", "plain", Console(file=Broken())).note("a note")


def test_monitor_ends_with_the_run(full_run):
    out = console()
    monitor(full_run, refresh_s=60.0, console=out)  # would time out if it waited
    assert written(out).splitlines()[-1].endswith("done at update 6/10, 30 games")


def test_monitor_follows_a_running_run_until_it_ends(tmp_path, tracker):
    out = console()
    watcher = threading.Thread(
        target=monitor, args=(tmp_path,), kwargs={"refresh_s": 0.01, "console": out}
    )
    watcher.start()
    tracker.log_learner(update(1), {})
    deadline = time.monotonic() + 10
    while "update 1/10" not in written(out) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert watcher.is_alive()
    tracker.close({"status": "interrupted"})
    watcher.join(timeout=10)
    assert not watcher.is_alive()
    assert "interrupted at update 1/10" in written(out)


def test_monitor_of_a_run_without_a_report_yet(tmp_path):
    create_run(tmp_path).config.write_text("name: x\n")
    out = console()
    monitor(tmp_path, once=True, console=out)
    assert "has not reported anything yet" in written(out)


def test_ctrl_c_ends_the_monitor_quietly(tmp_path, tracker, monkeypatch):
    def interrupt(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(display_module.time, "sleep", interrupt)
    monitor(tmp_path, console=console())


def test_an_exact_measure_is_a_line():
    row = {"env_id": "kuhn_poker", "start_step": 0, "start": 0.75, "history": ()}
    start, later = ExactRow(step=0, nash_conv=0.75, **row), ExactRow(step=4, nash_conv=0.25, **row)
    assert exact_line(start) == "exact at 0: kuhn_poker: NashConv 0.7500"
    line = "exact at 4: kuhn_poker: NashConv 0.2500, start 0.7500"
    assert exact_line(later) == line


def test_plain_shows_what_is_played_long_before_the_first_update(tracker, now):
    out = console()
    with Display("demo", "plain", out) as shown:
        for second in range(1, 61):
            now.now += 1.0
            load = {"queued": 0, "running": 8, "tok_s": 30.0, "tokens": 30.0 * second}
            tracker.log_inference("engine-0", load)
            if second == 25:
                tracker.add_games([equal_turns(), equal_turns(error="broke")])
            if second == 50:
                tracker.log_learner(update(1), {})
            shown.show(tracker.progress())
    lines = written(out).splitlines()
    played = [(0, 300, ""), (0, 600, ""), (1, 900, "  failed 1")]
    assert lines[:3] == [
        f"[0:{tokens // 30}] collecting for update 1/10  games {games} (0.0/s)  {tokens} tokens"
        f" (30 tok/s)  8 requests running{end}"
        for games, tokens, end in played
    ]
    assert " ".join(line[:6] for line in lines) == "[0:10] [0:20] [0:30] [0:40] [0:50] [1:00]"
    assert "update 1/10  loss" in lines[4]
    assert "collecting for update 2/10" in lines[5]
    assert written(out).isascii()


def test_a_line_without_a_terminal_says_collecting_only_while_engines_work(tracker):
    progress = tracker.progress()
    works = EngineRow(name="engine-0", queued=0, running=8, tok_s=30.0, tokens=900)
    rests = dataclasses.replace(works, tok_s=0.0, running=0)
    for engine, expected in ((works, "collecting for update 1/10"), (rests, "at update 1/10")):
        line = collection_line(dataclasses.replace(progress, engines=(engine,)))
        assert line.startswith(f"{expected}  ")


def test_plain_of_fast_updates_has_no_further_lines(tracker, now):
    out = console()
    with Display("demo", "plain", out) as shown:
        for step in range(1, 11):
            now.now += 4.0
            tracker.log_learner(update(step), {})
            shown.show(tracker.progress())
        now.now += 20.0
        shown.show(tracker.progress())
    *updates, last = written(out).splitlines()
    assert len(updates) == 10
    assert "collecting" not in "".join(updates)
    assert "evaluating after update 10/10" in last


def test_plain_is_silent_about_a_run_that_no_longer_reports(tracker, now):
    progress, out = tracker.progress(), console()
    with Display("demo", "plain", out) as shown:
        for _ in range(60):
            now.now += 1.0
            shown.show(progress)
    assert written(out).count("collecting") == 1


def once(folder, width=80):
    out = Console(file=io.StringIO(), width=width)
    monitor_jobs(folder, once=True, console=out)
    return written(out)


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
    out = console()
    show = threading.Thread(
        target=monitor_jobs, args=(sweep,), kwargs={"refresh_s": 0.05, "console": out}
    )
    with RunLock(sweep):
        show.start()
        show.join(0.5)
        assert show.is_alive()
        for number in (1, 2, 3):
            write_job(sweep, number)
    show.join(60)
    assert not show.is_alive()
    lines = written(out).splitlines()
    assert lines[-1] == "4 jobs: 4 done"
    done = [line for line in lines if ": done 2/2, vs random_legal" in line]
    assert [line[0] for line in done] == ["0", "1", "2", "3"]
    assert len(lines) == len(set(lines))
