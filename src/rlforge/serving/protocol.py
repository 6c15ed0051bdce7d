"""The supported part of OpenAI's requests, and its answers.

Unknown parameters are refused, not ignored. Unsupported parameters may be given with the value that
switches them off.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator, model_validator
from pydantic_core import from_json

from rlforge.config.schema import template_args_problem
from rlforge.engines.grammars import json_grammar
from rlforge.serving.conversations import calls_grammar, tool_calls, without_calls
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


class Function(_Strict):
    """What a tool does, and its arguments as a JSON schema."""

    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None
    #: Whether arguments of calls are drawn so that they follow ``parameters``.
    strict: bool | None = None


class Tool(_Strict):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class Called(_Strict):
    """The name of a called function, and its arguments as JSON text."""

    name: Text
    arguments: str

    @field_validator("arguments")
    @classmethod
    def _check(cls, arguments: str) -> str:
        # Unlike json.loads this refuses deep nesting with a ValueError.
        if not isinstance(from_json(arguments, allow_inf_nan=False), dict):
            raise ValueError("must be the JSON text of an object")
        return arguments


class ToolCall(_Strict):
    """A call in a former answer."""

    id: Text
    type: Literal["function"]
    function: Called


class Message(_Strict):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls belong to messages of the assistant")
        if self.content is None and not self.tool_calls:
            raise ValueError("a message has content, or tool_calls")
        return self

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it: the arguments of calls are objects."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        said: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": text,
        }
        if self.tool_calls:
            said["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": from_json(call.function.arguments),
                    },
                }
                for call in self.tool_calls
            ]
        if self.role == "tool":
            given = {"name": self.name, "tool_call_id": self.tool_call_id}
            said |= {key: each for key, each in given.items() if each is not None}
        return said


class StreamOptions(_Strict):
    """Whether a stream ends with token counts."""

    include_usage: bool = False


class JsonSchema(_Strict):
    """A schema of answers. Its name and description are not shown to the model."""

    name: Text
    description: str | None = None
    #: Answers follow the schema either way.
    strict: bool | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_Strict):
    """The format of the answer: any text, a JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to the type json_schema")
        return self

    def grammar(self) -> str | None:
        """Of the answer; None: any text."""
        if self.type == "text":
            return None
        asked = self.json_schema
        return json_grammar({"type": "object"} if asked is None else asked.schema_)


class NamedFunction(_Strict):
    """The name of a function."""

    name: Text


class NamedTool(_Strict):
    """The tool that the model must call."""

    type: Literal["function"]
    function: NamedFunction


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

    def offered(self) -> list[dict[str, Any]]:
        """The tools that the model may call, in OpenAI's form."""
        return []

    def grammar(self) -> str | None:
        """The grammar that the answer keeps to; None: any text."""
        return None

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
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = True
    response_format: ResponseFormat | None = None
    #: Arguments of the chat template, before those of ``model.chat_template_args``; vLLM's name.
    chat_template_kwargs: dict[str, Any] | None = None
    #: Labels of a completion that is kept, which none is.
    metadata: dict[str, str] | None = None
    store: bool | None = False

    @field_validator("store")
    @classmethod
    def _check_store(cls, store: bool | None) -> bool | None:
        if store:
            raise ValueError("completions are not kept for a later request; use false")
        return store

    @field_validator("chat_template_kwargs")
    @classmethod
    def _check_arguments(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        if problem := template_args_problem(given or {}):
            raise ValueError(problem)
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [tool.function.name for tool in self.tools or ()]
        choice = self.tool_choice
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            raise ValueError(f"tool_choice names {choice.function.name!r}, which is not in tools")
        if choice == "required" and not names:
            raise ValueError("tool_choice is required, and there are no tools")
        formatted = self.response_format is not None and self.response_format.type != "text"
        if formatted and self.offered():
            raise ValueError("an answer that may call tools has no response_format")
        return self

    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def grammar(self) -> str | None:
        if offered := self.offered():
            choice = self.tool_choice
            if isinstance(choice, NamedTool):
                name = choice.function.name
                offered = [tool for tool in offered if tool["function"]["name"] == name]
            return calls_grammar(
                offered, required=choice not in (None, "auto"), parallel=self.parallel
            )
        return None if self.response_format is None else self.response_format.grammar()

    @property
    def parallel(self) -> bool:
        """Whether an answer may hold several calls of tools; otherwise the first one counts."""
        return self.parallel_tool_calls is not False

    def offered(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]

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
    parallel: whether an answer may hold several calls of tools; otherwise the first one counts.
    """

    kind: Kind
    id: str
    created: int
    model: str
    uid: str
    parallel: bool = True

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

    def calls(self, text: str) -> list[dict[str, Any]]:
        """The calls of tools in an answer, their arguments as JSON text."""
        calls = tool_calls(text, f"call_{self.id[-12:]}")
        return [
            {
                **call,
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                },
            }
            for call in (calls if self.parallel else calls[:1])
        ]

    def answer(
        self,
        text: str,
        finish_reason: str,
        completion: Completion | None,
        pieces: list[str] | None,
        *,
        tools: bool = False,
    ) -> dict[str, Any]:
        """A whole answer. completion: None where a stop string ended it early.

        pieces: the text of each token, where the request asks for log-probabilities. tools: whether
        the model may have called some.
        """
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason, "logprobs": None}
        if self.kind == "chat":
            choice["message"] = {"role": "assistant", "content": text}
            if calls := self.calls(text) if tools else ():
                choice["message"] |= {"content": without_calls(text) or None, "tool_calls": calls}
                choice["finish_reason"] = "tool_calls"
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

    def called_piece(self, text: str, *, first: bool) -> dict[str, Any]:
        """The part of a streamed answer that holds its calls of tools."""
        piece = self.piece(without_calls(text) or None, first=first, finish_reason=None)
        calls = [{"index": place, **call} for place, call in enumerate(self.calls(text))]
        piece["choices"][0]["delta"]["tool_calls"] = calls
        return piece

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
