"""The supported part of OpenAI's requests.

Unsupported parameters may be given as null, or with a value that switches them off.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    Json,
    field_validator,
    model_validator,
)

from rlforge.config.prompts import template_args_problem
from rlforge.continuous.serving.conversations import calls_grammar
from rlforge.continuous.serving.errors import RequestError
from rlforge.engines.grammars import json_grammar
from rlforge.errors import nearest

Kind = Literal["chat", "text"]
Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class Function(_Strict):
    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None
    #: Whether arguments of calls are drawn so that they follow ``parameters``.
    strict: bool | None = None


class Tool(_Strict):
    type: Literal["function"]
    function: Function


class Called(_Strict):
    name: Text
    #: Read from their JSON text: chat templates write an object as the model does, and a text with
    #: escapes.
    arguments: Json[dict[str, Any]]


class ToolCall(_Strict):
    id: Text
    type: Literal["function"]
    function: Called


class Message(_Strict):
    #: What clients send back of an answer that has none of it.
    unused: ClassVar[set[str]] = {
        *("refusal", "annotations", "audio", "function_call", "reasoning", "reasoning_content")
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_unused(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        # Clients send answers back as they got them, with such fields empty.
        return {key: each for key, each in given.items() if each or key not in cls.unused}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls belong to messages of the assistant")
        if self.content is None and not self.tool_calls:
            raise ValueError("a message has content, or tool_calls")
        return self

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        said: dict[str, Any] = {
            # Chat templates know only this role's older name.
            "role": "system" if self.role == "developer" else self.role,
            "content": text,
        }
        if self.tool_calls:
            said["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.role == "tool":
            given = {"name": self.name, "tool_call_id": self.tool_call_id}
            said |= {key: each for key, each in given.items() if each is not None}
        return said


class StreamOptions(_Strict):
    include_usage: bool = False


class JsonSchema(_Strict):
    name: Text
    description: str | None = None
    #: Answers follow the schema either way.
    strict: bool | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to the type json_schema")
        return self

    def grammar(self) -> str | None:
        if self.type == "text":
            return None
        asked = self.json_schema
        # OpenAI's json_object is an object, whatever is in it.
        return json_grammar({"type": "object"} if asked is None else asked.schema_)


class Sampling(_Strict, ABC):
    kind: ClassVar[Kind]

    #: Parameters that are refused, with the values that may be given beside null.
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        "n": (1,),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
        "repetition_penalty": (1,),
        "logit_bias": ({}, []),
        "min_tokens": (0,),
        "service_tier": ("auto", "default"),
    }

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
    #: Hints for caches and for moderation, which there are not.
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        # A parameter that is ignored would give answers other than those asked for.
        for name in given.keys() - cls.model_fields.keys():
            if name not in cls.refused:
                close = nearest(str(name), [*cls.model_fields, *cls.refused])
                raise RequestError(
                    f"{name}: unknown parameter{close}", param=str(name), code="unknown_parameter"
                )
            neutral = cls.refused[name]
            if given[name] is not None and not any(_same(given[name], each) for each in neutral):
                values = "".join(f" or give {json.dumps(each)}" for each in neutral[:1])
                raise RequestError(
                    f"{name}: not supported; leave it out{values}",
                    param=name,
                    code="unsupported_parameter",
                )
        return {name: each for name, each in given.items() if name in cls.model_fields}

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def limit(self) -> int | None:
        """Most tokens of the answer; None: the service's default."""
        return self.max_tokens

    def offered(self) -> list[dict[str, Any]]:
        """The tools that the model may call, in OpenAI's form."""
        return []

    def grammar(self) -> str | None:
        """The grammar that the answer keeps to; None: any text."""
        return None

    @abstractmethod
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities of the tokens are asked for."""


def _same(given: Any, neutral: Any) -> bool:
    # In Python ``True`` equals 1, but "n": true is a mistake.
    numbers = all(type(each) in (int, float) for each in (given, neutral))
    return bool(given == neutral) and (numbers or type(given) is type(neutral))


class ChatRequest(Sampling):
    """``POST /v1/chat/completions``."""

    kind = "chat"
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        **Sampling.refused,
        "top_logprobs": (0,),
        "reasoning_effort": (),
        "verbosity": (),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "functions": ([],),
        "function_call": (),
        "store": (False,),
    }

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = False
    tools: list[Tool] | None = None
    #: A tool that is named is one of ``tools``, of which only the name counts.
    tool_choice: Literal["none", "auto", "required"] | Tool | None = None
    parallel_tool_calls: bool | None = True
    response_format: ResponseFormat | None = None
    #: Arguments of the chat template, before those of ``model.chat_template_args``; vLLM's name.
    chat_template_kwargs: dict[str, Any] | None = None
    #: Labels of a completion that is kept, which none is.
    metadata: dict[str, str] | None = None

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
        if isinstance(choice, Tool) and choice.function.name not in names:
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
            if isinstance(choice := self.tool_choice, Tool):
                name = choice.function.name
                offered = [tool for tool in offered if tool["function"]["name"] == name]
            return calls_grammar(offered, required=self.must_call, parallel=self.parallel)
        return None if self.response_format is None else self.response_format.grammar()

    @property
    def parallel(self) -> bool:
        # null stands for OpenAI's default, which is true.
        return self.parallel_tool_calls is not False

    @property
    def must_call(self) -> bool:
        return self.tool_choice not in (None, "auto")

    def said(self) -> list[dict[str, Any]]:
        return [message.plain() for message in self.messages]

    def offered(self) -> list[dict[str, Any]]:
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]

    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)


class CompletionRequest(Sampling):
    """``POST /v1/completions``; the prompt is text, token ids, or a list of one of them."""

    kind = "text"
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        **Sampling.refused,
        "echo": (False,),
        "best_of": (1,),
        "suffix": ("",),
    }

    prompt: str | list[int]
    #: 0 or 1: of the tokens of the answer. Those of other tokens are not given.
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _check_prompt(cls, prompt: Any) -> Any:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            if len(prompt) > 1:
                raise ValueError("several prompts are not supported; send a request for each")
            return prompt[0]
        return prompt

    def wants_logprobs(self) -> bool:
        return self.logprobs is not None


class OutcomeRequest(_Strict):
    """``POST /v1/outcomes``: the reward of the answer ``id``."""

    id: Text
    reward: FiniteFloat


class DeployRequest(_Strict):
    """``POST /admin/deploy``: an adapter or a run on the service's machine."""

    adapter: Text
    checkpoint: Text = "result"
