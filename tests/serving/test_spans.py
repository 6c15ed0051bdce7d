"""Answers of a service, and decisions of a window, at a collector of OpenTelemetry spans."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.span_collector import Collector, collecting

from rlforge.config.serving import ServeConfig, ServingConfig
from rlforge.engines.base import Engine
from rlforge.errors import ConfigError
from rlforge.preflight.serving import check_traces
from rlforge.ruler.base import NOT_JUDGED, DecisionScores
from rlforge.serving.answering import Answered
from rlforge.serving.server import assembled, compose_service
from rlforge.serving.spans import Spans, spans_of
from rlforge.serving.tokens import Tokens
from rlforge.trajectories.records import Decision, Metadata
from rlforge.types import Completion, SamplingParams

TOKENS = Tokens(client="of a client", admin="of an administrator")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def answer(**changes: Any) -> Answered:
    """``[hold]`` of version 3, after a tool was called."""
    call = {"type": "function", "function": {"name": "price", "arguments": {"of": "p5"}}}
    given = {
        "id": "chatcmpl-deploy-3-1",
        "user": "ann",
        "version": "deploy-3",
        "began": 1000.25,
        "prompt_tokens": 7,
        "tokens": 2,
        "conversation": [
            {"role": "user", "content": "market bet p5"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "0.4", "name": "price"},
        ],
        "tools": (),
        "params": SamplingParams(temperature=0.5, max_tokens=9),
        "text": "[hold]",
        "completion": None,
    }
    return Answered(**given | changes)


def decision(number: int, reward: float | None = 1.0, *, scripted: bool = False) -> Decision:
    completion = Completion(
        text=f"[hold] {number}",
        prompt_token_ids=(5, 6, 7),
        token_ids=(9, 2),
        logprobs=(-0.5, -0.1),
        policy_uid="deploy-2",
        policy_version=2,
    )
    return Decision(
        id=f"agent-1-{number}",
        agent_id="agent-1",
        window_id="2024-11-13-10:00",
        state={"cash": 3.0},
        action={"type": "NO_OP"},
        timestamp=1731492000.0 + number,
        metadata=Metadata(provider="scripted:noise" if scripted else "test"),
        reward=reward,
        observation="market bet p5",
        completion=None if scripted else completion,
    )


# ---------------------------------------------------------------- a service


async def test_an_answer_is_a_span_and_its_outcome_another_that_links_to_it(
    config: ServingConfig, engine: Engine, tmp_path: Any, collector: Collector
) -> None:
    config.serve.traces = collector.url
    before = time.time()
    async with assembled(config, tmp_path / "state", TOKENS, engine) as (_, app):
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            asked = {
                "model": "small",
                "messages": [{"role": "user", "content": "tic tac toe [0]"}],
                "max_tokens": 4,
                "user": "ann",
            }
            given = (await http.post("/v1/chat/completions", json=asked)).json()
            outcome = {"id": given["id"], "reward": 0.75}
            assert (await http.post("/v1/outcomes", json=outcome)).json()["learned"] is False
    [span], [reward] = collector.of_kind("LLM"), collector.of_kind("EVALUATOR")
    assert span.project == reward.project == "small"
    shown, usage = span.attributes, given["usage"]
    assert shown["llm.model_name"] == "deploy-0"
    assert shown["llm.token_count.prompt"] == usage["prompt_tokens"]
    assert shown["llm.token_count.total"] == usage["total_tokens"]
    assert shown["output.value"] == given["choices"][0]["message"]["content"]
    assert shown["llm.input_messages.0.message.content"] == "tic tac toe [0]"
    assert json.loads(shown["llm.invocation_parameters"])["max_tokens"] == 4
    assert before <= span.seconds[0] < span.seconds[1] <= time.time()
    assert (reward.trace, reward.parent, reward.target) == (span.trace, span.id, span.id)
    assert reward.id != span.id
    assert reward.feedback == {"reward": {"score": 0.75, "annotator_kind": "CODE"}}


async def test_messages_tool_calls_and_their_results_are_attributes(collector: Collector) -> None:
    spans = Spans(collector.url, "shop", "here")
    tool = {"type": "function", "function": {"name": "price"}}
    await spans.answered(answer(tools=[tool]))
    spans.close()
    [span] = collector.spans
    shown = span.attributes
    assert json.loads(shown["llm.tools.0.tool.json_schema"]) == tool
    prefix = "llm.input_messages.1.message.tool_calls.0.tool_call.function"
    assert shown[f"{prefix}.name"] == "price"
    assert json.loads(shown[f"{prefix}.arguments"]) == {"of": "p5"}
    assert shown["llm.input_messages.2.message.role"] == "tool"
    assert shown["llm.input_messages.2.message.name"] == "price"
    assert [m["role"] for m in json.loads(shown["input.value"])] == ["user", "assistant", "tool"]
    assert shown["user.id"] == shown["session.id"] == "ann"


async def test_texts_can_be_left_out(collector: Collector) -> None:
    spans = Spans(collector.url, "shop", "here", texts=False)
    await spans.answered(answer(conversation="my secret"))
    spans.close()
    [span] = collector.spans
    assert span.attributes["llm.token_count.completion"] == 2
    assert not any("secret" in str(one) or "[hold]" in str(one) for one in span.attributes.values())


async def test_a_collector_that_is_gone_delays_no_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")
    spans = Spans("http://127.0.0.1:9/v1/traces", "shop", "here")
    began = time.monotonic()
    for number in range(1000):
        await spans.answered(answer(id=f"chatcmpl-{number}"))
    assert time.monotonic() - began < 1
    spans.close()
    assert time.monotonic() - began < 20
    assert "Failed to export" in caplog.text


# ---------------------------------------------------------------- a window


def test_decisions_have_their_reward_their_score_and_the_reason(collector: Collector) -> None:
    decisions = [decision(1), decision(2, None), decision(3, scripted=True), decision(4, -0.5)]
    scores = DecisionScores(
        values=(0.9, None, None, 0.1), explanations=("early", "", NOT_JUDGED, "late"), metrics={}
    )
    spans = Spans(collector.url, "shop", "here")
    spans.send_window(decisions, scores, judged=True, answered=False)
    spans.close()
    first, second, last = collector.spans
    assert first.feedback == {
        "reward": {"score": 1.0, "annotator_kind": "CODE"},
        "score": {"score": 0.9, "annotator_kind": "LLM", "explanation": "early"},
    }
    assert second.feedback == {}
    assert last.feedback["reward"]["score"] == -0.5
    assert first.attributes["llm.model_name"] == "deploy-2"
    assert first.attributes["input.value"] == "market bet p5"
    assert first.attributes["output.value"] == "[hold] 1"
    assert json.loads(first.attributes["metadata"])["window"] == "2024-11-13-10:00"
    assert first.seconds == (1731492001.0, 1731492001.0)
    assert len({span.trace for span in collector.spans}) == 3


def test_the_decisions_of_two_runs_with_the_same_names_are_other_spans(
    collector: Collector,
) -> None:
    for folder in ("one", "other"):
        spans = Spans(collector.url, "shop", folder)
        spans.send_window([decision(1)], None, judged=False, answered=False)
        spans.close()
    assert len({span.id for span in collector.spans}) == 2


async def test_of_answers_to_clients_only_the_score_is_new(collector: Collector) -> None:
    known = decision(1)
    scores = DecisionScores(values=(0.9, None), explanations=("", ""), metrics={})
    async with spans_of(ServeConfig(traces=collector.url), "shop", "here") as spans:
        assert spans is not None
        await spans.answered(answer(id=known.id))
        spans.send_window([known, decision(2)], scores, judged=False, answered=True)
    sent, score = collector.spans
    assert (sent.kind, score.kind, score.target) == ("LLM", "EVALUATOR", sent.id)
    assert score.feedback == {"score": {"score": 0.9, "annotator_kind": "CODE"}}


# ---------------------------------------------------------------- configuration


async def test_without_a_collector_there_are_no_spans() -> None:
    async with spans_of(ServeConfig(), "shop", "here") as spans:
        assert spans is None


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_traces(ServeConfig(traces="http://localhost:6006/v1/traces"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_traces(ServeConfig())
    with pytest.raises(ConfigError, match=r"serve\.traces: .* pip install 'rlforge\[traces\]'"):
        check_traces(ServeConfig(traces="http://localhost:6006/v1/traces"))


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"serve\.traces=localhost:6006 .*http://"):
        compose_service(["serve.traces=localhost:6006"])
