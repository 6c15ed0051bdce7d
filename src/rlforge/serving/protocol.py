"""The supported part of OpenAI's requests, and its answers.

Unknown parameters are refused, not ignored. Unsupported parameters may be given with the value that
switches them off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from rlforge.types import Completion, value

Neutral = Annotated[float, Field(ge=0, le=0)]
Nothing = Annotated[list[Any] | dict[str, Any], Field(max_length=0)]
Kind = Literal["chat", "text"]
Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class TextPart(_Strict):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class Message(_Strict):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """The message as chat templates take it."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(_Strict):
    """Whether a stream ends with token counts."""

    include_usage: bool = False


class ResponseFormat(_Strict):
    """The format of the answer: plain text only."""

    type: Literal["text"]


class Sampling(_Strict, ABC):
    """The parameters of both kinds of request."""

    kind: ClassVar[Kind]

    model: Text
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    #: Not of OpenAI's API; servers of open models know them.
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, lt=1)
    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = None
    stop: Text | Annotated[list[Text], Field(max_length=4)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, max_length=256)
    n: Annotated[int, Field(ge=1, le=1)] | None = 1
    presence_penalty: Neutral | None = 0
    frequency_penalty: Neutral | None = 0
    logit_bias: Nothing | None = None

    def stops(self) -> tuple[str, ...]:
        """Strings that end the answer."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def limit(self) -> int | None:
        """Maximal number of tokens of the answer; None: the service's default."""
        return self.max_tokens

    @abstractmethod
    def wants_logprobs(self) -> bool:
        """Whether the request asks for log-probabilities of the tokens."""


class ChatRequest(Sampling):
    """``POST /v1/chat/completions``.

    Example:
        >>> body = '{"model": "tictactoe", "messages": [{"role": "user", "content": "Your move?"}]}'
        >>> request = ChatRequest.model_validate_json(body)
        >>> request.messages[0].plain(), request.limit()
        ({'role': 'user', 'content': 'Your move?'}, None)
    """

    kind = "chat"

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = 0
    tools: Nothing | None = None
    tool_choice: Literal["none", "auto"] | None = None
    response_format: ResponseFormat | None = None

    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)


class CompletionRequest(Sampling):
    """``POST /v1/completions``; the prompt is text, token ids, or a list of one of them."""

    kind = "text"

    prompt: str | list[int] | Annotated[list[str], Field(min_length=1, max_length=1)]
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None
    echo: Literal[False] | None = False
    best_of: Annotated[int, Field(ge=1, le=1)] | None = 1
    suffix: Annotated[str, Field(max_length=0)] | None = None

    def wants_logprobs(self) -> bool:
        return self.logprobs is not None


class OutcomeRequest(_Strict):
    """``POST /v1/outcomes``: the reward of the answer ``id``."""

    id: Text
    reward: FiniteFloat


class DeployRequest(_Strict):
    """``POST /admin/deploy``: an adapter or a run on the service's machine."""

    adapter: Text
    checkpoint: Text = "latest"


@value
class Envelope:
    """The fields that all parts of one answer share. model: the name in the request.

    uid: of the version that answers; ``id`` contains it, so that outcomes find their version.
    """

    kind: Kind
    id: str
    created: int
    model: str
    uid: str

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

    def answer(
        self, text: str, finish_reason: str, completion: Completion | None, pieces: list[str] | None
    ) -> dict[str, Any]:
        """A whole answer. completion: None where a stop string ended it early.

        pieces: the text of each token, where the request asks for log-probabilities.
        """
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason, "logprobs": None}
        if self.kind == "chat":
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if pieces is not None and completion is not None:
            choice["logprobs"] = self._logprobs(completion, pieces)
        return self._whole(False, [choice])

    def piece(self, text: str | None, *, first: bool, finish_reason: str | None) -> dict[str, Any]:
        """A part of a streamed answer; ``text`` is None in the last one."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason, "logprobs": None}
        if self.kind == "chat":
            role = {"role": "assistant"} if first else {}
            choice["delta"] = role | ({} if text is None else {"content": text})
        else:
            choice["text"] = text or ""
        return self._whole(True, [choice])

    def usage_piece(self, prompt_tokens: int, tokens: int) -> dict[str, Any]:
        """The chunk that ``stream_options.include_usage`` requests."""
        return self._whole(True, []) | {"usage": usage(prompt_tokens, tokens)}

    def _logprobs(self, completion: Completion, pieces: list[str]) -> dict[str, Any]:
        if self.kind == "chat":
            content = [
                {
                    "token": piece,
                    "logprob": logprob,
                    "bytes": list(piece.encode()),
                    "top_logprobs": [],
                }
                for piece, logprob in zip(pieces, completion.logprobs, strict=True)
            ]
            return {"content": content, "refusal": None}
        offsets = [len("".join(pieces[:index])) for index in range(len(pieces))]
        return {
            "tokens": pieces,
            "token_logprobs": list(completion.logprobs),
            "top_logprobs": None,
            "text_offset": offsets,
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
