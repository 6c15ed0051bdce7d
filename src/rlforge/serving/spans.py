"""Answers, and what is known about them, as OpenTelemetry spans.

An answer is a span of kind LLM. A reward or a score that is known later is a span of kind EVALUATOR
in the same trace, with a link to the answer. Attributes are those of OpenInference
(https://github.com/Arize-ai/openinference, in its specification: llm_spans.md, annotations.md),
which Phoenix, Langfuse and other collectors show.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Literal

from rlforge.config.serving import ServeConfig
from rlforge.ruler.base import DecisionScores
from rlforge.serving.answering import Answered
from rlforge.trajectories.records import Decision
from rlforge.types import Completion, value

#: Spans that wait for the collector; beyond it new ones are dropped, and the log says so.
_WAITING = 65536


@value
class Feedback:
    """A judgement of an answer. by: CODE, or LLM for a language model's."""

    name: str
    score: float
    explanation: str = ""
    by: Literal["CODE", "LLM"] = "CODE"


class Spans:
    """Sends spans to a collector, in batches and in a thread of its own; observes a service.

    A collector that is slow or gone delays nothing: what it misses is logged and lost. Credentials
    come from the environment (``OTEL_EXPORTER_OTLP_HEADERS``).
    """

    def __init__(self, endpoint: str, project: str, origin: str, *, texts: bool = True) -> None:
        """endpoint: of OTLP over HTTP, as in ``http://localhost:6006/v1/traces``.

        project: under which the collector shows the spans. origin: distinguishes runs that give
        their decisions the same ids. texts: whether clients' prompts and answers are sent.
        """
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._origin, self._texts = origin, texts
        self._resource = Resource.create(
            {"service.name": "rlforge", "openinference.project.name": project}
        )
        self._processor: Any = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=endpoint), max_queue_size=_WAITING
        )

    def close(self) -> None:
        """Send what waits, for at most 30 seconds."""
        self._processor.shutdown()

    # ------------------------------------------------------------ a service

    async def answered(self, answer: Answered) -> None:
        """Send the answer to a client."""
        params = answer.params
        given = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "max_tokens": params.max_tokens,
        }
        attributes: dict[str, Any] = {
            **_llm(answer.version, answer.user, answer.prompt_tokens, answer.tokens),
            "llm.invocation_parameters": json.dumps(given),
        }
        if self._texts:
            attributes |= _texts(answer.conversation, answer.text) | {
                f"llm.tools.{place}.tool.json_schema": _json(tool)
                for place, tool in enumerate(answer.tools)
            }
        self._send(answer.id, "answer", attributes, answer.began, time.time())

    async def rewarded(self, answer_id: str, reward: float) -> bool:
        """Send the reward of an answer; False, because it makes no other use of it."""
        self._send_feedback(answer_id, [Feedback(name="reward", score=reward)])
        return False

    # ------------------------------------------------------------ a window

    def send_window(
        self,
        decisions: Sequence[Decision],
        scores: DecisionScores | None,
        *,
        judged: bool,
        answered: bool,
    ) -> None:
        """Send the decisions of language models in a window, with their rewards and scores.

        scores: in the order of ``decisions``; None: there are none. judged: they are a language
        model's. answered: the decisions are answers to clients, which were sent before with their
        rewards; only the scores are new.
        """
        for place, decision in enumerate(decisions):
            feedback = []
            if decision.reward is not None and not answered:
                feedback.append(Feedback(name="reward", score=decision.reward))
            if scores is not None and (score := scores.values[place]) is not None:
                feedback.append(
                    Feedback(
                        name="score",
                        score=score,
                        explanation=scores.explanations[place],
                        by="LLM" if judged else "CODE",
                    )
                )
            if answered:
                self._send_feedback(decision.id, feedback)
            elif decision.completion is not None:
                self._send_decision(decision, decision.completion, feedback)

    def _send_decision(
        self, decision: Decision, completion: Completion, feedback: Sequence[Feedback]
    ) -> None:
        conversation = decision.state.get("messages", decision.observation)
        tokens = len(completion.prompt_token_ids), len(completion.token_ids)
        about = {"window": decision.window_id, "action": decision.action}
        attributes = {
            **_llm(completion.policy_uid, decision.agent_id, *tokens),
            **_texts(conversation, completion.text),
            **_evaluations(feedback),
            "metadata": json.dumps(about, ensure_ascii=False),
        }
        self._send(decision.id, "decision", attributes, decision.timestamp, decision.timestamp)

    def _send_feedback(self, answer_id: str, feedback: Sequence[Feedback]) -> None:
        """Send what is known by now about an answer that was sent before."""
        if feedback:
            attributes = {"openinference.span.kind": "EVALUATOR", **_evaluations(feedback)}
            now = time.time()
            self._send(f"{answer_id}/{now}", "feedback", attributes, now, now, about=answer_id)

    def _send(
        self,
        name: str,
        kind: str,
        attributes: Mapping[str, Any],
        begin: float,
        end: float,
        *,
        about: str | None = None,
    ) -> None:
        """name: unique in the run. begin, end: seconds since 1970. about: name of an answer."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link

        target = None if about is None else self._context(about)
        self._processor.on_end(
            ReadableSpan(
                kind,
                context=self._context(name, None if target is None else target.trace_id),
                parent=target,
                resource=self._resource,
                attributes=dict(attributes),
                links=() if target is None else (Link(target),),
                start_time=round(begin * 1e9),
                end_time=round(end * 1e9),
            )
        )

    def _context(self, name: str, trace: int | None = None) -> Any:
        """Ids that follow from ``name``. trace: of another span; None: its own."""
        from opentelemetry.trace import SpanContext, TraceFlags

        digest = hashlib.sha256(f"{self._origin}\0{name}".encode()).digest()
        own = int.from_bytes(digest[:16], "big")
        return SpanContext(
            trace_id=own if trace is None else trace,
            span_id=int.from_bytes(digest[16:24], "big"),
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )


@contextlib.asynccontextmanager
async def spans_of(
    config: ServeConfig, project: str, origin: str, *, texts: bool = True
) -> AsyncIterator[Spans | None]:
    """Spans for the collector ``serve.traces`` during the block; None where there is none.

    project, origin, texts: as for ``Spans``.
    """
    if config.traces is None:
        yield None
        return
    spans = Spans(config.traces, project, origin, texts=texts)
    try:
        yield spans
    finally:
        await asyncio.to_thread(spans.close)


def _llm(version: str, user: str, prompt: int, generated: int) -> dict[str, Any]:
    return {
        "openinference.span.kind": "LLM",
        "llm.system": "rlforge",
        "llm.model_name": version,
        "session.id": user,
        "user.id": user,
        "llm.token_count.prompt": prompt,
        "llm.token_count.completion": generated,
        "llm.token_count.total": prompt + generated,
    }


def _texts(conversation: Sequence[Mapping[str, Any]] | str, answer: str) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "output.value": answer,
        "output.mime_type": "text/plain",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": answer,
    }
    if isinstance(conversation, str):
        return shown | {"input.value": conversation, "input.mime_type": "text/plain"}
    for place, message in enumerate(conversation):
        for key in ("role", "content", "name", "tool_call_id"):
            if isinstance(message.get(key), str):
                shown[f"llm.input_messages.{place}.message.{key}"] = message[key]
        for number, call in enumerate(message.get("tool_calls") or ()):
            prefix = f"llm.input_messages.{place}.message.tool_calls.{number}.tool_call"
            called = call["function"]
            shown[f"{prefix}.function.name"] = called["name"]
            shown[f"{prefix}.function.arguments"] = _json(called.get("arguments", {}))
    return shown | {
        "input.value": _json([dict(message) for message in conversation]),
        "input.mime_type": "application/json",
    }


def _json(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _evaluations(feedback: Iterable[Feedback]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for place, one in enumerate(feedback):
        prefix = f"evaluations.{place}.evaluation"
        found |= {
            f"{prefix}.name": one.name,
            f"{prefix}.score": float(one.score),
            f"{prefix}.annotator_kind": one.by,
        }
        if one.explanation:
            found[f"{prefix}.explanation"] = one.explanation
    return found
