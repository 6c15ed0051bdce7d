"""The loop over real parts: market, store, scorer, learner, deployments and engine."""

import asyncio
import collections
import json
import operator
import re
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rlforge.continuous.decisions.store import StoreReader
from rlforge.continuous.loop.trainer import assembled
from rlforge.continuous.loop.trials import MarketTrials
from rlforge.continuous.serving.records import PairedOutcomes
from rlforge.system.checkpoint import read_manifest

RUN_DIR = Path("run")
ONE_WINDOW = ("continuous.windows=1", "continuous.compare_episodes=0")

#: The first keys of a row, in this order.
FIRST_KEYS = (
    *("window_id", "agents", "trajectories", "avg_reward", "high_score_count", "training_loss"),
    *("kl_divergence", "deployment_success", "duration_minutes"),
)


def rows(name="windows.jsonl"):
    return [json.loads(line) for line in (Path("run") / name).read_text().splitlines()]


def content(name):
    return json.loads((Path("run") / name).read_text())


@pytest.fixture
def begun(in_process):
    """The trainer of a new run. stop: ends it."""

    @asynccontextmanager
    async def begin(config, stop):
        context = await in_process.make_context(config, Path.cwd() / RUN_DIR)
        async with assembled(context, stop) as trainer:
            await context.actors.tracker.resume_windows.remote([])
            await trainer.learner.begin()
            yield trainer
            await context.actors.tracker.close.remote({})

    return begin


def test_windows_are_trained_on_and_deployed(make_config, execute):
    execute(make_config())
    found = rows()
    assert [row["window_id"] for row in found] == ["2024-11-13-10:00", "2024-11-13-10:30"]
    for row in found:
        assert tuple(row)[: len(FIRST_KEYS)] == FIRST_KEYS
        assert row["deployment_success"] is True
        assert row["high_score_count"] >= 5
        assert row["agents"] == 11
        assert row["trajectories"] == 66
        assert row["kl_divergence"] > 0
        assert {"scorer/pairs", "reward/pnl", "reward/return", "batch/stale"} <= row.keys()
        assert row["players"]["policy"]["decisions"] == 24
        assert row["players"]["scripted:noise"]["decisions"] == 24
    assert [row["version"] for row in found] == ["step-1", "step-2"]
    assert [row["step"] for row in rows("metrics.jsonl")] == [1, 2]
    # The agents of the second window are those of the version that the first one made.
    assert [row["lag_max"] for row in rows("metrics.jsonl")] == [0.0, 0.0]
    assert all(row["logprob_gap_max"] < 1e-4 for row in rows("metrics.jsonl"))
    summary = content("summary.json")
    assert (summary["status"], summary["windows"], summary["serving"]) == ("done", 2, "step-2")
    comparison = content("comparison.json")
    for when, version in (("before", "step-0"), ("after", "step-2")):
        assert comparison[when]["version"] == version
        figures = comparison[when]["players"]["policy"]
        assert {"win_rate", "avg_reward", "avg_pnl"} <= figures.keys()


def test_a_window_that_is_not_ready_trains_nothing_and_the_run_goes_on(make_config, execute):
    execute(make_config("window.min_agents=12", "continuous.compare_episodes=0"))
    for row in rows():
        assert "it is not ready" in row["reason"]
        assert "12 learning agents" in row["reason"]
        assert (row["training_loss"], row["deployment_success"]) == (None, None)
        assert row["version"] is None
    assert rows("metrics.jsonl") == []
    assert not Path("run/comparison.json").exists()


async def test_learning_goes_on_from_what_a_rollback_between_two_updates_serves(make_config, begun):
    config = make_config("continuous.compare_episodes=0")
    async with begun(config, asyncio.Event()) as trainer:

        async def roll_back():
            while not trainer.journal.done():  # noqa: ASYNC110  # it has no event
                await asyncio.sleep(0.01)
            return await trainer.policy.service.rollback()

        _, served = await asyncio.gather(trainer.run(), roll_back())
        assert served.uid == "deploy-0"
        newest = read_manifest(RUN_DIR / "checkpoints" / "step-2", verify=False)
        assert newest.meta["parent_uid"] == "step-0"


def test_a_judge_that_cannot_answer_leaves_decisions_unscored_and_says_why(make_config, execute):
    judge = ["ruler=judge", "ruler.judge.model=engine", "ruler.judge.retries=0"]
    execute(make_config(*judge, *ONE_WINDOW))
    (row,) = rows()
    assert row["scorer/unscored"] == 24.0  # no other decision is judged
    assert (row["batch/unscored"], row["high_score_count"]) == (24, 0)
    assert f"{row['batch/refused']} of the model's 24 decisions are selected" in row["reason"]
    assert re.search(r"24 have no score: prompt of \d+ tokens is \d+ too long", row["reason"])
    scores = content("scores/2024-11-13-10.00.json")["scores"]
    assert len(scores) == 66
    assert all(entry["score"] is None for entry in scores.values())


async def test_after_a_refusal_the_version_before_serves_and_learning_continues_from_it(
    make_config, monkeypatch, begun
):
    async def worse(*_):
        return PairedOutcomes(candidate=(-1.0, -0.9) * 8, current=(1.0, 0.9) * 8)

    monkeypatch.setattr(MarketTrials, "holdout", worse)
    config = make_config("deployment.holdout_games=16")
    async with begun(config, asyncio.Event()) as trainer:
        assert await trainer.run()
        assert trainer.policy.service.current.number == 0
        assert trainer.learner.standing == "step-0"
    found = rows()
    assert [row["version"] for row in found] == ["step-1", "step-2"]
    assert [row["deployment_success"] for row in found] == [False, False]
    assert all(row["reason"].startswith("holdout: ") for row in found)


async def test_during_a_trial_nothing_is_trained(make_config, begun):
    """The trial decides which version learning goes on from."""
    config = make_config("deployment=ab_test", "deployment.ab.shares=[0.5]")
    async with begun(config, asyncio.Event()) as trainer:
        assert await trainer.run()
        assert trainer.policy.service.trial.deployment.number == 1
        assert trainer.learner.standing == "step-1"
        counted = trainer.policy.service.trial.test.arms
        assert sum(arm.count for arm in counted.values()) == 24
    first, second = rows()
    assert (first["version"], first["deployment_success"]) == ("step-1", None)
    assert first["reason"] == "deploy-1 is on trial"
    assert second["reason"].startswith("a version is on trial")
    assert (second["version"], second["deployment_success"]) == (None, None)


async def test_rewards_of_the_agents_decide_a_trial(make_config, begun):
    trial = ("deployment=ab_test", "deployment.ab.shares=[0.99]", "deployment.ab.max_outcomes=12")
    config = make_config(*trial, "deployment.ab.undecided=promote")
    async with begun(config, asyncio.Event()) as trainer:
        assert await trainer.run()
        history = trainer.policy.service.history()
    assert history[1].phase == "live"
    assert "trial" in [check.name for check in history[1].checks]
    # The trial ended before the second window was trained on, from the promoted version.
    second = rows()[1]
    assert second["version"] == "step-2"
    assert history[2].phase == "trial"


def test_rolling_batches_reach_back_over_windows(make_config, execute):
    rolling = ("window.mode=rolling", "window.rolling_decisions=90")
    execute(make_config(*rolling, "continuous.windows=3", "continuous.compare_episodes=0"))
    first, second, third = rows()
    assert "66 of 90 complete decisions are there" in first["reason"]
    assert second["trajectories"] == third["trajectories"] == 90
    assert third["batch/stale"] == 0.0


@pytest.mark.one_in(3)
@pytest.mark.parametrize("algorithm", ["window_ppo", "window_a2c", "grpo"])
def test_other_algorithms_learn_from_windows_too(make_config, algorithm, execute):
    execute(make_config(f"algorithm={algorithm}", *ONE_WINDOW))
    (row,) = rows()
    assert row["version"] == "step-1"
    (update,) = rows("metrics.jsonl")
    assert ("value_loss" in update) == (algorithm != "grpo")


@pytest.mark.parametrize(
    ("held_up", "phase"),
    [
        ("policy.engine.generate", "begun"),  # in a tick
        ("scorer.score", "collected"),
        ("policy.service.deploy", "trained"),
    ],
)
async def test_an_interrupted_run_waits_for_no_answer_and_ends_between_phases(
    make_config, begun, monkeypatch, held_up, phase
):
    config, stop = make_config("continuous.windows=null"), asyncio.Event()

    async def held(*arguments, **named):
        stop.set()
        await asyncio.sleep(600)

    async with begun(config, stop) as trainer:
        owner, _, method = held_up.rpartition(".")
        monkeypatch.setattr(operator.attrgetter(owner)(trainer), method, held)
        async with asyncio.timeout(300):
            assert not await trainer.run()
        entry = trainer.journal.current()
    assert (entry.number, entry.phase) == (1, phase)


def test_control_agents_keep_the_first_version_and_are_not_learned_from(make_config, execute):
    """And old windows are deleted, with their scores."""
    changes = ("continuous.control_agents=3", "learner.learning_rate=0.05", "store.keep_windows=2")
    execute(make_config(*changes, "continuous.windows=3", "continuous.compare_episodes=0"))
    for row in rows():
        assert row["agents"] == 14
        assert row["players"]["control"]["decisions"] == 18
        assert row["players"]["policy"]["decisions"] == 24
        assert row["reward_difference_low"] < row["reward_difference"]
        assert row["reward_difference"] < row["reward_difference_high"]
    assert answered_by() == {"control": {"base"}, "policy": {"deploy-1", "deploy-2"}}
    ids = [row["window_id"] for row in rows()]
    assert StoreReader("run/store").window_ids() == ids[1:]
    scores = {path.stem for path in Path("run/scores").iterdir()}
    assert scores == {one.replace(":", ".") for one in ids[1:]}


def answered_by():
    found = collections.defaultdict(set)
    for one in StoreReader("run/store").decisions():
        if one.completion:
            player = "policy" if one.metadata.learns else "control"
            found[player].add(one.completion.policy_uid)
    return found


def test_with_an_initial_adapter_that_is_the_control(make_config, execute, adapter):
    changes = ("continuous.control_agents=2", f"learner.initial_adapter={adapter}")
    execute(make_config(*changes, *ONE_WINDOW))
    assert answered_by() == {"control": {"control"}, "policy": {"deploy-1"}}
    # The same weights: an answer has the same probability by both.
    by_prompt = collections.defaultdict(list)
    decisions = StoreReader("run/store").decisions()
    answers = [one.completion for one in decisions if one.completion]
    for one in answers:
        by_prompt[one.prompt_token_ids, one.token_ids].append(sum(one.logprobs))
    assert all(max(found) - min(found) < 1e-4 for found in by_prompt.values())


def test_windows_by_the_wall_clock(make_config, execute):
    short = ("window.minutes=0.03333333333333333", "market.tick_minutes=0.002")
    windows = ("continuous.windows=4", "continuous.compare_episodes=0")
    execute(make_config("window.clock=wall", *short, *windows))
    found = rows()
    assert len(found) == 4
    assert [row["window_id"] for row in found] == sorted(row["window_id"] for row in found)
    # A window that began before the run, or in which the machine had other work, holds few
    # decisions; each of the others is trained.
    whole = [row for row in found if row["trajectories"] >= 50]
    assert len(whole) >= 2
    assert all(row["version"] for row in whole), [row["reason"] for row in found]
    short = [row["reason"] for row in found if not row["version"]]
    assert all(reason.startswith("it is not ready") for reason in short), short


def test_engine_and_learner_take_turns_on_one_device(make_config, execute):
    execute(make_config("hardware.alternate=true", "continuous.compare_episodes=0"))
    assert [row["version"] for row in rows()] == ["step-1", "step-2"]
    assert all(row["seconds_switch"] >= 0 for row in rows("metrics.jsonl"))
    assert not (RUN_DIR / "learning").exists()
