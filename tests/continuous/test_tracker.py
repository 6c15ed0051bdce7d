"""The tracker of continuous training: files, resuming, and the line of a window."""

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.harness.records import draw, one_line

from rlforge.config.schema import TrackerConfig
from rlforge.continuous.tracker import WindowTracker, window_line
from rlforge.record.progress import Progress
from rlforge.show.display import Display
from rlforge.system.values import from_json, to_json

UPDATE = {"loss": 0.25, "kl": 0.01, "samples_seen": 40.0}


def row(number, version=None):
    figures = {"decisions": 9, "trades": 7, "refused": 1, "avg_reward": 0.5, "avg_pnl": -3.25}
    figures |= {"win_rate": float("nan")}
    return {
        "window_id": f"2024-11-13-1{number}:00",
        "window": number,
        "trajectories": 66,
        "policy_reward": 0.5,
        "win_rate": 0.75,
        "reward_difference": 0.2,
        "reward_difference_low": -0.1,
        "reward_difference_high": 0.5,
        "training_loss": 0.25 if version else None,
        "deployment_success": True if version else None,
        "reason": "" if version else "it is not ready",
        "version": version,
        "batch/trained_decisions": 20,
        "players": {"policy": figures},
    }


def make_tracker(total=3):
    tracker = WindowTracker(Path("run"), TrackerConfig(), "test", total, about={"seed": 1})
    tracker.resume_windows([])
    return tracker


def rows(name):
    return [json.loads(line) for line in (Path("run") / name).read_text().splitlines()]


def test_windows_and_updates_are_lines_of_their_files():
    tracker = make_tracker()
    tracker.log_window({**row(1), "custom/spread": 0.5}, None)
    tracker.log_window(row(2, "step-1"), UPDATE)
    assert [each["window"] for each in rows("windows.jsonl")] == [1, 2]
    assert rows("metrics.jsonl") == [{"step": 1, "window_id": "2024-11-13-12:00", **UPDATE}]
    first, second = rows("scalars.jsonl")
    assert (first["step"], second["step"]) == (1, 2)
    assert (first["window/policy/avg_reward"], second["learner/loss"]) == (0.5, 0.25)
    assert "window/policy/win_rate" not in first  # nan
    # Numbers of users' code keep their namespace.
    assert first["custom/spread"] == rows("windows.jsonl")[0]["custom/spread"] == 0.5
    tracker.close({"status": "done", "serving": "step-1"})
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["seed"] == 1
    wanted = ("status", "windows", "total_windows", "updates", "samples_seen", "serving")
    assert [summary[key] for key in wanted] == ["done", 2, 3, 1, 40, "step-1"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_frame_of_a_continuous_run_fits_and_shows_windows_traders_and_scores(width):
    tracker = make_tracker(total=8)
    assert "no window is done yet" in one_line(draw(tracker.progress(), width))
    scores = {"scorer/kendall_tau": 0.519, "scorer/not_measured": None}
    for number in range(1, 5):
        version = f"step-{number}" if number < 4 else None
        tracker.log_window({**row(number, version), **scores}, UPDATE if version else None)
    tracker.log_activity("collecting", "2024-11-13-15:00")
    tracker.log_decisions("2024-11-13-15:00", 37)
    progress = tracker.progress()
    assert from_json(Progress, to_json(progress)) == progress
    lines = draw(progress, width)
    assert {cell_len(line) for line in lines} == {width}
    text = one_line(lines)
    now = "collecting 2024-11-13-15:00, 37 decisions"
    for part in ("windows", "4/8 50%", now, "serving step-3"):
        assert part in text, part
    for part in ("2024-11-13-13:00", "0.5 +0.200 -0.100 +0.500 75% 20/66 step-3 live"):
        assert part in text, part
    for part in ("it is not ready", "policy 9 1 7 – 0.5 -3.25", "kendall tau 0.519"):
        assert part in text, part
    for part in ("…", "not measured", "no evaluation yet"):
        assert part not in text, part


def test_without_an_end_windows_are_counted():
    tracker = make_tracker(total=0)
    tracker.log_window(row(1, "step-1"), UPDATE)
    text = one_line(draw(tracker.progress(), 80))
    assert "windows 1" in text
    assert "%  ETA" not in text


def test_a_log_says_what_is_done_while_a_window_takes_its_time(monkeypatch):
    tracker = make_tracker()
    tracker.log_activity("scoring", "2024-11-13-11:00")
    tracker.log_decisions("2024-11-13-11:00", 348)
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = io.StringIO()
    with Display("test", "plain", Console(file=out, width=200)) as display:
        for _ in range(4):
            now[0] += 6.0
            display.show(tracker.progress())
    said = [line.split("] ")[1] for line in out.getvalue().splitlines()]
    assert said == ["scoring 2024-11-13-11:00, 348 decisions"] * 2
    tracker.log_activity("measuring the policy before training")
    assert tracker.progress().activity == "measuring the policy before training"


def test_resuming_writes_the_files_again_from_the_windows_that_are_done():
    tracker = make_tracker()
    tracker.log_window(row(1, "step-1"), UPDATE)
    tracker.log_window(row(2, "step-2"), UPDATE)
    tracker = WindowTracker(Path("run"), TrackerConfig(), "test", 3)
    tracker.resume_windows([(row(1, "step-1"), UPDATE)])
    assert [each["window"] for each in rows("windows.jsonl")] == [1]
    assert [each["step"] for each in rows("metrics.jsonl")] == [1]
    assert [each["step"] for each in rows("scalars.jsonl")] == [1]
    assert tracker.progress().update == 1
    tracker.log_window(row(2, "step-3"), UPDATE)
    assert [each["step"] for each in rows("metrics.jsonl")] == [1, 3]


@pytest.mark.parametrize(
    ("version", "end"),
    [
        ("step-1", "step-1 trained on 20, loss 0.25, deployed"),
        (None, "nothing trained: it is not ready"),
    ],
)
def test_a_window_in_one_line(version, end):
    start = "window 1/3 2024-11-13-11:00: 66 decisions, policy reward 0.500"
    control = " (+0.200 to the control, -0.100 to +0.500: may be chance)"
    found = row(1, version)
    assert window_line(found, 3) == f"{start}{control}, wins 75.0%, {end}"
    found["reward_difference"] = None
    assert window_line(found, 3) == f"{start}, wins 75.0%, {end}"


def test_the_plain_display_prints_each_window_once_and_counts_them_at_the_end():
    tracker, console = make_tracker(), Console(record=True, width=200)
    with Display("test", "plain", console) as display:
        for number in (1, 2):
            tracker.log_window(row(number, f"step-{number}"), UPDATE)
            display.show(tracker.progress())
            display.show(tracker.progress())
    printed = console.export_text().splitlines()
    shown = [line.partition(" 2024")[0] for line in printed]
    assert shown == ["test: window 1/3", "test: window 2/3"]


@pytest.mark.parametrize(("total", "reached"), [(3, "2/3"), (0, "2")])
def test_an_interrupted_run_says_how_far_it_came(total, reached):
    tracker, console = make_tracker(), Console(record=True, width=200)
    tracker.close({"status": "interrupted"})
    with Display("test", "plain", console) as display:
        display.show(dataclasses.replace(tracker.progress(), update=2, total_updates=total))
    assert console.export_text().endswith(f"interrupted at window {reached}\n")
