"""The tracker: namespaces, windows, lines of the run's files, resuming, closing."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlforge.config.schema import TrackerConfig
from rlforge.system.checkpoint import write_checkpoint
from rlforge.system.hardware import GpuLoad
from rlforge.tracking.display import exact_line
from rlforge.tracking.files import read_json, read_jsonl
from rlforge.tracking.game_files import GameWriter
from rlforge.tracking.progress import CollectionRow, Progress
from rlforge.tracking.tracker import Tracker
from rlforge.tracking.view import ProgressView
from rlforge.types import Alarm, ExactResult

MODEST = GpuLoad(index=3, name="B", used=2**29, memory=2**32)


class Memory:
    """A sink that keeps all calls."""

    def __init__(self) -> None:
        self.flushed: list[tuple[int, dict[str, float]]] = []
        self.rewound: list[int] = []
        self.closed = 0

    def curve(self, key: str) -> list[tuple[int, float]]:
        """Step and value of each point under ``key``."""
        return [(step, scalars[key]) for step, scalars in self.flushed if key in scalars]

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self.flushed.append((step, dict(scalars)))

    def rewind(self, step: int) -> None:
        self.rewound.append(step)

    def close(self) -> None:
        self.closed += 1


class Gallery(Memory):
    """A sink that also takes tables and adapters, and leaves a command to the user."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[tuple[int, str, list[dict[str, Any]]]] = []
        self.adapters: list[str] = []

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self.tables.append((step, name, [dict(row) for row in rows]))

    def adapter(self, folder: Path) -> None:
        self.adapters.append(folder.name)

    def next_step(self) -> str | None:
        return "upload RUN"


def test_a_run_that_has_just_begun_is_readable(tmp_path: Path, new_tracker: Any) -> None:
    tracker = new_tracker(tmp_path)
    progress = tracker.progress()
    assert (progress.update, progress.total_updates, progress.eta_s) == (0, 10, None)
    assert Progress.from_json(read_json(tmp_path / "progress.json")).status == "running"
    summary = read_json(tmp_path / "summary.json")
    assert (summary["status"], summary["seed"], summary["updates"]) == ("running", 7, 0)
    assert read_jsonl(tmp_path / "metrics.jsonl") == []


def test_training_games_are_counted_from_the_trained_seats(
    tmp_path: Path, make: Any, new_tracker: Any
) -> None:
    sink = Memory()
    tracker = new_tracker(tmp_path, [sink])
    tracker.add_games(
        [
            make.game("a", trained=(0,), turns=3),
            make.game("b", trained=(0,), rewards={0: 0.0, 1: 0.0}, turns=2, legal=False),
            make.game("c", trained=(0,), rewards={0: -1.0, 1: 1.0}, turns=1, invalid_by=0),
            make.game("d", trained=(1,), turns=2, well_formed=False, finish_reason="length"),
            make.game("e", error="GameError: it broke"),
        ]
    )
    tracker.flush()
    ((step, scalars),) = sink.flushed
    env = "collection-SimpleTak-v0-train"
    assert step == 0
    assert scalars == pytest.approx(
        {
            f"{env}/failed_rate": 1 / 5,
            f"{env}/game_length": 8 / 4,
            f"{env}/duration_s": 0.25,
            f"{env}/turn_limit_rate": 0.0,
            f"{env}/context_limit_rate": 0.0,
            f"{env}/timeout_rate": 0.0,
            f"{env}/first_player_win_rate": 2 / 4,  # a and d
            f"{env}/reward": (1 + 0 - 1 - 1) / 4,
            f"{env}/win_rate": 1 / 4,
            f"{env}/draw_rate": 1 / 4,
            f"{env}/loss_rate": 2 / 4,
            f"{env}/invalid_game_rate": 1 / 4,
            # turns of trained seats: two in a, one each in b, c and d
            f"{env}/format_success": 4 / 5,
            f"{env}/invalid_rate": 1 / 5,
            f"{env}/completion_length": 2.0,
            f"{env}/truncated_rate": 1 / 5,
        }
    )
    progress = tracker.progress()
    assert (progress.games, progress.failed_games, progress.tokens) == (
        4,
        1,
        2 * (3 + 2 + 1 + 2 + 2),
    )
    assert progress.collection == (
        CollectionRow(
            env_id="SimpleTak-v0-train",
            games=4,
            win_rate=0.25,
            draw_rate=0.25,
            reward=-0.25,
            format_success=0.8,
            invalid_rate=0.2,
            game_length=2.0,
            completion_length=2.0,
            truncated_rate=0.2,
            failed_rate=0.2,
        ),
    )


def test_collection_means_run_over_the_window_and_by_environment(
    tmp_path: Path, make: Any, new_tracker: Any
) -> None:
    tracker = new_tracker(tmp_path, window=2)
    tracker.add_games([make.game(trained=(1,)) for _ in range(5)])
    tracker.add_games([make.game(trained=(0,)) for _ in range(2)])
    tracker.add_games([make.game(env_id="Nim-v0", trained=(0,))])
    rows = {row.env_id: row for row in tracker.progress().collection}
    assert rows["SimpleTak-v0-train"].win_rate == 1.0
    assert (rows["SimpleTak-v0-train"].games, rows["Nim-v0"].games) == (7, 1)


def test_an_environment_whose_games_all_failed_has_no_rates(
    tmp_path: Path, make: Any, new_tracker: Any
) -> None:
    tracker = new_tracker(tmp_path)
    tracker.add_games([make.game(error="broke")])
    (row,) = tracker.progress().collection
    assert (row.games, row.win_rate, row.failed_rate) == (0, None, 1.0)


def test_an_evaluation_is_a_line_a_namespace_and_a_row(
    tmp_path: Path, make: Any, new_tracker: Any, clock: Any
) -> None:
    sink = Memory()
    tracker = new_tracker(tmp_path, [sink])
    tracker.add_eval(make.evaluation(0, 33))
    clock.now += 5
    tracker.add_eval(make.evaluation(4, 70))
    tracker.flush()
    rows = read_jsonl(tmp_path / "evals.jsonl")
    assert [(row["step"], row["wins"], row["time_s"]) for row in rows] == [(0, 33, 0), (4, 70, 5)]
    assert {"env_id", "opponent", "games", "draws", "losses", "win_rate", "ci95"} <= set(rows[0])
    prefix = "evaluation-SimpleTak-v0-train/random_legal"
    assert sink.curve(f"{prefix}/win_rate") == [(0, 0.33), (4, 0.70)]
    assert sink.curve(f"{prefix}/draw_rate") == [(0, 0.33), (4, 0.15)]
    (row,) = tracker.progress().win_rates
    assert (row.step, row.win_rate, row.start_step, row.start_win_rate) == (4, 0.7, 0, 0.33)
    assert (row.history, row.loss_rate) == ((0.33, 0.7), 0.15)


def test_an_exact_measure_is_a_line_a_namespace_and_a_row(tmp_path: Path, new_tracker: Any) -> None:
    def measured(step: int, gains: tuple[float, float]) -> ExactResult:
        return ExactResult(
            step=step,
            policy_uid=f"step-{step}",
            env_id="kuhn_poker",
            nash_conv=sum(gains),
            values=(-0.1, 0.1),
            gains=gains,
            decisions=12,
            illegal=0.25,
            illegal_most=0.5,
        )

    sink = Memory()
    tracker = new_tracker(tmp_path, [sink])
    for step, gains in ((0, (0.25, 0.5)), (4, (0.125, 0.125)), (8, (0.0, 0.125))):
        tracker.add_exact(measured(step, gains))
    rows = read_jsonl(tmp_path / "exact.jsonl")
    assert [(row["step"], row["nash_conv"], row["gains"]) for row in rows] == [
        (0, 0.75, [0.25, 0.5]),
        (4, 0.25, [0.125, 0.125]),
        (8, 0.125, [0.0, 0.125]),
    ]
    assert sink.curve("exact-kuhn_poker/nash_conv") == [(0, 0.75), (4, 0.25), (8, 0.125)]
    assert sink.curve("exact-kuhn_poker/gain_0") == [(0, 0.25), (4, 0.125), (8, 0.0)]
    tracker.resume(4)
    (row,) = tracker.progress().exact
    assert (row.step, row.nash_conv, row.start, row.history) == (4, 0.25, 0.75, (0.75, 0.25))
    assert exact_line(tracker.progress(), row).endswith(
        "exact at 4: kuhn_poker: NashConv 0.2500, start 0.7500"
    )
    page = Console(width=80, record=True, file=io.StringIO())
    page.print(ProgressView(tracker.progress()))
    assert "Distance from equilibrium" in (text := page.export_text())
    assert "kuhn_poker" in text
    assert "0.2500" in text


def test_an_alarm_is_a_line_a_mark_and_a_part_of_the_display(
    tmp_path: Path, make: Any, new_tracker: Any
) -> None:
    sink = Memory()
    tracker = new_tracker(tmp_path, [sink])
    for step in (3, 8):
        tracker.log_learner(make.update(step), make.shares)
        tracker.add_alarm(
            Alarm(
                step=step,
                signal="seat_gap",
                about="",
                since=step - 1,
                good=step - 2,
                observed=-0.75,
                expected=0.125,
                actions=("rollback to step-1",),
            )
        )
    (first, second) = read_jsonl(tmp_path / "sentinel.jsonl")
    assert (first["step"], first["since"], first["good"]) == (3, 2, 1)
    assert (second["observed"], second["actions"]) == (-0.75, ["rollback to step-1"])
    assert sink.curve("sentinel/seat_gap") == [(3, 1.0), (8, 1.0)]
    tracker.resume(4)
    (alarm,) = tracker.progress().alarms
    line = "seat gap: -0.75 instead of 0.125 since 2; rollback to step-1"
    assert alarm.text == line
    page = Console(width=80, record=True, file=io.StringIO())
    page.print(ProgressView(Progress.from_json(tracker.progress().to_json())))
    assert f"3  {line}" in page.export_text()


def test_an_update_is_a_line_with_rates_shares_and_games(
    tmp_path: Path, make: Any, new_tracker: Any, clock: Any
) -> None:
    sink = Memory()
    tracker = new_tracker(tmp_path, [sink])
    clock.now += 4
    tracker.add_games([make.game() for _ in range(8)])
    tracker.log_learner(make.update(1, my_own=5.0), make.shares)
    clock.now += 2
    tracker.log_learner(make.update(2), make.shares)
    tracker.flush()
    first, second = read_jsonl(tmp_path / "metrics.jsonl")
    assert {
        name: first[name]
        for name in ("step", "time_s", "samples", "samples_seen", "loss", "lr", "grad_norm")
    } == {
        "step": 1,
        "time_s": 4,
        "samples": 64,
        "samples_seen": 64,
        "loss": 0.5,
        "lr": 0.003,
        "grad_norm": 0.4,
    }
    assert (first["games"], first["games_per_s"], first["failed_games"]) == (8, 2.0, 0)
    # Tokens in the loss are ``trained_tokens``; ``tokens`` are generated ones.
    assert (first["tokens"], first["generated_tokens_per_s"]) == (32, 8.0)
    assert (first["trained_tokens"], first["tokens_per_s"], first["my_own"]) == (700, 21000, 5.0)
    assert (first["engine_share"], first["idle_share"]) == (0.61, 0.06)
    assert first["collection-SimpleTak-v0-train/game_length"] == 2.0
    assert (second["samples_seen"], second["games_per_s"]) == (128, 0.0)
    assert sink.curve("learner/loss") == [(1, 0.5), (2, 0.25)]
    assert sink.curve("learner/engine_share") == [(1, 0.61), (2, 0.61)]
    # As in the lines of the file: at every update, whether games came since the last or not.
    assert sink.curve("collection-SimpleTak-v0-train/game_length") == [(1, 2.0), (2, 2.0)]
    progress = tracker.progress()
    assert (progress.update, progress.samples, progress.eta_s) == (2, 128, pytest.approx(8 * 2))
    assert progress.learner["loss"] == 0.25
    assert progress.shares["idle_share"] == 0.06
    assert progress.games_per_s == pytest.approx(8 / 6)


def test_engines_have_a_namespace_each(tmp_path: Path, new_tracker: Any) -> None:
    sink = Memory()
    tracker = new_tracker(tmp_path, [sink])
    tracker.log_inference("engine-1", {"queued": 3, "running": 5, "tok_s": 100.0, "tokens": 500})
    tracker.log_inference("engine-0", {"queued": 1, "running": 2, "tok_s": 50.0, "tokens": 90})
    tracker.log_inference("engine-1", {"queued": 5, "running": 7, "tok_s": 200.0, "tokens": 900})
    tracker.flush()
    assert sink.flushed[0][1]["inference/engine-1/tok_s"] == 150.0
    assert sink.flushed[0][1]["inference/engine-0/queued"] == 1.0
    assert sink.flushed[0][1]["inference/engine-1/queued"] == 5.0  # a gauge: the last value
    rows = tracker.progress().engines
    assert [(row.name, row.queued, row.running, row.tok_s, row.tokens) for row in rows] == [
        ("engine-0", 1, 2, 50.0, 90),
        ("engine-1", 5, 7, 200.0, 900),
    ]


def test_a_pool_snapshot_is_kept_with_its_history(
    tmp_path: Path, make: Any, new_tracker: Any
) -> None:
    sink = Memory()
    tracker = new_tracker(tmp_path, [sink])
    tracker.log_pool(make.snapshot(0))
    tracker.log_learner(make.update(1), {})
    tracker.log_pool(make.snapshot(5))
    tracker.flush()
    assert read_json(tmp_path / "pool.json") == make.snapshot(5)
    first, second = read_jsonl(tmp_path / "ratings.jsonl")
    assert (first["step"], first["current"], first["ratings"]) == (0, "base", {"base": [25.0, 4.0]})
    assert (second["step"], second["coverage"]) == (1, {"SimpleTak-v0-train": 0.375})
    assert list(second["ratings"]) == ["step-5", "step-4", "step-3"]
    # One curve for the newest policy, none per checkpoint.
    written = {key for _, scalars in sink.flushed for key in scalars if key.startswith("pool/")}
    assert written == {
        "pool/coverage/SimpleTak-v0-train",
        "pool/current/mu",
        "pool/current/sigma",
        "pool/current/games",
    }
    assert sink.curve("pool/current/mu") == [(0, 25.0), (1, 30.0)]
    assert sink.curve("pool/current/games") == [(0, 0), (1, 50)]
    progress = tracker.progress()
    assert [row.uid for row in progress.ratings][:2] == ["step-5", "step-4"]
    assert [(row.first, row.second, row.games) for row in progress.matches][:1] == [
        ("step-4", "step-5", 11)
    ]
    assert len(progress.matches) == 5  # each pair once


def test_users_numbers_are_in_the_next_updates_line_and_in_the_sinks(
    tmp_path: Path, make: Any, new_tracker: Any
) -> None:
    sink = Memory()
    tracker = new_tracker(tmp_path, [sink])
    tracker.log_scalars({"custom/curiosity": 1.0})
    tracker.log_scalars({"custom/curiosity": 3.0, "custom/a/b": 4.0})
    tracker.log_learner(make.update(1), {})
    tracker.log_learner(make.update(2), {})
    tracker.log_scalars({"custom/curiosity": 8.0})
    tracker.flush()
    first, second = read_jsonl(tmp_path / "metrics.jsonl")
    assert (first["custom/curiosity"], first["custom/a/b"]) == (2.0, 4.0)
    assert not any(key.startswith("custom/") for key in second)
    assert sink.curve("custom/curiosity") == [(1, 2.0)]
    assert sink.curve("custom/a/b") == [(1, 4.0)]
    tracker.close({})  # what no update follows is recorded at the end
    assert sink.curve("custom/curiosity") == [(1, 2.0), (2, 8.0)]


def test_gpus_are_recorded_as_far_as_they_are_measured(
    tmp_path: Path, make: Any, new_tracker: Any
) -> None:
    sink = Memory()
    tracker = new_tracker(tmp_path, [sink])
    first = GpuLoad(index=0, name="A", used=2**30, memory=2**33, power=100.0, limit=300.0, busy=0.5)
    for power in (100.0, 200.0):
        tracker.log_gpus((dataclasses.replace(first, power=power), MODEST))
    assert tracker.progress().gpus[1] == MODEST
    assert Progress.from_json(tracker.progress().to_json()).gpus == tracker.progress().gpus
    tracker.log_learner(make.update(1), {})
    tracker.flush()
    (row,) = read_jsonl(tmp_path / "metrics.jsonl")
    measured = {key: number for key, number in row.items() if key.startswith("system/")}
    assert measured == {
        "system/gpu-0/memory_gb": 1.0,
        "system/gpu-0/power_w": 150.0,
        "system/gpu-0/busy": 0.5,
        "system/gpu-3/memory_gb": 0.5,
    }
    assert measured.items() <= sink.flushed[0][1].items()


def test_sinks_are_flushed_by_the_clock(tmp_path: Path, new_tracker: Any, clock: Any) -> None:
    sink = Memory()
    tracker = new_tracker(tmp_path, [sink], flush_every_s=64.0)
    load = dataclasses.replace(MODEST, power=100.0)
    tracker.log_gpus([load])
    clock.now += 63.9
    tracker.log_gpus([dataclasses.replace(load, power=300.0, used=2**30)])
    assert sink.flushed == []
    clock.now += 0.2
    tracker.tick()
    assert sink.flushed == [(0, {"system/gpu-3/power_w": 200.0, "system/gpu-3/memory_gb": 1.0})]
    clock.now += 64
    tracker.tick()
    assert len(sink.flushed) == 1  # nothing new, nothing written


def test_progress_json_follows_once_a_second(
    tmp_path: Path, make: Any, new_tracker: Any, clock: Any
) -> None:
    tracker = new_tracker(tmp_path)
    tracker.add_games([make.game()])
    assert read_json(tmp_path / "progress.json")["games"] == 0
    clock.now += 1
    tracker.tick()
    assert read_json(tmp_path / "progress.json")["games"] == 1


def test_progress_survives_its_json(tmp_path: Path, make: Any, full_run: Path) -> None:
    data = read_json(full_run / "progress.json")
    progress = Progress.from_json(data)
    assert Progress.from_json(progress.to_json()) == progress
    assert progress.status == "done"
    assert [(row.opponent, row.win_rate, row.start_win_rate) for row in progress.win_rates] == [
        ("base", 0.66, 0.5),
        ("random_legal", 0.72, 0.33),
    ]


def test_a_resumed_run_continues_at_its_checkpoint(
    tmp_path: Path, make: Any, new_tracker: Any, clock: Any
) -> None:
    tracker = new_tracker(tmp_path)
    tracker.add_eval(make.evaluation(0, 33))
    for step in range(1, 6):
        clock.now += 10
        tracker.add_games([make.game() for _ in range(4)])
        tracker.log_learner(make.update(step), make.shares)
        tracker.add_eval(make.evaluation(step, 40 + step))
        tracker.log_pool(make.snapshot(step))

    clock.now += 1000  # the first process dies here
    sink = Memory()
    again = new_tracker(tmp_path, [sink])
    assert (again.progress().update, again.progress().games) == (5, 20)
    again.resume(3)
    progress = again.progress()
    assert sink.rewound == [3]
    assert (progress.update, progress.games, progress.tokens) == (3, 12, 48)
    assert (progress.samples, progress.elapsed_s) == (192, 30.0)
    assert progress.win_rates[0].history == (0.33, 0.41, 0.42, 0.43)
    clock.now += 10
    again.add_games([make.game()])
    again.log_learner(make.update(4), make.shares)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert [(row["step"], row["games"], row["time_s"]) for row in rows] == [
        (1, 4, 10),
        (2, 8, 20),
        (3, 12, 30),
        (4, 13, 40),
    ]
    assert rows[-1]["games_per_s"] == pytest.approx(0.1)
    assert [row["step"] for row in read_jsonl(tmp_path / "evals.jsonl")] == [0, 1, 2, 3]
    assert [row["step"] for row in read_jsonl(tmp_path / "ratings.jsonl")] == [1, 2, 3]


def test_close_writes_the_summary_once(tmp_path: Path, make: Any, new_tracker: Any) -> None:
    sink = Memory()
    tracker = new_tracker(tmp_path, [sink])
    tracker.log_learner(make.update(1), make.shares)
    tracker.add_eval(make.evaluation(1, 70))
    tracker.close({"status": "interrupted", "objective": 0.7})
    tracker.close({"status": "done"})
    summary = read_json(tmp_path / "summary.json")
    assert (summary["status"], summary["objective"], summary["updates"]) == ("interrupted", 0.7, 1)
    assert (summary["seed"], summary["versions"]) == (7, {"torch": "2.13.0"})
    assert summary["evaluations"][0]["win_rate"] == 0.7
    assert read_json(tmp_path / "progress.json")["status"] == "interrupted"
    assert (len(sink.flushed), sink.closed) == (2, 1)


def test_a_sink_that_fails_keeps_neither_files_nor_other_sinks_from_being_written(
    tmp_path: Path, make: Any, new_tracker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Memory):
        def write(self, step: int, scalars: Mapping[str, float]) -> None:
            raise ConnectionError("no server")

    sink = Memory()
    tracker = new_tracker(tmp_path, [Broken(), sink])
    tracker.log_learner(make.update(1), make.shares)
    tracker.add_eval(make.evaluation(1, 70))
    assert caplog.messages == ["Broken failed: ConnectionError('no server')"] * 2
    with pytest.raises(ConnectionError):
        tracker.close({"status": "done"})
    assert read_json(tmp_path / "summary.json")["status"] == "done"
    assert (len(sink.flushed), sink.closed) == (2, 1)


def test_eighty_updates_are_eighty_points_and_evaluations_stand_at_their_versions(
    tmp_path: Path, make: Any, clock: Any
) -> None:
    tracker = Tracker(tmp_path, TrackerConfig(), "demo", 80, clock=clock)
    for step in range(1, 81):
        clock.now += 1.5
        tracker.log_learner(make.update(step, lag_max=float(step % 3)), make.shares)
        tracker.log_inference(
            "engine-0", {"queued": 1, "running": 2, "tok_s": 50.0, "tokens": 90 * step}
        )
        if step % 20 == 4:  # the evaluation of a version ends four updates after it was saved
            for opponent in ("base", "random_legal"):
                tracker.add_eval(make.evaluation(step - 4, 33 + step, opponent=opponent))
    tracker.close({})
    rows = read_jsonl(tmp_path / "scalars.jsonl")
    for name, expected in (
        ("loss", lambda step: 0.5 / step),
        ("samples_seen", lambda step: 64 * step),
        ("lag_max", lambda step: step % 3),
        ("lr", lambda _: 0.003),
    ):
        points = [(row["step"], row[f"learner/{name}"]) for row in rows if f"learner/{name}" in row]
        assert points == [(step, expected(step)) for step in range(1, 81)], name
    for opponent in ("base", "random_legal"):
        key = f"evaluation-SimpleTak-v0-train/{opponent}/win_rate"
        points = [(row["step"], row[key]) for row in rows if key in row]
        assert points == [(0, 0.37), (20, 0.57), (40, 0.77), (60, 0.97)]


def test_a_resumed_run_has_each_update_and_evaluation_once(
    tmp_path: Path, make: Any, clock: Any
) -> None:
    tracker = Tracker(tmp_path, TrackerConfig(), "demo", 10, clock=clock)
    for step in range(1, 6):
        tracker.log_learner(make.update(step), make.shares)
        tracker.add_eval(make.evaluation(step, 40 + step))
    again = Tracker(tmp_path, TrackerConfig(), "demo", 10, clock=clock)  # the first one was killed
    again.resume(3)
    for step in range(4, 8):
        again.log_learner(make.update(step), make.shares)
        again.add_eval(make.evaluation(step, 40 + step))
    again.close({})
    rows = read_jsonl(tmp_path / "scalars.jsonl")
    for key in ("learner/loss", "evaluation-SimpleTak-v0-train/random_legal/win_rate"):
        assert [row["step"] for row in rows if key in row] == [1, 2, 3, 4, 5, 6, 7]


def test_ratings_and_games_go_as_tables_to_sinks_that_take_them(
    tmp_path: Path, make: Any, new_tracker: Any, clock: Any
) -> None:
    sink = Gallery()
    tracker = new_tracker(tmp_path, [sink, Memory()])
    tracker.log_pool(make.snapshot(1))
    tracker.log_pool(make.snapshot(2))
    clock.now += 65
    tracker.tick()
    ((_, name, rows),) = sink.tables
    assert (name, [row["uid"] for row in rows]) == ("ratings", ["step-2", "step-1", "base"])
    assert rows[0].items() >= {"mu": 27.0, "sigma": 4.0, "games": 20}.items()
    clock.now += 65
    tracker.tick()  # no newer ratings
    writer = GameWriter(tmp_path)
    writer.add([make.game("one", turns=3), make.game("two", turns=1)])
    writer.close()
    assert tracker.close({}) == ["upload RUN"]
    assert tracker.close({}) == []
    _, (_, name, turns) = sink.tables
    assert (name, [(row["game_id"], row["turn"]) for row in turns]) == (
        "games",
        [("one", 1), ("one", 2), ("one", 3), ("two", 1)],
    )
    assert turns[0]["observation"] == "board"


def test_a_damaged_file_of_games_does_not_keep_a_run_from_its_end(
    tmp_path: Path, new_tracker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Gallery()
    tracker = new_tracker(tmp_path, [sink])
    (tmp_path / "games" / "games-000001.parquet").write_text("no parquet")
    tracker.close({})
    assert (sink.tables, sink.closed) == ([], 1)
    assert "games-000001.parquet is damaged" in caplog.text


@pytest.mark.parametrize(
    ("choice", "handed"), [("off", []), ("last", ["step-10"]), ("all", ["step-9", "step-10"])]
)
def test_versions_are_handed_over_at_the_end_by_choice(
    choice: str, handed: list[str], tmp_path: Path, new_tracker: Any
) -> None:
    sink = Gallery()
    tracker = new_tracker(tmp_path, [sink], adapters=choice)
    for version in (9, 10):
        write_checkpoint(
            tmp_path / "checkpoints", f"step-{version}", lambda path: None, {"version": version}
        )
    tracker.close({})
    assert sink.adapters == handed


def test_without_given_sinks_those_of_the_config_are_made(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path, TrackerConfig(), "demo", 3)
    tracker.log_scalars({"custom/x": 1.0})
    tracker.close({})
    (row,) = read_jsonl(tmp_path / "scalars.jsonl")
    assert (row["step"], row["custom/x"]) == (0, 1.0)
    assert read_json(tmp_path / "summary.json")["status"] == "done"


def test_nan_is_shown_live_and_null_on_disk(tmp_path: Path, make: Any, new_tracker: Any) -> None:
    tracker = new_tracker(tmp_path)
    tracker.log_learner(make.update(1, loss=float("nan")), {})
    assert read_jsonl(tmp_path / "metrics.jsonl")[0]["loss"] is None
    assert Progress.from_json(read_json(tmp_path / "progress.json")).learner["loss"] is None
    assert str(tracker.progress().learner["loss"]) == "nan"
