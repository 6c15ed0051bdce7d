"""The tracker: namespaces, windows, lines of the run's files, resuming, closing."""

import dataclasses
from typing import Any

import pytest
from tests.factories import LOAD, SHARES, equal_turns, evaluation, pool_snapshot, update
from tests.harness.records import write_games

from rlforge.config.schema import RunConfig, TrackerConfig
from rlforge.record.files import read_json, read_jsonl
from rlforge.record.judge import Judge
from rlforge.record.progress import CollectionRow, Progress
from rlforge.record.results import Alarm, ApiUsage, ExactResult, PoolSnapshot
from rlforge.record.sinks import JsonlSink
from rlforge.record.tracker import Tracker
from rlforge.system.checkpoint import write_checkpoint
from rlforge.system.hardware import GpuLoad
from rlforge.system.values import from_json, to_json

MODEST = GpuLoad(index=3, name="B", used=2**29, memory=2**32)


class Memory:
    """A sink that keeps all calls, takes tables and adapters, and leaves a command to the user."""

    def __init__(self):
        self.flushed: list[tuple[int, dict[str, float]]] = []
        self.rewound: list[int] = []
        self.closed = 0
        self.tables: list[tuple[int, str, list[dict[str, Any]]]] = []
        self.adapters: list[str] = []

    def curve(self, key):
        """Step and value of each point under ``key``."""
        return [(step, scalars[key]) for step, scalars in self.flushed if key in scalars]

    def write(self, step, scalars):
        self.flushed.append((step, dict(scalars)))

    def rewind(self, step):
        self.rewound.append(step)

    def close(self):
        self.closed += 1

    def table(self, step, name, rows):
        self.tables.append((step, name, [dict(row) for row in rows]))

    def adapter(self, folder):
        self.adapters.append(folder.name)

    def next_step(self):
        return "upload RUN"


class Scalars:
    """A sink that takes numbers alone, and fails where ``error`` is set."""

    error: Exception | None = None

    def write(self, step, scalars):
        if self.error:
            raise self.error

    def close(self):
        pass


@pytest.fixture
def sink():
    return Memory()


@pytest.fixture
def tracker(new_tracker, sink):
    """A tracker whose only sink is ``sink``."""
    return new_tracker(sink)


def test_a_run_that_has_just_begun_is_readable(tmp_path, tracker):
    progress = tracker.progress()
    assert (progress.update, progress.total_updates, progress.eta_s) == (0, 10, None)
    assert from_json(Progress, read_json(tmp_path / "progress.json")).status == "running"
    summary = read_json(tmp_path / "summary.json")
    assert (summary["status"], summary["seed"], summary["updates"]) == ("running", 7, 0)
    assert read_jsonl(tmp_path / "metrics.jsonl") == []


def test_training_games_are_counted_from_the_trained_seats(tracker, sink):
    wrong = {"well_formed": False}
    draw, loss = {0: 0.0, 1: 0.0}, {0: -1.0, 1: 1.0}
    tracker.add_games(
        [
            equal_turns("a", trained=(0,), turns=3),
            equal_turns("b", trained=(0,), rewards=draw, turns=2, turn_is={"legal": False}),
            equal_turns("c", trained=(0,), rewards=loss, turns=1, invalid_by=0),
            equal_turns("d", trained=(1,), turns=2, turn_is=wrong, finish_reason="length"),
            equal_turns("e", error="GameError: it broke"),
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
    assert (progress.games, progress.failed_games) == (4, 1)
    assert progress.tokens == 2 * (3 + 2 + 1 + 2 + 2)
    row = {
        name.partition("/")[2]: value
        for name, value in scalars.items()
        if name.partition("/")[2] in CollectionRow.__dataclass_fields__
    }
    assert progress.collection == (CollectionRow(env_id="SimpleTak-v0-train", games=4, **row),)


def test_collection_means_run_over_the_window_and_by_environment(new_tracker):
    tracker = new_tracker(window=2)
    tracker.add_games([equal_turns(trained=(1,)) for _ in range(5)])
    tracker.add_games([equal_turns(trained=(0,)) for _ in range(2)])
    tracker.add_games([equal_turns(env_id="Nim-v0", trained=(0,))])
    tracker.add_games([equal_turns(env_id="Othello-v0", error="broke")])
    rows = {row.env_id: row for row in tracker.progress().collection}
    assert rows["SimpleTak-v0-train"].win_rate == 1.0
    assert (rows["SimpleTak-v0-train"].games, rows["Nim-v0"].games) == (7, 1)
    failed = rows["Othello-v0"]
    assert (failed.games, failed.win_rate, failed.failed_rate) == (0, None, 1.0)


def test_an_evaluation_is_a_line_a_namespace_and_a_row(tmp_path, tracker, sink, clock):
    tracker.add_eval(evaluation(0, 33))
    clock.now += 5
    tracker.add_eval(evaluation(4, 70))
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


def test_what_api_players_took_is_recorded_with_the_next_update(tmp_path, tracker, sink):
    used = ApiUsage(uid="openai:m", games=3, requests=10, failed=1, seconds=20.0, cost=0.5)
    free = ApiUsage(uid="openai:free", requests=4, unpriced=4)
    tracker.log_api([used, free], {"games": 3, "cost": 0.5, "declined_games": 2})
    tracker.log_learner(update(1), SHARES)
    tracker.log_api([used.plus(ApiUsage(uid="openai:m", requests=2, seconds=1.0)), free], {})
    tracker.close({})
    (row,) = read_jsonl(tmp_path / "metrics.jsonl")
    found = {key: number for key, number in row.items() if key.startswith("api/openai:m/")}
    assert found == {
        **{f"api/openai:m/{name}": 0 for name in ("prompt_tokens", "answer_tokens")},
        "api/openai:m/games": 3,
        "api/openai:m/requests": 10,
        "api/openai:m/failed": 1,
        "api/openai:m/cost": 0.5,
        "api/openai:m/latency_s": 2.0,
    }
    assert (row["api/cost"], row["api/declined_games"]) == (0.5, 2)
    assert "api/openai:free/cost" not in row
    # Of the requests since the last report.
    assert {number for _, number in sink.curve("api/openai:m/latency_s")} == {2.0, 0.5}
    requests = [
        (one["uid"], one["requests"]) for one in read_json(tmp_path / "summary.json")["api"]
    ]
    assert requests == [("openai:m", 12), ("openai:free", 4)]


def test_recent_rates_are_over_the_newest_games_of_all_versions_also_of_a_resumed_run(
    tmp_path, clock
):
    def tracked() -> tuple[Tracker, Memory]:
        sink = Memory()
        config = TrackerConfig(window=250)
        return Tracker(tmp_path, config, "r", 10, [sink], clock=clock), sink

    prefix = "evaluation-SimpleTak-v0-train/random_legal"
    tracker, sink = tracked()
    for step, wins in ((0, 40), (1, 60), (2, 70), (3, 50)):  # of 100 games each
        tracker.add_eval(evaluation(step, wins))
    assert sink.curve(f"{prefix}/recent_games") == [(0, 100), (1, 200), (2, 250), (3, 250)]
    found = [rate for _, rate in sink.curve(f"{prefix}/recent_win_rate")]
    # Half of version 0's games are in the window of version 2, half of version 1's in that of 3.
    assert found == pytest.approx([0.4, 0.5, (20 + 60 + 70) / 250, (30 + 70 + 50) / 250])
    again, sink = tracked()
    again.resume(2)
    again.add_eval(evaluation(3, 50))
    assert sink.curve(f"{prefix}/recent_win_rate") == [(3, pytest.approx(0.6))]


def test_an_exact_measure_is_a_line_a_namespace_and_a_row(tmp_path, tracker, sink):
    about = {"policy_uid": "p", "env_id": "kuhn_poker", "values": (-0.1, 0.1), "decisions": 12}
    about |= {"illegal": 0.25, "illegal_most": 0.5}
    for step, gains in ((0, (0.25, 0.5)), (4, (0.125, 0.125)), (8, (0.0, 0.125))):
        tracker.add_exact(ExactResult(step=step, gains=gains, nash_conv=sum(gains), **about))
    rows = read_jsonl(tmp_path / "exact.jsonl")
    found = [(row["step"], row["nash_conv"], row["gains"]) for row in rows]
    assert found == [(0, 0.75, [0.25, 0.5]), (4, 0.25, [0.125, 0.125]), (8, 0.125, [0.0, 0.125])]
    assert sink.curve("exact-kuhn_poker/nash_conv") == [(0, 0.75), (4, 0.25), (8, 0.125)]
    assert sink.curve("exact-kuhn_poker/gain_0") == [(0, 0.25), (4, 0.125), (8, 0.0)]
    tracker.resume(4)
    (row,) = tracker.progress().exact
    assert (row.step, row.nash_conv, row.start, row.history) == (4, 0.25, 0.75, (0.75, 0.25))


def test_an_alarm_is_a_line_and_a_mark(tmp_path, tracker, sink):
    told = {"signal": "seat_gap", "about": "", "observed": -0.75, "expected": 0.125}
    told |= {"actions": ("rollback to step-1",)}
    for step in (3, 8):
        tracker.log_learner(update(step), SHARES)
        tracker.add_alarm(Alarm(step=step, since=step - 1, good=step - 2, **told))
    first, second = read_jsonl(tmp_path / "sentinel.jsonl")
    assert (first["step"], first["since"], first["good"]) == (3, 2, 1)
    assert (second["observed"], second["actions"]) == (-0.75, ["rollback to step-1"])
    assert sink.curve("sentinel/seat_gap") == [(3, 1.0), (8, 1.0)]
    tracker.resume(4)
    (alarm,) = tracker.progress().alarms
    assert alarm.text == "seat gap: -0.75 instead of 0.125 since 2; rollback to step-1"


def test_an_update_is_a_line_with_rates_shares_and_games(tmp_path, tracker, sink, clock):
    clock.now += 4
    tracker.add_games([equal_turns() for _ in range(8)])
    tracker.log_learner(update(1, my_own=5.0), SHARES)
    clock.now += 2
    tracker.log_learner(update(2), SHARES)
    tracker.flush()
    first, second = read_jsonl(tmp_path / "metrics.jsonl")
    expected = {
        "step": 1,
        "time_s": 4,
        "samples": 64,
        "samples_seen": 64,
        "loss": 0.5,
        "lr": 0.003,
        "grad_norm": 0.4,
        "games": 8,
        "games_per_s": 2.0,
        "failed_games": 0,
        "my_own": 5.0,
        # Tokens in the loss are ``trained_tokens``; ``tokens`` are generated ones.
        "tokens": 32,
        "generated_tokens_per_s": 8.0,
        "trained_tokens": 700,
        "tokens_per_s": 21000,
        "engine_share": 0.61,
        "idle_share": 0.06,
        "collection-SimpleTak-v0-train/game_length": 2.0,
    }
    assert first.items() >= expected.items()
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


def test_engines_have_a_namespace_each(tracker, sink):
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


def test_a_pool_snapshot_is_kept_with_its_history(tmp_path, tracker, sink):
    tracker.log_pool(pool_snapshot(0))
    tracker.log_learner(update(1), {})
    tracker.log_pool(pool_snapshot(5))
    tracker.flush()
    assert from_json(PoolSnapshot, read_json(tmp_path / "pool.json")) == pool_snapshot(5)
    first, second = read_jsonl(tmp_path / "ratings.jsonl")
    assert (first["step"], first["current"], first["ratings"]) == (0, "base", {"base": [25.0, 4.0]})
    assert (second["step"], second["coverage"]) == (1, {"SimpleTak-v0-train": 0.375})
    assert list(second["ratings"]) == ["step-5", "step-4", "step-3"]
    # One curve for the newest policy, none per checkpoint.
    written = {key for _, scalars in sink.flushed for key in scalars if key.startswith("pool/")}
    newest = {f"pool/current/{name}" for name in ("mu", "sigma", "games")}
    assert written == {"pool/coverage/SimpleTak-v0-train", *newest}
    assert sink.curve("pool/current/mu") == [(0, 25.0), (1, 30.0)]
    assert sink.curve("pool/current/games") == [(0, 0), (1, 50)]
    progress = tracker.progress()
    assert [row.uid for row in progress.ratings][:2] == ["step-5", "step-4"]
    first_match = progress.matches[0]
    assert (first_match.first, first_match.second, first_match.games) == ("step-4", "step-5", 11)
    assert len(progress.matches) == 5  # each pair once


def test_an_opponent_that_is_no_version_has_curves_of_its_own(tracker, sink):
    for games in (3, 9):
        snapshot = pool_snapshot(2)
        rated = {"uid": "win_block", "role": "guest", "games": games}
        opponent = dataclasses.replace(snapshot.entries[0], **rated)
        tracker.log_pool(dataclasses.replace(snapshot, entries=(*snapshot.entries, opponent)))
        tracker.log_learner(update(games), {})
    tracker.flush()
    assert sink.curve("pool/win_block/games") == [(0, 3), (3, 9)]
    assert {step for step, _ in sink.curve("pool/win_block/mu")} == {0, 3}
    assert sink.curve("pool/step-2/mu") == []


def test_users_numbers_are_in_the_next_updates_line_and_in_the_sinks(tmp_path, tracker, sink):
    tracker.log_scalars({"custom/curiosity": 1.0})
    tracker.log_scalars({"custom/curiosity": 3.0, "custom/a/b": 4.0})
    tracker.log_learner(update(1), {})
    tracker.log_learner(update(2), {})
    tracker.log_scalars({"custom/curiosity": 8.0})
    tracker.flush()
    first, second = read_jsonl(tmp_path / "metrics.jsonl")
    assert (first["custom/curiosity"], first["custom/a/b"]) == (2.0, 4.0)
    assert not any(key.startswith("custom/") for key in second)
    assert sink.curve("custom/curiosity") == [(1, 2.0)]
    assert sink.curve("custom/a/b") == [(1, 4.0)]
    tracker.close({})  # what no update follows is recorded at the end
    assert sink.curve("custom/curiosity") == [(1, 2.0), (2, 8.0)]


def test_gpus_are_recorded_as_far_as_they_are_measured(tmp_path, tracker, sink):
    first = GpuLoad(index=0, name="A", used=2**30, memory=2**33, power=100.0, limit=300.0, busy=0.5)
    for power in (100.0, 200.0):
        tracker.log_gpus((dataclasses.replace(first, power=power), MODEST))
    assert tracker.progress().gpus[1] == MODEST
    assert from_json(Progress, to_json(tracker.progress())).gpus == tracker.progress().gpus
    tracker.log_learner(update(1), {})
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


def test_sinks_are_flushed_by_the_clock(new_tracker, sink, clock):
    tracker = new_tracker(sink, flush_every_s=64.0)
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


def test_progress_json_follows_once_a_second(tmp_path, tracker, clock):
    tracker.add_games([equal_turns()])
    assert read_json(tmp_path / "progress.json")["games"] == 0
    clock.now += 1
    tracker.tick()
    assert read_json(tmp_path / "progress.json")["games"] == 1


def test_a_resumed_run_continues_at_its_checkpoint(tmp_path, tracker, new_tracker, clock):
    tracker.add_eval(evaluation(0, 33))
    for step in range(1, 6):
        clock.now += 10
        tracker.add_games([equal_turns() for _ in range(4)])
        tracker.log_learner(update(step), SHARES)
        tracker.add_eval(evaluation(step, 40 + step))
        tracker.log_pool(pool_snapshot(step))

    clock.now += 1000  # the first process dies here
    sink = Memory()
    again = new_tracker(sink)
    assert (again.progress().update, again.progress().games) == (5, 20)
    clock.now += 5  # in which the model is loaded
    again.resume(3)
    progress = again.progress()
    assert sink.rewound == [3]
    assert (progress.update, progress.games, progress.tokens) == (3, 12, 48)
    # The seconds of the updates that are made again count: the clock does not go back.
    assert (progress.samples, progress.elapsed_s) == (192, 55.0)
    assert progress.win_rates[0].history == (0.33, 0.41, 0.42, 0.43)
    clock.now += 10
    again.add_games([equal_turns()])
    again.log_learner(update(4), SHARES)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    found = [(row["step"], row["games"], row["time_s"]) for row in rows]
    assert found == [(1, 4, 10), (2, 8, 20), (3, 12, 30), (4, 13, 65)]
    assert rows[-1]["games_per_s"] == pytest.approx(0.1)
    assert [row["step"] for row in read_jsonl(tmp_path / "evals.jsonl")] == [0, 1, 2, 3]
    assert [row["step"] for row in read_jsonl(tmp_path / "ratings.jsonl")] == [1, 2, 3]


def test_a_run_resumes_over_lines_that_another_program_wrote(tmp_path, tracker, new_tracker, clock):
    for step in (1, 2):
        clock.now += 10
        tracker.add_games([equal_turns()])
        tracker.log_learner(update(step), SHARES)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"loss": 0.5}\n{"step": 3, "loss": 0.5}\n')
    again = new_tracker()
    again.resume(3)
    progress = again.progress()
    assert (progress.update, progress.games, progress.elapsed_s) == (3, 2, 20.0)
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2, 3]


def test_what_is_played_without_a_batch_is_judged_as_often_as_a_batch_has_samples(
    new_tracker, sink
):
    config = RunConfig(learner=dataclasses.replace(RunConfig().learner, batch_size=16))
    tracker = new_tracker(sink, judge=lambda: Judge(config))
    games = [equal_turns(f"g{n}", turns=0, end_reason="context_limit") for n in range(16)]
    waiting = {"buffer_size": 0.0}
    tracker.add_games(games[:15])
    tracker.log_wait(waiting)
    assert tracker.progress().signals == ()
    tracker.add_games(games[15:])
    tracker.log_wait(waiting)
    tracker.log_wait(waiting)
    assert [one.name for one in tracker.progress().signals] == ["context_limit"]
    assert tracker.final_signals() == []  # the second look saw no more games
    tracker.add_games(games)
    tracker.log_wait(waiting)
    assert [one.name for one in tracker.final_signals()] == ["context_limit"]
    assert sink.curve("signals/context_limit") == sink.curve("signals/no_batch") == [(0, 1.0)]


def test_a_run_that_fails_before_its_first_update_says_which_games_it_had(tmp_path, new_tracker):
    tracker = new_tracker(judge=lambda: Judge(RunConfig()))
    tracker.add_games([equal_turns(f"g{n}", error="GameError: it broke") for n in range(32)])
    tracker.close({"status": "failed", "error": "32 games failed in a row"})
    [signal] = read_json(tmp_path / "summary.json")["signals"]
    assert (signal["name"], signal["step"], signal["weight"]) == ("failed_games", 0, "final")


def test_close_writes_the_summary_once(tmp_path, tracker, sink):
    tracker.log_learner(update(1), SHARES)
    tracker.add_eval(evaluation(1, 70))
    tracker.close({"status": "interrupted", "objective": 0.7})
    tracker.close({"status": "done"})
    summary = read_json(tmp_path / "summary.json")
    assert (summary["status"], summary["objective"], summary["updates"]) == ("interrupted", 0.7, 1)
    assert (summary["seed"], summary["versions"]) == (7, {"torch": "2.13.0"})
    assert summary["evaluations"][0]["win_rate"] == 0.7
    assert read_json(tmp_path / "progress.json")["status"] == "interrupted"
    assert (len(sink.flushed), sink.closed) == (2, 1)


def test_a_sink_that_fails_keeps_neither_files_nor_other_sinks_from_being_written(
    tmp_path, new_tracker, sink
):
    broken = Scalars()
    broken.error = ConnectionError("no server")
    tracker = new_tracker(JsonlSink(), broken, sink)
    tracker.log_learner(update(1), SHARES)
    tracker.add_eval(evaluation(1, 70))
    failed = "Scalars failed at step 1 (no server): points from step 1 on may be missing there"
    assert [line.partition(";")[0] for line in tracker.said()] == [failed]
    assert tracker.close({"status": "done"}) == ["upload RUN"]
    summary = read_json(tmp_path / "summary.json")
    assert (summary["status"], summary["sinks"]) == ("done", {"Scalars": failed})
    assert (len(sink.flushed), sink.closed) == (2, 1)


def test_updates_and_evaluations_are_points_at_their_versions_also_of_a_resumed_run(
    tmp_path, clock
):
    """Written by the sinks of the configuration; evaluations end after later updates."""
    for first, last in ((1, 25), (19, 40)):
        tracker = Tracker(tmp_path, TrackerConfig(), "demo", 40, clock=clock)
        tracker.resume(first - 1)
        for step in range(first, last + 1):
            clock.now += 1.5
            tracker.log_learner(update(step, lag_max=float(step % 3)), SHARES)
            tracker.log_inference("engine-0", LOAD)
            if step % 10 == 4 and step > 4:
                for opponent in ("base", "random_legal"):
                    tracker.add_eval(evaluation(step - 4, 33 + step, opponent=opponent))
    tracker.close({})
    rows = read_jsonl(tmp_path / "scalars.jsonl")

    def curve(key):
        return [(row["step"], row[key]) for row in rows if key in row]

    steps = range(1, 41)
    assert curve("learner/loss") == [(step, 0.5 / step) for step in steps]
    assert curve("learner/samples_seen") == [(step, 64 * step) for step in steps]
    assert curve("learner/lag_max") == [(step, step % 3) for step in steps]
    for opponent in ("base", "random_legal"):
        win_rate = f"evaluation-SimpleTak-v0-train/{opponent}/win_rate"
        assert curve(win_rate) == [(10, 0.47), (20, 0.57), (30, 0.67)]


def test_ratings_and_games_go_as_tables_to_sinks_that_take_them(tmp_path, new_tracker, sink, clock):
    tracker = new_tracker(sink, Scalars())
    tracker.log_pool(pool_snapshot(1))
    tracker.log_pool(pool_snapshot(2))
    clock.now += 65
    tracker.tick()
    (_, name, rows), (_, other, matches) = sink.tables
    assert (name, [row["uid"] for row in rows]) == ("ratings", ["step-2", "step-1", "base"])
    assert (other, matches[0]) == ("matches", {"first": "step-1", "second": "step-2", "games": 8})
    assert rows[0].items() >= {"mu": 27.0, "sigma": 4.0, "games": 20}.items()
    clock.now += 65
    tracker.tick()  # no newer ratings
    write_games(tmp_path, equal_turns("one", turns=3), equal_turns("two", turns=1))
    assert tracker.close({}) == ["upload RUN"]
    assert tracker.close({}) == []
    *_, (_, name, turns) = sink.tables
    played = [(row["game_id"], row["turn"]) for row in turns]
    assert (name, played) == ("games", [("one", 1), ("one", 2), ("one", 3), ("two", 1)])
    assert turns[0]["observation"] == "board"


def test_a_damaged_file_of_games_does_not_keep_a_run_from_its_end(tmp_path, tracker, sink, caplog):
    (tmp_path / "games" / "games-000001.parquet").write_text("no parquet")
    tracker.close({})
    assert (sink.tables, sink.closed) == ([], 1)
    assert "games-000001.parquet is damaged" in caplog.text


@pytest.mark.parametrize(
    ("choice", "handed"), [("off", []), ("last", ["step-10"]), ("all", ["step-9", "step-10"])]
)
def test_versions_are_handed_over_at_the_end_by_choice(choice, handed, tmp_path, new_tracker, sink):
    tracker = new_tracker(sink, adapters=choice)
    for version in (9, 10):
        folder = tmp_path / "checkpoints"
        write_checkpoint(folder, f"step-{version}", lambda path: None, {"version": version})
    tracker.close({})
    assert sink.adapters == handed


def test_nan_is_shown_live_and_null_on_disk(tmp_path, tracker):
    tracker.log_learner(update(1, loss=float("nan")), {})
    assert read_jsonl(tmp_path / "metrics.jsonl")[0]["loss"] is None
    assert from_json(Progress, read_json(tmp_path / "progress.json")).learner["loss"] is None
    assert str(tracker.progress().learner["loss"]) == "nan"
