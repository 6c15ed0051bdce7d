"""Whole runs with the actors in the test's process, a real engine and games, and a small model."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.in_process import rlforge_here
from tests.harness.live_run import rows
from tests.run.conftest import Train

import rlforge.learner.learner
from rlforge.buffer.batches import read_batch, read_samples
from rlforge.errors import RunError
from rlforge.lab.exact.exploit import exploit_run
from rlforge.lab.verify.check import verify
from rlforge.learner import Learner
from rlforge.record.game_files import read_games
from rlforge.run.actors.learner import LearnerActor
from rlforge.run.collection import Flow
from rlforge.samples import TrainBatch
from rlforge.show.report import write_report
from rlforge.system.checkpoint import list_checkpoints, read_manifest


@pytest.fixture
def train_kuhn(train: Train) -> Callable[..., str]:
    """Train by groups at Kuhn poker; returns what is on standard error."""

    def trained(*overrides: str) -> str:
        done = train("+experiment=kuhn_grpo", "algorithm.group_size=4", *overrides)
        assert done.code == 0, done.err
        return done.err

    return trained


def test_a_synchronous_run_leaves_the_whole_run_directory(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlforge.launch.game_notes", lambda config: ("games take seconds",))
    code, out, err = train("buffer.max_staleness=0", "learner.batch_size=16")
    assert code == 0, err
    assert out.splitlines()[-1] == str(Path("run").absolute())
    for name in ("config.yaml", "plan.json", "pool.json", "summary.json", "report.html"):
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
    # On-policy means no waste: three batches of 16 episodes are 24 games of two seats.
    assert len(training) == 24
    assert {turn.completion.policy_version for game in training for turn in game.turns} == {0, 1, 2}
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["status"], summary["updates"], summary["seed"]) == ("done", 3, 0)
    assert "results: run/report.html" in err
    assert "next: rlforge play --run run; rlforge export run my-model --merge" in err
    log = Path("run/logs/run.log").read_text()
    assert "note: games take seconds\n" in err
    moments = ("run started", "note: games take seconds\n", "run directory")
    moments += ("step-0 against", "step-3 is saved", "is done after")
    places = [log.find(moment) for moment in moments]
    assert -1 not in places, log
    assert places == sorted(places), log
    assert "--resume can continue from step-3" in log


def test_a_run_that_is_killed_after_a_state_has_what_the_state_refers_to(
    train_kuhn: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save, kept = LearnerActor.save_state, threading.Event()

    def save_and_keep(actor: LearnerActor, *given: Any) -> None:
        save(actor, *given)
        if not kept.is_set():
            shutil.copytree("run", "killed")
            kept.set()

    async def after_the_state(flow: Flow, *given: Any) -> Any:
        await asyncio.to_thread(kept.wait)
        return await evaluate(flow, *given)

    evaluate = Flow.evaluate
    monkeypatch.setattr(LearnerActor, "save_state", save_and_keep)
    monkeypatch.setattr(Flow, "evaluate", after_the_state)
    train_kuhn(
        *("learner.total_updates=3", "learner.state_every=2", "eval.every=1"),
        *("eval.games=4", "eval.final_games=8"),
    )
    at_state = [json.loads(line) for line in Path("killed/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in at_state] == [1, 2]
    assert not Path("killed/evals.jsonl").read_text()
    assert rlforge_here("train", "--resume", "killed") == 0
    evals = [json.loads(line) for line in Path("killed/evals.jsonl").read_text().splitlines()]
    games = {(row["step"], row["games"]) for row in evals}
    assert games == {(0, 8), (1, 4), (2, 4), (3, 8)}
    assert [row["step"] for row in evals] == sorted(row["step"] for row in evals)
    assert verify(Path("killed"), whole=True).problems == []


def test_the_batch_that_an_update_fails_with_is_written(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(learner: Learner, batch: TrainBatch) -> None:
        raise RunError("loss or gradient were not finite")

    monkeypatch.setattr(Learner, "update", fails)
    assert train("learner.batch_size=16").code == 1
    samples = read_samples(Path("run/batches/batch-000001.parquet"))
    assert len({one.sample.episode for one in samples}) == 16
    assert {one.advantage for one in samples} == {None}


HOLDS = """import time
from pathlib import Path


def mode(view):
    while Path("hold").exists() and Path("run/metrics.jsonl").exists():
        time.sleep(0.05)
    return dict.fromkeys(view.opponents or [view.current], 1.0)
"""


def test_a_sampling_mode_that_does_not_return_ends_the_run(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlforge.run.actors.cluster.HELD_S", 1.0)
    Path("holds.py").write_text(HOLDS)
    Path("hold").touch()
    code, _, err = train("pool.mode=holds:mode", "learner.total_updates=400", "eval.every=0")
    Path("hold").unlink()
    assert code == 1
    said = "pool does not answer: code of yours holds its process; mend it or leave it out, then go"
    assert said in err
    assert json.loads(Path("run/summary.json").read_text())["status"] == "failed"


SLOW = """import time
from dataclasses import dataclass


@dataclass
class Slow:
    def open(self, run, name): return self
    def write(self, step, scalars): pass
    def rewind(self, step): pass
    def close(self): time.sleep(1)
"""


def test_a_sink_that_takes_long_to_close_is_a_line(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlforge.run.lifecycle.HELD_S", 0.5)
    Path("slow.py").write_text(SLOW)
    own = ("tracker.sinks=[{name: 'slow:Slow'}]", "learner.total_updates=1", "eval.every=0")
    code, _, err = train(*own, "eval.final_games=2", "learner.batch_size=4")
    assert code == 0, err
    assert "the sinks of the tracker are still being closed" in err


@pytest.mark.slow
def test_a_sweep_runs_its_jobs_for_real(train: Train) -> None:
    # Several runs over Ray in one process are in tests/test_api.py.
    small = ("learner.total_updates=1", "learner.batch_size=4", "eval.games=2")
    code, out, err = train(*small, "eval.final_games=2", "-m", "seed=3,4", without="run_dir=run")
    assert code == 0, err
    sweep = Path(out.splitlines()[-1])
    seeds = [json.loads((sweep / job / "summary.json").read_text())["seed"] for job in ("0", "1")]
    assert seeds == [3, 4]
    assert "HYDRA" not in out + err
    assert not list(sweep.glob("**/rlforge.log"))
    assert "[2/2 seed=4] " in err
    assert f"next: rlforge report {sweep}" in err


@pytest.mark.slow
def test_groups_with_advantages_only_play_against_lagged_opponents(
    train_kuhn: Callable[..., str],
) -> None:
    train_kuhn(
        *("algorithm=dapo", "algorithm.loss=sequence_clip", "algorithm.importance=mask"),
        *("rewards=wins", "pool=lagged", "pool.max_active_lora=3", "pool.lag_range=[1,2]"),
        *("learner.optimizer_steps=2", "learner.total_updates=4", "learner.keep_checkpoints=0"),
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
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    assert all("importance_masked_fraction" in row for row in metrics)
    assert sum(row["episodes_replaced"] for row in metrics) > 0
    for update in (1, 2, 3, 4):
        scores: dict[str | None, set[tuple[int, float]]] = {}
        for sample in read_batch(Path(f"run/batches/batch-{update:06d}.parquet")).samples:
            scores.setdefault(sample.group_id, set()).add((sample.player_id, sample.reward))
        assert all(len(found) > len(dict(found)) for found in scores.values())


@pytest.mark.slow
def test_versions_are_measured_exactly_as_they_are_evaluated(
    train_kuhn: Callable[..., str],
) -> None:
    """By an algorithm that reads legal actions and refers to a snapshot, in a resumed run, too."""
    train_kuhn(
        *("algorithm=nash_pg", "algorithm.kl.refresh_every=2", "learner.average=moving"),
        *("learner.total_updates=4", "eval.every=2", "eval.exploitability=true"),
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
    files = Path("run/batches").glob("*.parquet")
    samples = [sample for path in files for sample in read_batch(path).samples]
    legal = [sample for sample in samples if sample.info["legal"] and sample.legal_tokens]
    assert legal
    for one in legal:
        assert all(t in tokens for t, tokens in zip(one.token_ids, one.legal_tokens, strict=True))
    assert all("kl" in row for row in rows("metrics.jsonl"))


@pytest.mark.slow
def test_a_collapse_is_reported_and_the_run_goes_back_to_before_it(
    train_kuhn: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entropy of the updates from the seventh on is an eighth of what it was."""
    measure = rlforge.learner.learner.logprob_metrics

    def planted(*arguments: Any) -> dict[str, float]:
        metrics = measure(*arguments)
        if arguments[-1] >= 6:  # updates before it
            metrics["entropy"] /= 8
        return metrics

    monkeypatch.setattr(rlforge.learner.learner, "logprob_metrics", planted)
    err = train_kuhn(
        *("algorithm=nash_pg", "learner.total_updates=12", "learner.warmup_updates=0"),
        *("learner.schedule=constant", "learner.keep_checkpoints=0", "sentinel.warmup=4"),
        *("sentinel.actions=[opponents,rollback,magnet,smaller_steps]", "sentinel.watch=[entropy]"),
    )
    (alarm,) = rows("sentinel.jsonl")
    at = alarm["step"]
    assert (alarm["signal"], alarm["since"], alarm["good"]) == ("entropy", 7, 6)
    assert 7 < at <= 10
    assert alarm["observed"] < alarm["expected"] / 4
    done = ["opponents from the past", "rollback to step-6", "new snapshot as reference"]
    assert alarm["actions"] == [*done, "learning rate × 0.5"]
    assert f"sentinel, update {at}: entropy: " in err
    parents = {
        path.name: read_manifest(path).meta["parent_uid"]
        for path in list_checkpoints(Path("run/checkpoints"))
    }
    assert parents[f"step-{at}"] == "step-6"
    assert parents["step-12"] == "step-11"
    rates = {row["step"]: row["lr"] for row in rows("metrics.jsonl")}
    assert rates[at + 1] == rates[at] / 2
    pool = json.loads(Path("run/pool.json").read_text())
    assert pool["mode"] == "fictitious"
    page = write_report(Path("run")).read_text()
    assert "rollback to step-6" in page


QUIET = """from dataclasses import dataclass


@dataclass
class Quiet:
    def __call__(self, samples):
        from dataclasses import replace

        if all(sample.policy_version == 0 for sample in samples):
            return list(samples)
        return [replace(sample, reward=0.5, outcome_reward=0.5) for sample in samples]
"""


def test_updates_without_signal_make_no_version_and_a_run_goes_on_from_its_state(
    train_kuhn: Callable[..., str],
) -> None:
    """Batches of version 0 have a signal; the first one later versions play in has none."""
    Path("quiet.py").write_text(QUIET)
    train_kuhn(
        *(
            "rewards.sampling=[{name: 'quiet:Quiet'}]",
            "determinism=strict",
            "learner.batch_size=16",
        ),
        *("learner.total_updates=6", "learner.state_every=5", "eval.every=1", "eval.games=2"),
        *("eval.final_games=4", "learner.schedule=constant", "learner.keep_checkpoints=1"),
    )
    metrics, lines = rows("metrics.jsonl"), rows("digests.jsonl")
    skipped = [row["skipped_no_signal"] for row in metrics]
    made = skipped.index(1.0)  # versions before the first batch without signal
    assert 0 < made < 5
    assert skipped == [0.0] * made + [1.0] * (6 - made)
    assert [row["step"] for row in metrics] == [1, 2, 3, 4, 5, 6]
    assert len({line["policy"] for line in lines if line["step"] >= made and "policy" in line}) == 1
    newest = f"step-{made}"
    assert json.loads(Path("run/pool.json").read_text())["current"] == newest
    # The version with which it ends had fewer games when it was new.
    evaluated = [(row["step"], row["games"]) for row in rows("evals.jsonl")]
    once = [(0, 4), *((version, 2) for version in range(1, made + 1)), (made, 4)]
    assert [*dict.fromkeys(evaluated)] == once
    assert (
        max(
            turn.completion.policy_version
            for game in read_games(Path("run"))
            for turn in game.turns
        )
        == made
    )
    # Those with a state are of the update after which it is saved.
    saved = [path.name for path in list_checkpoints(Path("run/checkpoints"))]
    assert saved[-3:] == [newest, "step-5", "step-6"]
    assert rlforge_here("verify", "run") == 0
    shutil.rmtree("run/checkpoints/step-6")
    assert rlforge_here("train", "--resume", "run") == 0
    assert rows("digests.jsonl") == [
        {**line, "part": 1} if "part" in line else line for line in lines
    ]
    assert [(row["step"], row["games"]) for row in rows("evals.jsonl")] == evaluated
    assert rlforge_here("train", "--resume", "run", "--more", "1") == 0
    assert [row["skipped_no_signal"] for row in rows("metrics.jsonl")] == [*skipped, 1.0]
