"""Answers over HTTP become decisions with the rewards that clients report, and are learned from."""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests import factories
from transformers import AutoTokenizer

from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.continuous.loop.requests import AnswerLog
from rlforge.continuous.loop.run import ContinuousRun
from rlforge.continuous.serving.records import Answered
from rlforge.errors import RunError, StoreError
from rlforge.record.files import read_jsonl
from rlforge.types import Completion, SamplingParams

REQUESTS = (
    "continuous.source=requests",
    "continuous.http=true",
    "continuous.compare_episodes=0",
    "continuous.select_by=all",
    "continuous.min_selected=2",
    "window.clock=wall",
    "window.min_agents=1",
    "window.min_actions=0",
    "window.min_trajectories_per_agent=1",
    "window.avg_reward_threshold=null",
    "serve.port=0",
)
#: 2026-11-13 10:00 UTC, and the id of the window of 30 minutes that holds it.
TEN, TEN_ID = 1794564000.0, "2026-11-13-10:00"


@pytest.fixture
def clock():
    clock = factories.Clock()
    clock.now = TEN
    return clock


@pytest.fixture
def store(tmp_path):
    with TrajectoryStore(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def open_log(make_config, store, tmp_path, clock):
    def make(*overrides, store=store):
        config = make_config(*REQUESTS, *overrides)
        tokenizer = AutoTokenizer.from_pretrained(config.model.name)
        return AnswerLog(tmp_path / "answers.sqlite", store, config, tokenizer, clock)

    return make


def answer(number=1, **changes):
    completion = factories.completion(
        "[hold]", token_ids=(9,), logprobs=(-0.5,), policy_uid="deploy-3"
    )
    given = {
        "id": f"cmpl-deploy-3-{number}",
        "user": "ann",
        "conversation": "market bet p5",
        "tools": (),
        "params": SamplingParams(),
        "text": "[hold]",
        "completion": completion,
    }
    return Answered(**given | changes)


async def test_a_rewarded_answer_is_a_complete_decision_of_the_window_of_its_reward(
    open_log, store, clock
):
    log, given = open_log(), answer()
    await log.answered(given)
    assert (log.waiting(), store.decisions()) == (1, [])
    clock.now += 45 * 60
    assert await log.rewarded(given.id, 0.75)
    assert log.waiting() == 0
    [decision] = store.decisions()
    assert (decision.id, decision.agent_id) == (given.id, "ann")
    assert (decision.window_id, decision.timestamp) == ("2026-11-13-10:30", TEN + 45 * 60)
    assert decision.state == {"prompt": "market bet p5"}
    assert decision.action == {"type": "ANSWER", "content": "[hold]"}
    assert decision.next_state == {"prompt": "market bet p5[hold]"}
    assert (decision.reward, decision.complete, decision.refused) == (0.75, True, False)
    assert decision.completion == given.completion
    assert decision.metadata.learns


async def test_a_conversation_is_the_state_and_the_answer_its_next_message(open_log, store):
    log = open_log()
    await log.answered(answer(conversation=[{"role": "user", "content": "bet?"}]))
    await log.rewarded(answer().id, 1.0)
    [decision] = store.decisions()
    assert decision.state == {"messages": [{"role": "user", "content": "bet?"}]}
    assert decision.next_state["messages"][1:] == [{"role": "assistant", "content": "[hold]"}]


async def test_an_answer_is_learned_from_once(open_log, store):
    log = open_log()
    await log.answered(answer())
    assert [await log.rewarded(answer().id, reward) for reward in (1.0, -1.0)] == [True, False]
    assert not await log.rewarded("cmpl-deploy-3-unknown", 1.0)
    assert [decision.reward for decision in store.decisions()] == [1.0]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (answer(params=SamplingParams(temperature=0.2)), False),
        (answer(params=SamplingParams(top_k=5)), False),
        (answer(completion=None), False),
        (answer(completion=Completion(text="hi", token_ids=(9,), prompt_token_ids=(5,))), False),
        (answer(params=SamplingParams(max_tokens=7, seed=1, stop_token_ids=(2,))), True),
    ],
    ids=["temperature", "top_k", "stop string", "no log-probs", "length and seed"],
)
async def test_answers_of_another_distribution_are_not_kept(open_log, given, kept):
    log = open_log()
    await log.answered(given)
    assert log.waiting() == kept
    assert await log.rewarded(given.id, 1.0) is kept


async def test_answers_without_an_outcome_are_deleted(open_log, clock):
    log = open_log("requests.keep_hours=2")
    await log.answered(answer(1))
    clock.now += 3600
    await log.answered(answer(2))
    clock.now += 2 * 3600
    await log.answered(answer(3))
    assert log.waiting() == 2
    assert not await log.rewarded(answer(1).id, 1.0)


class FullStore:
    """A store whose disk is full."""

    def append(self, decisions):
        raise StoreError("the disk is full")


@pytest.mark.parametrize("reported_again", [False, True])
async def test_an_outcome_that_could_not_be_moved_is_moved_at_the_next_start_or_report(
    open_log, store, clock, reported_again
):
    log = open_log(store=FullStore())
    await log.answered(answer())
    with pytest.raises(StoreError, match="disk is full"):
        await log.rewarded(answer().id, 1.0)
    log.close()
    clock.now += 3600
    log = open_log()
    if reported_again:
        assert await log.rewarded(answer().id, 1.0)
    log.finish()
    log.finish()
    assert [decision.window_id for decision in store.decisions()] == [TEN_ID]
    assert log.waiting() == 0


def test_a_damaged_database_is_named(open_log, tmp_path):
    (tmp_path / "answers.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(RunError, match=r"answers\.sqlite: file is not a database"):
        open_log()


# ---------------------------------------------------------------- redaction


def hide(conversation, text):
    if "secret" in conversation:
        return None
    return conversation.replace("bet", "market")


def first_message(conversation, text):
    return conversation[:1]


def broken(conversation, text):
    raise KeyError("name")


def malformed(conversation, text):
    return [{"speaker": "ann"}]


async def test_what_a_redaction_hides_is_neither_kept_nor_trained_on(open_log, store):
    log = open_log(f"requests.redact={__name__}:hide")
    await log.answered(answer(1))
    await log.answered(answer(2, conversation="a secret"))
    assert log.waiting() == 1
    await log.rewarded(answer(1).id, 1.0)
    [decision] = store.decisions()
    assert decision.state == {"prompt": "market market p5"}
    assert "bet" not in decision.observation
    assert decision.completion.prompt_token_ids != (5, 6, 7)
    assert decision.completion.logprobs == (-0.5,)


async def test_a_redacted_prompt_shows_the_tools_of_the_request_again(open_log, store, monkeypatch):
    shown = []

    def tokens(tokenizer, messages, tools=None, arguments=None):
        shown.append(tools)
        return (1, 2)

    monkeypatch.setattr("rlforge.continuous.loop.requests.conversation_tokens", tokens)
    log, tool = open_log(f"requests.redact={__name__}:first_message"), {"type": "function"}
    asked = [{"role": "user", "content": "hi"}, {"role": "user", "content": "my number is 0123"}]
    await log.answered(answer(conversation=asked, tools=[tool]))
    assert shown == [[tool]]


@pytest.mark.parametrize(
    ("name", "problem"), [("broken", "KeyError: 'name' ("), ("malformed", "ValueError: ")]
)
async def test_a_redaction_that_fails_keeps_nothing_and_says_why(open_log, caplog, name, problem):
    log = open_log(f"requests.redact={__name__}:{name}")
    with caplog.at_level(logging.ERROR):
        await log.answered(answer())
    assert log.waiting() == 0
    assert f"the answer {answer().id} is not kept: redaction" in caplog.text
    assert f":{name}' fails: {problem}" in caplog.text


# ---------------------------------------------------------------- a whole run


def test_a_served_model_learns_from_the_rewards_of_its_answers(make_config, execute):
    run_dir = Path("run").absolute()
    config = make_config(
        *REQUESTS,
        "window.minutes=0.03333333333333333",
        "continuous.windows=null",
        "continuous.min_selected=8",
        "learner.epochs=4",
        "learner.learning_rate=1e-2",
        "algorithm.kl.coef=0",
    )
    run = []

    def controller(context):
        run.append(ContinuousRun(context))
        return run[0]

    shares, failures = [], []

    def talk():
        try:
            shares.extend(_talk(run_dir, windows=range(3, 11)))
        except Exception as error:
            failures.append(error)
        finally:
            run[0].stop()

    client = threading.Thread(target=talk)
    client.start()
    execute(config, controller=controller)
    client.join()
    assert not failures
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "interrupted"
    trained = [row for row in read_jsonl(run_dir / "windows.jsonl") if row["version"]]
    assert len(trained) >= 3
    assert all(row["deployment_success"] for row in trained)
    assert shares[-1] > shares[0] + 0.3, shares
    with TrajectoryStore(run_dir / "store") as store:
        kept = [one.completion for one in store.decisions()]
    assert {one.policy_uid for one in kept if one is not None} >= {"deploy-0", "deploy-1"}


def _talk(run_dir, windows):
    """The share of the liked answer at the start, and after the numbers of windows in ``windows``.

    On a busy machine a window holds fewer answers, so they end with the first clear growth.
    """
    address = run_dir / "deployments" / "service.json"
    _until(address.exists)
    token = (run_dir / "deployments" / "token").read_text().strip()
    http = httpx.Client(
        base_url=json.loads(address.read_text())["url"],
        headers={"authorization": f"Bearer {token}"},
        timeout=60,
    )

    def ask():
        request = {"model": "test", "prompt": "market bet p5", "max_tokens": 1, "user": "ann"}
        response = http.post("/v1/completions", json=request)
        assert response.status_code == 200, response.text
        return response.json()

    def texts():
        return list(users.map(lambda _: ask()["choices"][0]["text"], range(60)))

    def rewarded(_):
        given = ask()
        reward = 1.0 if given["choices"][0]["text"] == liked else -1.0
        for learned in (True, False):  # once
            reported = http.post("/v1/outcomes", json={"id": given["id"], "reward": reward})
            assert reported.json()["learned"] is learned, reported.text

    def trained():
        return sum(row["version"] is not None for row in read_jsonl(run_dir / "windows.jsonl"))

    with ThreadPoolExecutor(8) as users:
        before = texts()
        liked = max(sorted(set(before)), key=lambda t: before.count(t) * (before.count(t) < 30))
        shares = [before.count(liked) / 60]
        for number in windows:
            while trained() < number:
                list(users.map(rewarded, range(8)))
            shares.append(texts().count(liked) / 60)
            if shares[-1] > shares[0] + 0.3:
                break
    return shares


def _until(there):
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline, "the run does not serve"
        time.sleep(0.05)
