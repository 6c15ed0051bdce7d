"""Whole runs as a user starts them: real Ray, real engine, real games, a model of a few neurons."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.in_process import rlforge_here, use_actors_in_process
from tests.harness.live_run import (
    actor_pids,
    change_config,
    rows,
    run,
    start,
    train_arguments,
    wait_for,
)

import rlforge.learner.learner
from rlforge.buffer.batches import read_batch
from rlforge.local.exploit import exploit_run
from rlforge.system.checkpoint import (
    checkpoint_version,
    latest_checkpoint,
    list_checkpoints,
    read_manifest,
)
from rlforge.system.locks import RunLock
from rlforge.tracking.game_files import read_games
from rlforge.tracking.report import write_report

pytestmark = pytest.mark.timeout(900)  # several processes import torch, on a machine with others


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except FileNotFoundError:
        return False


def all_pids() -> list[int]:
    logs = Path("run/logs").glob("*.log")
    return [pid for log in logs if "crash" not in log.name for pid in actor_pids(log.stem)]


@pytest.fixture
def train_kuhn(small_model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Train by groups at Kuhn poker, with the overrides that are given, in this process."""
    use_actors_in_process(monkeypatch.setattr)

    def train(*overrides: str) -> None:
        common = ("hardware=cpu", "+experiment=kuhn_grpo", "algorithm.group_size=4")
        assert rlforge_here(*train_arguments(small_model, *common, *overrides)) == 0

    return train


def listened_on(pid: int) -> set[str]:
    """Addresses on which a process takes connections."""
    sockets = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            sockets.add(str(file.readlink()))
    addresses = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                # The last four bytes, which the kernel prints as a little-endian number.
                number = int(local.partition(":")[0][-8:], 16)
                addresses.add(str(ipaddress.IPv4Address(number.to_bytes(4, "little"))))
    return addresses


def test_a_synchronous_run_leaves_the_whole_run_directory(small_model: Path) -> None:
    done = run(*train_arguments(small_model, "buffer.max_staleness=0"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(Path("run").absolute())
    for name in ("config.yaml", "graph.json", "pool.json", "summary.json", "report.html"):
        assert (Path("run") / name).is_file(), name
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3]
    for row in metrics:
        assert row["lag_max"] == 0
        assert row["logprob_gap_mean"] <= 1e-4
        assert row["logprob_gap_max"] <= 1e-2
    evals = rows("evals.jsonl")
    assert {(row["step"], row["opponent"]) for row in evals} == {
        (step, opponent) for step in (0, 3) for opponent in ("base", "random_legal")
    }
    assert all(row["wins"] + row["draws"] + row["losses"] == row["games"] == 4 for row in evals)
    checkpoints = list_checkpoints(Path("run/checkpoints"))
    assert [path.name for path in checkpoints] == ["step-1", "step-2", "step-3"]
    assert read_manifest(checkpoints[-1]).has_state
    games = read_games(Path("run"))
    training = [game for game in games if game.spec.purpose == "train"]
    # On-policy means no waste: three batches of 32 episodes are 48 games of two seats.
    assert len(training) == 48
    assert {turn.completion.policy_version for game in training for turn in game.turns} == {0, 1, 2}
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["status"], summary["updates"], summary["seed"]) == ("done", 3, 0)
    assert not any(map(alive, all_pids()))
    assert "results: run/report.html" in done.stderr
    assert "next: rlforge play --run run; rlforge export run DIR" in done.stderr
    log = Path("run/logs/run.log").read_text()
    moments = (
        "run started",
        "run directory",
        "step-0 against",
        "step-3 is saved",
        "is done after",
    )
    places = [log.find(moment) for moment in moments]
    assert -1 < places[0] < places[1] < places[2] < places[3] < places[4], log
    assert "--resume can continue from step-3" in log


def test_a_run_survives_dead_actors_stops_at_ctrl_c_and_resumes(
    small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = ("learner.total_updates=400", "learner.state_every=1000")
    endless += ("learner.save_every=2", "eval.every=3")
    process = start(*train_arguments(small_model, *endless, "engine.num_engines=2"))
    wait_for(lambda: len(rows("metrics.jsonl")) >= 1, process)
    for name in ("engine-0", "collector-0"):
        # Ray by itself would lower the priority of its processes.
        assert os.getpriority(os.PRIO_PROCESS, actor_pids(name)[-1]) == os.getpriority(
            os.PRIO_PROCESS, process.pid
        )
        os.kill(actor_pids(name)[-1], signal.SIGKILL)
        wait_for(lambda name=name: len(actor_pids(name)) == 2, process)
        so_far = len(rows("metrics.jsonl"))
        wait_for(lambda so_far=so_far: len(rows("metrics.jsonl")) >= so_far + 3, process)
    wait_for(lambda: any(row["step"] == 2 for row in rows("evals.jsonl")), process)
    capsys.readouterr()
    assert rlforge_here("train", "--resume", "run") == 1
    busy = capsys.readouterr().err
    assert "run" in busy
    assert str(process.pid) in busy

    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "rlforge train --resume" in stderr
    assert "Traceback" not in stderr
    assert stdout.splitlines()[-1] == str(Path("run").absolute())
    assert not any(map(alive, all_pids()))
    assert json.loads(Path("run/summary.json").read_text())["restarts"] == 2
    scalars = rows("scalars.jsonl")
    for engine in ("engine-0", "engine-1"):
        assert max(row.get(f"inference/{engine}/tok_s", 0) for row in scalars) > 0
    assert overlap() > 1e-3
    newest = latest_checkpoint(Path("run/checkpoints"), with_state=True)
    assert newest is not None
    stopped_at = checkpoint_version(newest, verify=True)
    assert stopped_at == rows("metrics.jsonl")[-1]["step"]

    change_config("total_updates", 400, stopped_at + 2)
    resumed = run("train", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, stopped_at + 3))
    assert metrics[-1]["samples_seen"] > metrics[stopped_at - 1]["samples_seen"]
    training = [game for game in read_games(Path("run")) if game.spec.purpose == "train"]
    assert len({game.spec.game_id for game in training}) == len(training)
    evals = rows("evals.jsonl")
    assert all(row["policy_uid"] == f"step-{row['step']}" for row in evals)
    assert len({(row["step"], row["opponent"]) for row in evals}) == len(evals)
    assert {0, 2, stopped_at + 2} <= {row["step"] for row in evals}
    assert rlforge_here("train", "--resume", "run") == 1
    assert "already finished" in capsys.readouterr().err


def test_sigterm_while_the_actors_start_ends_all_processes(small_model: Path) -> None:
    # A shell script starts background processes with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = start(*train_arguments(small_model))
    signal.signal(signal.SIGINT, before)
    wait_for(lambda: bool(Path("run/logs").is_dir() and all_pids()), process)
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stderr.splitlines()[-1] == (
        "rlforge: interrupted at once, before a state was saved; start it again with: "
        f"rlforge train --resume {Path('run').absolute()}"
    )
    assert json.loads(Path("run/summary.json").read_text())["status"] == "interrupted"
    assert "SIGTERM" not in stderr  # Ray's own message
    assert not any(map(alive, all_pids()))


@pytest.mark.slow  # tests/actors/test_engine.py has the engine alone
def test_an_alternating_engine_killed_during_an_update_loads_after_it(
    small_model: Path,
) -> None:
    process = start(
        *train_arguments(small_model, "hardware.alternate=true", "learner.total_updates=6")
    )
    wait_for(lambda: len(rows("metrics.jsonl")) >= 1, process)
    learner = actor_pids("learner")[-1]
    wait_for(lambda: stopped_in_its_turn(learner), process)
    try:
        os.kill(actor_pids("engine-0")[-1], signal.SIGKILL)
        wait_for(lambda: len(actor_pids("engine-0")) == 2, process)
        time.sleep(1.0)
        assert Path("run/logs/engine-0.log").read_text().count("the engine is loaded") == 1
    finally:
        os.kill(learner, signal.SIGCONT)
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, 7))
    assert all(row["seconds_switch"] > 0 for row in metrics)
    assert Path("run/logs/engine-0.log").read_text().count("the engine is loaded") == 2
    # Engine, learner and idle shares add up to 1 only where no work overlaps.
    assert overlap() < 1e-6
    assert not (Path("run") / "learning").exists()


@pytest.mark.slow
def test_an_alternating_learner_killed_in_an_update_ends_the_resumable_run(
    small_model: Path,
) -> None:
    settings = ("hardware.alternate=true", "learner.total_updates=300", "learner.state_every=1")
    process = start(*train_arguments(small_model, *settings))
    wait_for(lambda: len(rows("metrics.jsonl")) >= 2, process)
    learner = actor_pids("learner")[-1]
    wait_for(lambda: stopped_in_its_turn(learner), process)
    os.kill(learner, signal.SIGKILL)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    last = stderr.splitlines()[-1]
    assert "the learner died" in last
    assert "--resume" in last
    assert "Traceback" not in stderr
    assert json.loads(Path("run/summary.json").read_text())["status"] == "failed"
    assert not any(map(alive, all_pids()))  # no engine is left asleep
    assert not (Path("run") / "learning").exists()

    updates = len(rows("metrics.jsonl"))
    change_config("total_updates", 300, updates + 2)
    resumed = run("train", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert [row["step"] for row in rows("metrics.jsonl")] == list(range(1, updates + 3))


def stopped_in_its_turn(learner: int) -> bool:
    """Stop the learner's process during an update; returns whether that succeeded."""
    turn = Path("run") / "learning"
    for _ in range(1000):
        if turn.exists():
            os.kill(learner, signal.SIGSTOP)
            time.sleep(0.5)
            if turn.exists():
                return True
            os.kill(learner, signal.SIGCONT)
        time.sleep(0.001)
    return False


def overlap() -> float:
    """Share of the run's time in which engines and learner both worked."""
    summary = json.loads(Path("run/summary.json").read_text())
    return summary["engine_share"] + summary["learner_share"] + summary["idle_share"] - 1


@pytest.mark.slow
def test_several_ranks_train_and_a_dead_one_ends_the_run(small_model: Path) -> None:
    ranks = ("learner.num_learners=2", "learner.shard_weights=true", "learner.state_every=2")
    ranks += ("eval.continuous=true", "eval.max_games_per_checkpoint=6")
    process = start(
        *train_arguments(small_model, *ranks, "learner.total_updates=300", "learner.state_every=2")
    )
    wait_for(lambda: len(rows("metrics.jsonl")) >= 3, process)
    assert not {address for pid in all_pids() for address in listened_on(pid)} - {"127.0.0.1"}
    os.kill(actor_pids("learner-1")[-1], signal.SIGKILL)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    last = stderr.splitlines()[-1]
    assert "the learner-1 died" in last
    assert "logs/learner-1.log" in last
    assert "Traceback" not in stderr
    assert not any(map(alive, all_pids()))
    change_config("total_updates", 300, 5)
    resumed = run("train", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4, 5]
    assert all(row["logprob_gap_mean"] <= 1e-4 for row in metrics)
    evals = rows("evals.jsonl")
    assert len({(row["step"], row["opponent"]) for row in evals}) == len(evals)
    games = {step: sum(row["games"] for row in evals if row["step"] == step) for step in range(6)}
    assert (games[0], games[5]) == (6, 6)
    assert all(games[step] in (0, 2, 4, 6) for step in range(1, 5))
    assert any(games[step] for step in range(1, 5))


@pytest.mark.slow
def test_resume_starts_over_when_no_state_was_saved(small_model: Path) -> None:
    process = start(
        *train_arguments(small_model, "learner.total_updates=300", "learner.state_every=1000")
    )
    wait_for(lambda: rows("metrics.jsonl") != [] and len(rows("evals.jsonl")) >= 2, process)
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(map(alive, all_pids())):
        assert time.monotonic() < deadline, "the actors outlive their run"
        time.sleep(0.2)
    change_config("total_updates", 300, 2)
    resumed = run("train", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert [row["step"] for row in rows("metrics.jsonl")] == [1, 2]
    assert [row["step"] for row in rows("evals.jsonl")] == [0, 0, 2, 2]
    games = [game for game in read_games(Path("run")) if game.spec.purpose == "train"]
    assert len({game.spec.game_id for game in games}) == len(games)


def test_a_sweep_runs_its_jobs_for_real(
    small_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Several runs over Ray in one process are in tests/test_api.py.
    use_actors_in_process(monkeypatch.setattr)
    arguments = train_arguments(small_model, "learner.total_updates=1", "hardware=cpu")
    arguments.remove("run_dir=run")
    code = rlforge_here(*arguments, "-m", "seed=3,4", "eval.games=2", "eval.final_games=2")
    out, err = capsys.readouterr()
    assert code == 0, err
    sweep = Path(out.splitlines()[-1])
    seeds = [json.loads((sweep / job / "summary.json").read_text())["seed"] for job in ("0", "1")]
    assert seeds == [3, 4]
    assert "HYDRA" not in out + err
    assert not list(sweep.glob("**/rlforge.log"))
    assert "[2/2 seed=4] " in err
    assert f"next: rlforge report {sweep}" in err


def test_grpo_groups_against_lagged_opponents(train_kuhn: Callable[..., None]) -> None:
    train_kuhn(
        "pool=lagged",
        "pool.max_active_lora=3",
        "pool.lag_range=[1,2]",
        "learner.total_updates=4",
        "learner.keep_checkpoints=0",
    )
    games = list(read_games(Path("run")))
    assert [game.error for game in games if game.error is not None] == []
    assert {path.name for path in list_checkpoints(Path("run/checkpoints"))} >= {"step-3", "step-4"}
    training = [game for game in games if game.spec.purpose == "train"]
    groups: dict[str | None, set[tuple[int, tuple[str, ...]]]] = {}
    for game in training:
        line_up = tuple(seat.policy.uid for seat in game.spec.seats)
        groups.setdefault(game.spec.group_id, set()).add((game.spec.seed, line_up))
    assert None not in groups
    assert all(len(starts) == 1 for starts in groups.values())
    assert any(len(set(line_up)) == 2 for starts in groups.values() for _, line_up in starts)
    pool = json.loads(Path("run/pool.json").read_text())
    assert sum(bool(entry["active"]) for entry in pool["entries"] if entry["version"]) <= 3


def test_groups_begin_at_turns_of_finished_games_and_learn_from_the_turns_after(
    train_kuhn: Callable[..., None],
) -> None:
    train_kuhn(
        "pool=lagged",
        "algorithm=branch_grpo",
        "learner.total_updates=6",
    )
    games = {game.spec.game_id: game for game in read_games(Path("run"), purpose="train")}
    assert [game.error for game in games.values() if game.error is not None] == []
    branched = {name: game for name, game in games.items() if game.spec.past is not None}
    assert 0 < len(branched) < len(games)
    for game in branched.values():
        assert game.spec.past
        assert game.turns[: len(game.spec.past)] == game.spec.past
    learned = Counter(
        (step.game_id, step.player_id)
        for path in Path("run/batches").glob("*.parquet")
        for step in read_batch(path).steps
    )
    assert any(name in branched for name, _ in learned)
    for (name, player), count in learned.items():
        new = [turn for turn in games[name].new_turns if turn.player_id == player]
        assert count == len(new), name
    pool = json.loads(Path("run/pool.json").read_text())
    assert sum(entry["games"] for entry in pool["entries"]) > 0


def test_versions_are_measured_exactly_as_they_are_evaluated(
    train_kuhn: Callable[..., None],
) -> None:
    """By an algorithm that reads legal actions and refers to a snapshot, in a resumed run, too."""
    train_kuhn(
        "algorithm=nash_pg",
        "algorithm.kl.refresh_every=2",
        "learner.average=moving",
        "learner.total_updates=4",
        "eval.every=2",
        "eval.exploitability=true",
    )
    assert rlforge_here("train", "--resume", "run", "--more", "1") == 0
    found = {row["step"]: row for row in rows("exact.jsonl")}
    assert list(found) == [0, 2, 4, 5]
    measured = exploit_run(Path("run"), ["step-0", "step-2", "step-5", "average"])
    *saved, average = measured
    for exact in saved:
        row = found[exact.step]
        assert row["nash_conv"] == pytest.approx(exact.nash_conv, abs=1e-4)
        assert row["gains"] == pytest.approx(exact.gains, abs=1e-4)
        assert row["illegal"] == pytest.approx(exact.illegal, abs=1e-4)
    assert average.policy_uid == "step-5-average"
    assert average.nash_conv != pytest.approx(saved[-1].nash_conv, abs=1e-6)
    steps = [
        step for path in Path("run/batches").glob("*.parquet") for step in read_batch(path).steps
    ]
    legal = [step for step in steps if step.info["legal"] and step.legal_tokens]
    assert legal
    for step in legal:
        assert all(t in tokens for t, tokens in zip(step.token_ids, step.legal_tokens, strict=True))
    assert all("kl" in row for row in rows("metrics.jsonl"))


@pytest.mark.slow  # tests/learner/test_real_algorithms.py and tests/buffer have its parts alone
def test_dynamic_sampling_trains_on_groups_with_advantages_only(small_model: Path) -> None:
    done = run(
        *train_arguments(
            small_model,
            "+experiment=kuhn_grpo",
            "algorithm=dapo",
            "algorithm.group_size=4",
            "algorithm.loss=sequence_clip",
            "algorithm.importance=mask",
            "rewards=wins",
            "learner.optimizer_steps=2",
        )
    )
    assert done.returncode == 0, done.stderr
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3]
    assert all("importance_masked_fraction" in row for row in metrics)
    assert sum(row["episodes_replaced"] for row in metrics) > 0
    for update in (1, 2, 3):
        scores: dict[str | None, set[tuple[int, float]]] = {}
        for step in read_batch(Path(f"run/batches/batch-{update:06d}.parquet")).steps:
            scores.setdefault(step.group_id, set()).add((step.player_id, step.reward))
        assert all(len(found) > len(dict(found)) for found in scores.values())


def test_bad_config_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert rlforge_here("train", "+experiment=simpletak_mirror", "learner.lerning_rate=1") == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) <= 2
    assert "learner.learning_rate" in said
    assert list(Path().iterdir()) == []


def test_a_model_without_its_weights_is_one_message(
    small_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = shutil.copytree(small_model, tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    done = run(*train_arguments(broken))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"model '{broken}' cannot be loaded" in done.stderr.splitlines()[-1]
    for name in ("summary.json", "progress.json"):
        assert json.loads((Path("run") / name).read_text())["status"] == "failed"
    capsys.readouterr()
    assert rlforge_here("monitor", "run") == 0
    assert f"failed: model '{broken}' cannot be loaded" in capsys.readouterr().out
    assert not any(map(alive, all_pids()))


def test_a_run_directory_in_use_is_refused(small_model: Path) -> None:
    Path("run").mkdir()
    with RunLock(Path("run")):
        done = run(*train_arguments(small_model))
    assert done.returncode == 1
    assert f"{os.getpid()}" in done.stderr.splitlines()[-1]


def test_a_collapse_is_reported_and_the_run_goes_back_to_before_it(
    train_kuhn: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The entropy of the updates from the twelfth on is an eighth of what it was."""
    measure = rlforge.learner.learner.logprob_metrics

    def planted(*arguments: Any) -> dict[str, float]:
        metrics = measure(*arguments)
        if arguments[-1] >= 11:  # updates before it
            metrics["entropy"] /= 8
        return metrics

    monkeypatch.setattr(rlforge.learner.learner, "logprob_metrics", planted)
    train_kuhn(
        "algorithm=nash_pg",
        "learner.total_updates=18",
        "learner.warmup_updates=0",
        "learner.schedule=constant",
        "learner.keep_checkpoints=0",
        "sentinel.actions=[opponents,rollback,magnet,smaller_steps]",
        "sentinel.watch=[entropy]",
        "sentinel.warmup=6",
    )
    (alarm,) = rows("sentinel.jsonl")
    at = alarm["step"]
    assert (alarm["signal"], alarm["since"], alarm["good"]) == ("entropy", 12, 11)
    assert 12 < at <= 15
    assert alarm["observed"] < alarm["expected"] / 4
    done = ["opponents from the past", "rollback to step-11", "new snapshot as reference"]
    assert alarm["actions"] == [*done, "learning rate × 0.5"]
    assert f"sentinel, update {at}: entropy: " in capsys.readouterr().err
    parents = {
        path.name: read_manifest(path).meta["parent_uid"]
        for path in list_checkpoints(Path("run/checkpoints"))
    }
    assert parents[f"step-{at}"] == "step-11"
    assert parents["step-18"] == "step-17"
    rates = {row["step"]: row["lr"] for row in rows("metrics.jsonl")}
    assert rates[at + 1] == rates[at] / 2
    pool = json.loads(Path("run/pool.json").read_text())
    assert pool["mode"] == "fictitious"
    page = write_report(Path("run")).read_text()
    assert "rollback to step-11" in page
