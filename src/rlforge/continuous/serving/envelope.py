"""OpenAI's answers: whole ones, the pieces of streamed ones, and errors."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from typing import Any

from rlforge.continuous.serving.conversations import ends_in_call, tool_calls, without_calls
from rlforge.continuous.serving.protocol import Kind
from rlforge.types import value


@value
class ScoredToken:
    """A token of an answer, and its log-probability by the model's own distribution.

    text: as shown, the name of a special token. data: its bytes of the answer's text.
    """

    text: str
    data: bytes
    logprob: float


@value
class Envelope:
    """The fields that all parts of one answer share. model: the name in the request.

    uid: of the version that answers; ``id`` contains it, so that outcomes find their version.
    parallel: whether an answer may hold several calls of tools; otherwise the first one counts.
    tools: whether the model may call some; required: whether it must.
    """

    kind: Kind
    id: str
    created: int
    model: str
    uid: str
    parallel: bool = True
    tools: bool = False
    required: bool = False

    def answer(
        self, text: str, finish_reason: str, scored: Sequence[ScoredToken] | None
    ) -> dict[str, Any]:
        """A whole answer. scored: its tokens, where the request asks for log-probabilities."""
        choice: dict[str, Any] = {"index": 0, "logprobs": self._logprobs(scored)}
        content, calls, choice["finish_reason"] = self._read(text, finish_reason)
        if self.kind == "chat":
            called = {"tool_calls": calls} if calls else {}
            choice["message"] = {"role": "assistant", "content": content, **called}
        else:
            choice["text"] = text
        return self._whole(False, [choice])

    def piece(self, text: str, *, first: bool) -> dict[str, Any]:
        """A part of a streamed answer."""
        if self.kind == "text":
            return self._part({"text": text})
        return self._part({"delta": self._role(first) | {"content": text}})

    def last_pieces(
        self, rest: str, finish_reason: str, scored: Sequence[ScoredToken] | None, *, first: bool
    ) -> list[dict[str, Any]]:
        """The end of a streamed answer. rest: of its text, all where the model may call tools."""
        content, calls, finish_reason = self._read(rest, finish_reason)
        logprobs, pieces = self._logprobs(scored), []
        if self.kind == "text":
            if rest or logprobs:
                pieces.append(self._part({"text": rest, "logprobs": logprobs}))
            return [*pieces, self._part({"text": "", "finish_reason": finish_reason})]
        if content or calls or logprobs:
            delta = self._role(first) | {"content": content}
            if calls:
                delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(calls)]
            pieces.append(self._part({"delta": delta, "logprobs": logprobs}))
        delta = self._role(first and not pieces)
        return [*pieces, self._part({"delta": delta, "finish_reason": finish_reason})]

    def usage_piece(self, prompt_tokens: int, tokens: int) -> dict[str, Any]:
        """The chunk that ``stream_options.include_usage`` requests."""
        return self._whole(True, []) | {"usage": usage(prompt_tokens, tokens)}

    def _read(self, text: str, finish_reason: str) -> tuple[str | None, list[dict[str, Any]], str]:
        """Text of an answer, its calls of tools, and why it ended.

        A call that ``max_tokens`` cuts is neither, and the answer then ends by its length.
        """
        if not self.tools:
            return text, [], finish_reason
        cut = finish_reason == "length"
        calls = [
            {
                **call,
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                },
            }
            for call in tool_calls(text, f"call_{self.id[-12:]}")
        ]
        content = "" if self.required else without_calls(text, cut=cut)
        if not calls and content == text.strip():
            content = text
        if calls and (not cut or ends_in_call(text)):
            finish_reason = "tool_calls"
        return content or None, calls if self.parallel else calls[:1], finish_reason

    def _role(self, first: bool) -> dict[str, Any]:
        return {"role": "assistant"} if first else {}

    def _part(self, fields: dict[str, Any]) -> dict[str, Any]:
        return self._whole(True, [{"index": 0, "finish_reason": None, "logprobs": None, **fields}])

    def _whole(self, chunk: bool, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = "chat.completion" if self.kind == "chat" else "text_completion"
        return {
            "id": self.id,
            "object": f"{name}.chunk" if chunk and self.kind == "chat" else name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.uid,
            "choices": choices,
        }

    def _logprobs(self, scored: Sequence[ScoredToken] | None) -> dict[str, Any] | None:
        if scored is None:
            return None
        if self.kind == "chat":
            content = [
                {
                    "token": each.text,
                    "logprob": each.logprob,
                    "bytes": list(each.data),
                    "top_logprobs": [],
                }
                for each in scored
            ]
            return {"content": content, "refusal": None}
        whole, offsets = codecs.getincrementaldecoder("utf-8")(errors="replace"), [0]
        for each in scored:
            offsets.append(offsets[-1] + len(whole.decode(each.data)))
        return {
            "tokens": [each.text for each in scored],
            "token_logprobs": [each.logprob for each in scored],
            "top_logprobs": None,
            "text_offset": offsets[:-1],
        }


def usage(prompt_tokens: int, tokens: int) -> dict[str, int]:
    """Token counts of one answer."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
    }


def error_body(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> Any:
    """An error in the form that OpenAI's clients read."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
