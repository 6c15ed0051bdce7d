"""The judge against a local HTTP server that answers well, badly, slowly or not at all."""

import json
import re
import time
from dataclasses import replace

import pytest
from tests.harness.chat_server import ChatHandler, completion, refusal, serving

from rlforge.continuous.config.ruler import JudgeConfig, RulerConfig
from rlforge.continuous.decisions.records import Metadata
from rlforge.continuous.ruler.base import NOT_JUDGED
from rlforge.continuous.ruler.judge import AnswerCache, divide
from rlforge.continuous.ruler.question import JudgeQuestion, JudgeVerdict
from rlforge.continuous.ruler.scorer import make_scorer

KEY = "sk-very-secret-0001"
CUT = {"max_answer_tokens": 100}


def _verdict(text):
    """What a sensible judge says: go with the three accounts of the feed."""
    outcome = re.search(r'"outcome": "(YES|NO)"', text).group(1)
    said = re.findall(r'"stance": "(YES|NO)"', text)
    return said.count(outcome) / len(said)


USAGE = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000, "cost": 0.25}


class Handler(ChatHandler):
    """Scores the decisions of a question, as ``mood`` says."""

    def respond(self, asked, tries):
        mood = "good" if 0 < self.server.good_after < tries else self.server.mood
        form = asked.get("response_format", {}).get("type")
        if mood == "slow":
            time.sleep(1)
        if mood == "busy":
            time.sleep(0.05)
        if mood == "broken":
            return self.send(500, {"error": {"message": "boiler burst"}}, retry_after_ms="10")
        if mood == "wrong key":
            return self.send(401, {"error": {"message": f"bad key {KEY}"}})
        if mood == "too long":
            return self.send(400, {"error": {"message": "context length exceeded"}})
        if mood == "plain" and form is not None:
            return self.send(400, {"error": {"message": "unknown field response_format"}})
        if mood == "spent":
            return self.send(200, completion("", "length", usage=USAGE))
        if mood == "cut":
            cut = self._text(mood, asked)[:-40]
            return self.send(200, completion(cut, "length", usage=USAGE))
        if mood == "refusal":
            return self.send(200, refusal("I cannot help with trading.", usage=USAGE))
        if mood == "not chat":
            return self.send(200, {"hello": 1})
        return self.send(200, completion(self._text(mood, asked), usage=USAGE))

    def _text(self, mood, asked):
        text = asked["messages"][1]["content"]
        parts = re.split(r"Decision (\w+)\n", text)
        entries = [
            {"id": name, "explanation": f"on {name}", "score": _verdict(parts[0] + text)}
            for name, text in zip(parts[1::2], parts[2::2], strict=True)
        ]
        if mood == "prose":
            return "I like the first decision best, and the last one least."
        if mood == "shuffled":
            entries.reverse()
        elif mood == "by place":
            entries = [{**entry, "score": n / len(entries)} for n, entry in enumerate(entries)]
        elif mood == "all equal":
            entries = [{**entry, "score": 0.6} for entry in entries]
        return json.dumps({"scores": entries})


@pytest.fixture
def server():
    with serving(Handler) as server:
        yield server


@pytest.fixture(autouse=True)
def own_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def _config(server, model_path=None, **judge):
    settings = {"model": "openai:m", "base_url": server.url, "group_size": 8, "both_orders": 0.0}
    return RulerConfig(
        scoring_method="judge",
        temperature=1.0,
        model_path=str(model_path) if model_path else None,
        judge=JudgeConfig(**{**settings, **judge}),
    )


async def _score(config, decisions, seed=0):
    scorer = make_scorer(config, seed=seed)
    try:
        return await scorer.score(decisions)
    finally:
        await scorer.close()


def _expected(decisions):
    return [_verdict(json.dumps([d.state, d.action])) for d in decisions]


@pytest.fixture
def window(make_window):
    """80 decisions, which are ten groups."""
    return make_window(0).decisions


@pytest.fixture
def few(make_window):
    """One group of eight decisions."""
    return make_window(0, each=2).decisions


@pytest.fixture
def judged(server):
    """The scores of decisions by a server in this mood, with changes to the judge's settings."""

    async def score(decisions, mood="good", **judge):
        server.mood = mood
        return await _score(_config(server, **judge), decisions)

    return score


async def test_scores_are_matched_by_id(judged, window):
    scores = await judged(window, "shuffled")
    assert list(scores.values) == pytest.approx(_expected(window))
    assert all(explanation.startswith("on ") for explanation in scores.explanations)
    assert scores.metrics["judge_groups"] == scores.metrics["judge_calls"] == 10
    assert (scores.metrics["judge_tokens"], scores.metrics["judge_cost"]) == (10_000, 2.5)
    assert scores.metrics["unscored"] == scores.metrics["judge_failed_groups"] == 0


@pytest.mark.parametrize(
    ("mood", "tau", "said"), [("good", 1.0, ""), ("by place", -1.0, "scores by place: asked in")]
)
async def test_a_sample_is_asked_in_both_orders_and_a_judge_by_place_is_named(
    judged, window, mood, tau, said
):
    scores = await judged(window, mood, both_orders=0.5)
    assert scores.metrics["judge_calls"] == 15
    assert scores.metrics["judge_order_kendall_tau"] == pytest.approx(tau)
    assert said in scores.note
    if mood == "good":
        assert list(scores.values) == pytest.approx(_expected(window))
        assert scores.note == ""
    else:
        # The mean of two places that are mirrored is the same for all.
        asked = [score for score in scores.values if score == pytest.approx(7 / 16)]
        assert len(asked) == 40


async def test_a_group_without_a_second_answer_keeps_its_first_scores(judged, window):
    scores = await judged(window, both_orders=1.0, max_calls=12, max_concurrency=1)
    assert list(scores.values) == pytest.approx(_expected(window))
    assert scores.metrics["judge_calls"] == 12


async def test_a_call_asks_for_a_group_in_the_form_of_its_schema(server, judged, few):
    await judged(few, sampling_temperature=0.2, max_answer_tokens=321, rubric="Be bold.")
    (asked,) = server.requests
    assert asked["model"] == "m"
    assert asked["key"] == f"Bearer {KEY}"
    assert asked["temperature"] == 0.2
    assert asked["max_tokens"] == 321
    assert "Be bold." in asked["messages"][0]["content"]
    form = asked["response_format"]["json_schema"]
    assert form["strict"] is True
    ids = form["schema"]["properties"]["scores"]["items"]["properties"]["id"]["enum"]
    assert len(ids) == 8
    await judged(few, sampling_temperature=None)
    assert "temperature" not in server.requests[-1]


async def test_low_temperatures_spread_scores_and_high_ones_contract_them(server, window):
    found = {}
    for temperature in (0.5, 1.0, 4.0):
        config = replace(_config(server), temperature=temperature)
        found[temperature] = (await _score(config, window)).values
    for sharp, plain, soft in zip(*found.values(), strict=True):
        assert abs(sharp - 0.5) >= abs(plain - 0.5) >= abs(soft - 0.5)
        assert sharp == pytest.approx(plain**2 / (plain**2 + (1 - plain) ** 2))


@pytest.mark.parametrize("mood", ["prose", "not chat"])
async def test_after_bad_answers_a_group_stays_unscored(server, judged, few, mood, caplog):
    scores = await judged(few, mood, retries=2)
    assert scores.values == (None,) * 8
    counted = {"unscored": 8, "judge_failed_groups": 1, "judge_calls": 3, "judge_retries": 2}
    assert counted.items() <= scores.metrics.items()
    assert len(server.requests) == 3
    assert all(explanation.startswith("unscored: ") for explanation in scores.explanations)
    assert f"window {few[0].window_id}: 8 decisions unscored" in caplog.text
    if mood == "prose":
        assert "could not be used" in server.requests[1]["messages"][1]["content"]


@pytest.mark.parametrize("mood", ["prose", "broken"])
async def test_a_later_good_answer_counts(server, judged, few, mood):
    server.good_after = 2
    scores = await judged(few, mood)
    assert list(scores.values) == pytest.approx(_expected(few))
    assert len(server.requests) == 3
    assert scores.metrics["judge_calls"] == (3 if mood == "prose" else 1)


async def test_one_failed_group_leaves_the_others_scored(server, judged, window):
    server.good_after = 1
    scores = await judged(window, "prose", retries=0, max_concurrency=1)
    assert scores.values.count(None) == scores.metrics["unscored"] == 8
    for score, expected in zip(scores.values, _expected(window), strict=True):
        assert score is None or score == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mood", "calls", "tokens", "why", "settings"),
    [
        ("slow", 1, 0, "in 3 tries", {"timeout_s": 0.2}),
        ("too long", 1, 0, "context length exceeded", {}),
        ("cut", 1, 1000, "it was cut at ruler.judge.max_answer_tokens=100", CUT | {"retries": 0}),
        # A refusal is shown, paid once and not asked for again.
        ("refusal", 1, 1000, "refuses to answer: I cannot help with trading.", {}),
    ],
)
async def test_calls_without_a_whole_answer_leave_the_group_unscored(
    judged, few, mood, calls, tokens, why, settings
):
    scores = await judged(few, mood, **settings)
    assert set(scores.values) == {None}
    assert (scores.metrics["judge_calls"], scores.metrics["judge_tokens"]) == (calls, tokens)
    assert why in scores.unscored
    assert why in scores.explanations[0]


@pytest.mark.parametrize(
    ("mood", "calls", "requests", "tokens", "why"),
    [
        ("broken", 3, 3 * 2, 0, "the judge is down"),  # three groups in a row, with two tries each
        ("wrong key", 1, 1, 0, "HTTP status 401"),
        # Answers that reasoning has used up are paid for, and no more are asked for.
        ("spent", 3, 3, 3000, "used up ruler.judge.max_answer_tokens=100; raise it"),
    ],
)
async def test_a_judge_that_is_down_is_not_asked_again(
    server, judged, window, caplog, mood, calls, requests, tokens, why
):
    scores = await judged(window, mood, retries=1, max_concurrency=1, **CUT)
    assert set(scores.values) == {None}
    assert (scores.metrics["judge_calls"], scores.metrics["judge_tokens"]) == (calls, tokens)
    assert len(server.requests) == requests
    assert why in caplog.text
    assert KEY not in caplog.text + "".join(scores.explanations)


@pytest.mark.parametrize(
    ("mood", "forms"),
    [("good", ["json_schema", "json_schema"]), ("plain", ["json_schema", None, None])],
)
async def test_servers_without_schemas_are_asked_for_simpler_forms(
    server, judged, make_window, mood, forms
):
    scores = await judged(make_window(0, each=4).decisions, mood, retries=0, max_concurrency=1)
    assert None not in scores.values
    asked = [request.get("response_format", {}).get("type") for request in server.requests]
    assert asked == forms
    assert scores.metrics["judge_calls"] == 2


async def test_answers_are_cached_by_content(server, window, tmp_path):
    config = _config(server, tmp_path)
    first, again = [await _score(config, window) for _ in range(2)]
    assert (again.values, again.explanations) == (first.values, first.explanations)
    assert again.metrics["judge_calls"] == again.metrics["judge_tokens"] == 0
    assert again.metrics["judge_cache_hits"] == 10
    assert len(server.requests) == 10
    await _score(config, window, seed=1)  # another order is another question
    assert len(server.requests) == 20


async def test_bad_answers_are_not_cached_and_a_damaged_cache_does_not_stop_the_judge(
    judged, few, tmp_path
):
    await judged(few, "prose", model_path=tmp_path, retries=0)
    assert None not in (await judged(few, model_path=tmp_path, retries=0)).values
    (tmp_path / "judge.sqlite").write_bytes(b"rubbish" * 1000)
    scores = await judged(few, model_path=tmp_path)
    assert None not in scores.values
    assert scores.metrics["judge_cache_failed"] == 1


async def test_calls_of_a_window_are_bounded(server, judged, window, caplog):
    scores = await judged(window, "busy", max_calls=4, max_concurrency=3)
    assert server.most_running <= 3
    assert len(server.requests) == scores.metrics["judge_calls"] == 4
    assert scores.metrics["unscored"] == 80 - 4 * 8
    assert "ruler.judge.max_calls 4 of this window are used up" in caplog.text


async def test_tokens_of_a_window_are_bounded(server, judged, window):
    scores = await judged(window, max_tokens=9000, max_answer_tokens=500, max_concurrency=1)
    assert 1000 < scores.metrics["judge_tokens"] <= 9000
    assert 0 < len(server.requests) < 10
    assert scores.metrics["unscored"] == 8 * (10 - len(server.requests))


async def test_equal_scores_of_a_judge_are_reported_as_nothing_to_compare(judged, few, caplog):
    scores = await judged(few, "all equal")
    assert set(scores.values) == {0.5}
    assert scores.metrics["nothing_to_compare"] == scores.metrics["judge_calls"] == 1
    assert "all scores are equal" in caplog.text


@pytest.mark.parametrize("features", ["state_action", "with_outcome"])
async def test_learn_reports_how_well_a_judge_forecast_the_rewards(server, make_window, features):
    window = make_window(0)
    scorer = make_scorer(replace(_config(server), features=features))
    assert scorer.learn([window]) == {}
    await scorer.score(window.decisions)
    metrics = scorer.learn([window])
    await scorer.close()
    if features == "with_outcome":  # the judge saw the outcome
        assert metrics == {}
        return
    assert metrics["forecast_pairwise_accuracy"] > 0.6
    assert 0 < metrics["forecast_kendall_tau"] < 1


def test_groups_are_neighbours_in_time(make_window):
    decisions = make_window(0, each=5).decisions[::-1]
    groups = [[decisions[place] for place in group] for group in divide(decisions, 8)]
    assert [len(group) for group in groups] == [6, 7, 7]  # about even, none above 8
    times = [decision.timestamp for group in groups for decision in group]
    assert times == sorted(times)
    assert {decision.agent_id for decision in groups[0]} == {"expert", "fair", "good", "noise"}


async def test_one_agent_costs_nothing_and_a_single_decision_of_one_cannot_be_compared(
    server, judged, make_window, few
):
    scores = await judged(make_window(0, agents=("good",)).decisions)
    assert set(scores.values) == {0.5}
    assert server.requests == []
    scores = await judged(few[:3], group_size=2)
    assert scores.values[0] == 0.5
    assert "nothing to compare" in scores.explanations[0]


VERDICTS = {
    "a": JudgeVerdict(score=0.25, explanation="wise »ä«"),
    "b": JudgeVerdict(score=1.0, explanation=""),
}


def _question(text="which?"):
    messages = ({"role": "user", "content": text},)
    return JudgeQuestion(ids=("a", "b"), members={"a": (0,), "b": (1,)}, messages=messages)


def test_cached_answers_are_found_by_content_and_judge(tmp_path):
    file = tmp_path / "deep" / "judge.sqlite"
    cache = AnswerCache(file)
    assert cache.get("m", _question()) is None
    cache.put("m", _question(), {**VERDICTS, "b": JudgeVerdict(score=0.0, explanation="no")})
    cache.put("m", _question(), VERDICTS)  # takes the place of the earlier one
    assert cache.get("m", _question()) == VERDICTS
    assert cache.get("another", _question()) is None
    assert cache.get("m", _question("who?")) is None
    assert AnswerCache(file).get("m", _question()) == VERDICTS


def test_a_cache_file_that_is_damaged_or_cannot_be_made_is_named_and_not_used(tmp_path, caplog):
    for file in (tmp_path / "judge.sqlite", tmp_path / "judge.sqlite" / "judge.sqlite"):
        (tmp_path / "judge.sqlite").write_bytes(b"no database at all" * 100)
        caplog.clear()
        cache = AnswerCache(file)
        cache.put("m", _question(), VERDICTS)
        assert cache.get("m", _question()) is None
        assert cache.failed
        assert caplog.text.count("judge.sqlite cannot be used") == 1
        assert "remove the file" in caplog.text
        assert (tmp_path / "judge.sqlite").read_bytes() == b"no database at all" * 100


async def test_only_decisions_that_may_be_learned_from_are_judged(judged, window):
    model = Metadata(provider="tiny")
    decisions = [
        replace(one, metadata=model) if one.agent_id in ("expert", "noise") else one
        for one in window
    ]
    scores = await judged(decisions)
    learning = [one for one in decisions if one.metadata.learns]
    judged = [score for score in scores.values if score is not None]
    assert judged == pytest.approx(_expected(learning))
    assert scores.metrics["judge_tokens"] == 5_000
    assert (scores.metrics["scored"], scores.metrics["unscored"]) == (len(learning), 0)
    assert scores.unscored == ""
    for one, score, why in zip(decisions, scores.values, scores.explanations, strict=True):
        assert one.metadata.learns or (score, why) == (None, NOT_JUDGED)
