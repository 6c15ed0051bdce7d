"""A judge's model behind an OpenAI-compatible HTTP endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlforge.config.ruler import JudgeConfig
from rlforge.config.schema import ApiConfig
from rlforge.engines.openai import Endpoint, check_api
from rlforge.errors import ConfigError
from rlforge.ruler.judge_backends import Failure, JudgeError, Reply, estimated_tokens
from rlforge.ruler.question import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI

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
