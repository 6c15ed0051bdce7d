"""Who answers a judge's question: any model that a conversation can be had with."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rlforge.config.ruler import JudgeConfig
from rlforge.config.schema import ApiConfig
from rlforge.engines.base import Generator
from rlforge.engines.openai import Endpoint, check_api
from rlforge.errors import ConfigError, EngineDeadError, EngineError
from rlforge.games.prompts import Tokenizer
from rlforge.ruler.question import Message, UnusableAnswerError, asked_ids, read
from rlforge.types import PolicyRef, SamplingParams, value

if TYPE_CHECKING:
    from openai import AsyncOpenAI


#: Characters per token, where nobody counts: low, so that estimates are high.
_CHARS_PER_TOKEN = 3

#: The number that follows ``"score":``, and how many tokens it takes at most.
_NUMBER, _NUMBER_TOKENS = re.compile(r'"score":\s*([01](?:\.\d+)?)'), 6

#: again: another try may help. form: the form of answer asked for is not known there, and the next
#: call asks for a simpler one. rejected: this question will not be answered. refused: none will be.
Failure = Literal["again", "form", "rejected", "refused"]


@value
class Reply:
    """text: the answer. tokens: of prompt and answer together."""

    text: str
    tokens: int


class JudgeError(EngineError):
    """No answer. kind: what may be done; wait_s: how long the other side asks to wait."""

    def __init__(self, message: str, kind: Failure, *, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.kind, self.wait_s = kind, wait_s


class JudgeBackend(Protocol):
    """Answers a conversation, in one call."""

    @property
    def name(self) -> str:
        """Model and place, without secrets: part of what answers are remembered under."""
        ...

    async def answer(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> Reply:
        """The model's words, JSON of ``schema`` if it can hold to it. Raises JudgeError."""
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...


def estimated_tokens(messages: Sequence[Message], answer: str = "") -> int:
    """Tokens of a conversation by its length, rather too many than too few."""
    length = sum(len(message["content"]) for message in messages) + len(answer)
    return length // _CHARS_PER_TOKEN + 8 * len(messages)


@value
class LocalModel:
    """A model that an engine of the house holds, and the tokenizer that belongs to it."""

    generator: Generator
    tokenizer: Tokenizer
    policy: PolicyRef
    stop_token_ids: tuple[int, ...] = ()


class LocalJudge:
    """A local model as a judge. Without ``ruler.judge.sampling_temperature`` it is greedy.

    The answer is begun for the model. One that does not keep to the form all the same is asked
    for each number alone, where nothing else fits: then there are scores without explanations.
    """

    def __init__(self, config: JudgeConfig, model: LocalModel) -> None:
        self._model = model
        self._params = SamplingParams(
            temperature=config.sampling_temperature or 0.0,
            max_tokens=config.max_answer_tokens,
            stop_token_ids=model.stop_token_ids,
        )
        self._timeout_s = config.timeout_s

    @property
    def name(self) -> str:
        """See ``JudgeBackend``."""
        policy = self._model.policy
        return f"engine {policy.uid} {policy.path_or_name} {policy.version}"

    async def answer(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> Reply:
        """See ``JudgeBackend``."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._in_form(messages, asked_ids(schema))
        except TimeoutError as error:
            message = f"no answer within ruler.judge.timeout_s {self._timeout_s:g} s"
            raise JudgeError(message, "again") from error
        except EngineDeadError as error:
            raise JudgeError(str(error), "refused") from error
        except EngineError as error:
            raise JudgeError(str(error), "rejected") from error

    async def close(self) -> None:
        """The engine belongs to whoever made it."""

    async def _in_form(self, messages: Sequence[Message], ids: Sequence[str]) -> Reply:
        whole = await self._continued(messages, '{"scores": [{"id": "', self._params)
        try:
            read(whole.text, ids)
            return whole
        except UnusableAnswerError:
            pass
        short = dataclasses.replace(self._params, max_tokens=_NUMBER_TOKENS)
        parts = await asyncio.gather(
            *(
                self._continued(messages, f'{{"scores": [{{"id": "{name}", "score":', short)
                for name in ids
            )
        )
        found = [_NUMBER.search(part.text) for part in parts]
        entries = [
            {"id": name, "explanation": "", "score": float(number[1])}
            for name, number in zip(ids, found, strict=True)
            if number
        ]
        tokens = whole.tokens + sum(part.tokens for part in parts)
        return Reply(text=json.dumps({"scores": entries}), tokens=tokens)

    async def _continued(
        self, messages: Sequence[Message], begun: str, params: SamplingParams
    ) -> Reply:
        """The model's answer to ``messages``, which begins with ``begun``."""
        prompt = self._model.tokenizer.encode(
            self._text(messages) + begun, add_special_tokens=False
        )
        completion = await self._model.generator.generate(prompt, params, self._model.policy)
        tokens = len(prompt) + len(completion.token_ids)
        return Reply(text=begun + completion.text, tokens=tokens)

    def _text(self, messages: Sequence[Message]) -> str:
        tokenizer = self._model.tokenizer
        if not tokenizer.chat_template:
            return "\n\n".join(message["content"] for message in messages) + "\n\nAnswer:"
        return str(
            tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        )


#: Forms of an answer, from the strictest on.
FORMS = ("json_schema", "json_object", "text")

#: Statuses with which a server refuses this caller altogether, and those that another try may mend.
_REFUSED = (401, 403, 404)
_AGAIN = (408, 409, 425, 429)

_LONGEST_WAIT_S = 8.0


def check_endpoint(config: JudgeConfig) -> Endpoint:
    """Where ``ruler.judge.model`` answers. Raises ConfigError for a bad name or a missing key."""
    urls: dict[str, Any] = {}
    if config.base_url is not None:
        urls = {"openai_base_url": config.base_url, "openrouter_base_url": config.base_url}
    try:
        return check_api(config.model, ApiConfig(**urls))
    except ConfigError as error:
        raise ConfigError(f"ruler.judge.model={config.model}: {error}") from None


class ApiJudge:
    """See ``rlforge.ruler.judge_backends.JudgeBackend``. The key is never part of a message."""

    def __init__(self, config: JudgeConfig) -> None:
        self._config, self._endpoint = config, check_endpoint(config)
        self._client: AsyncOpenAI | None = None
        self._forms = FORMS if config.structured == "auto" else (config.structured,)
        self._form = self._accepted = 0

    @property
    def name(self) -> str:
        """See ``JudgeBackend``."""
        return f"{self._config.model} at {self._endpoint.base_url or 'its API'}"

    async def answer(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> Reply:
        """See ``JudgeBackend``. Once a form was accepted, stricter ones are not asked for again."""
        form = self._form
        try:
            reply = await self._request(messages, schema, self._forms[form])
        except JudgeError as error:
            if error.kind != "rejected":
                raise
            if form + 1 < len(self._forms):
                self._form = max(self._form, form + 1)
                raise JudgeError(str(error), "form") from error
            self._form = self._accepted  # it was not the form
            raise
        self._accepted = form
        return reply

    async def close(self) -> None:
        """See ``JudgeBackend``."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _request(
        self, messages: Sequence[Message], schema: Mapping[str, Any], form: str
    ) -> Reply:
        import openai

        config, where = self._config, self.name
        options = self._options(messages, schema, form)
        try:
            # The library's time-out is between two bytes; a server that drips is cut off here.
            async with asyncio.timeout(config.timeout_s):
                response: Any = await self._connected().chat.completions.create(**options)
            choice = response.choices[0]
            text, finish = choice.message.content, choice.finish_reason
            used = getattr(response.usage, "total_tokens", None)
        except (openai.APITimeoutError, TimeoutError) as error:
            message = f"{where} gave no answer within ruler.judge.timeout_s {config.timeout_s:g} s"
            raise JudgeError(message, "again") from error
        except openai.APIStatusError as error:
            raise self._status_error(error) from error
        except openai.APIConnectionError as error:
            raise JudgeError(f"{where} cannot be reached", "again") from error
        except (openai.OpenAIError, ValueError, AttributeError, LookupError, TypeError) as error:
            # A body that is not JSON, or no chat completion.
            message = f"{where} gave an unreadable answer: {self._shown(error)}"
            raise JudgeError(message, "again") from error
        if not isinstance(text, str) or not text.strip():
            message = f"{where} gave an answer without text (finish_reason {finish!r})"
            raise JudgeError(message, "again")
        counted = used if isinstance(used, int) and used > 0 else estimated_tokens(messages, text)
        return Reply(text=text, tokens=counted)

    def _options(
        self, messages: Sequence[Message], schema: Mapping[str, Any], form: str
    ) -> dict[str, Any]:
        config = self._config
        # OpenAI's own newer models know the limit under this name only, other servers not at all.
        own = self._endpoint.provider == "openai" and self._endpoint.base_url is None
        options: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": list(messages),
            "max_completion_tokens" if own else "max_tokens": config.max_answer_tokens,
        }
        if config.sampling_temperature is not None:
            options["temperature"] = config.sampling_temperature
        if form == "json_schema":
            named = {"name": "scores", "strict": True, "schema": dict(schema)}
            options["response_format"] = {"type": "json_schema", "json_schema": named}
        elif form == "json_object":
            options["response_format"] = {"type": "json_object"}
        return options

    def _status_error(self, error: Any) -> JudgeError:
        status = error.status_code
        kind: Failure = "rejected"
        if status in _REFUSED:
            kind = "refused"
        elif status in _AGAIN or status >= 500:
            kind = "again"
        message = f"{self.name} refused with HTTP status {status}: {self._shown(error)}"
        return JudgeError(message, kind, wait_s=_asked_wait(error.response.headers))

    def _connected(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        if self._client is None:
            self._client = AsyncOpenAI(
                api_key=self._endpoint.key,
                base_url=self._endpoint.base_url,
                timeout=self._config.timeout_s,
                max_retries=0,  # each try is counted where the budget is
            )
        return self._client

    def _shown(self, error: object) -> str:
        text = " ".join(str(error).split()).replace(self._endpoint.key, "***")
        return text[:200]


def _asked_wait(headers: Mapping[str, str]) -> float:
    """Seconds of a ``Retry-After`` header, 0 without one, at most ``_LONGEST_WAIT_S``."""
    try:
        seconds = float(headers.get("retry-after", "0"))
    except ValueError:  # a date: rare, and our own pauses will do
        return 0.0
    return min(max(seconds, 0.0), _LONGEST_WAIT_S)
