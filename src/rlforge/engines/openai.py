"""The client of language models behind HTTP APIs, and the players that ask them for moves.

``openai:MODEL``, ``openrouter:MODEL`` and ``litellm:PROVIDER/MODEL`` name opponents in games,
traders, and judges of decisions. API keys come from the environment only, and are never part of a
message.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rlforge.config.pool import ApiSettings
from rlforge.config.rules import ADDRESS, is_address
from rlforge.errors import ConfigError, EngineError, PromptTooLongError
from rlforge.games.markup import Message
from rlforge.record.results import ApiUsage
from rlforge.system.network import (
    check_proxies,
    on_loopback,
    spare_loopback,
    through,
    without_credentials,
)
from rlforge.system.packages import need_packages
from rlforge.types import Completion, FinishReason, PolicyRef, value

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger(__name__)

#: Where ``openai:MODEL`` and ``openrouter:MODEL`` answer.
OPENAI_URL = "https://api.openai.com/v1"
OPENROUTER_URL = "https://openrouter.ai/api/v1"
_URL_VARIABLE = "OPENAI_BASE_URL"
#: The variable with a provider's key; LiteLLM knows those of its own.
_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "openrouter": "OPENROUTER_API_KEY", "litellm": ""}
#: Sent to servers on this machine, which need no key.
_NO_KEY = "none"
#: How the names of environment variables end that hold keys.
_SECRETS = ("_API_KEY", "_TOKEN", "_SECRET_ACCESS_KEY")

#: HTTP statuses with which a server refuses every request of this caller, and those after which the
#: library has tried again (as after 500 and above).
_REFUSED = (401, 403, 404)
_TRIED = (408, 409, 425, 429)

#: The status of a request that is too large, those that others give messages which are too long,
#: and the words in which they say so.
_TOO_LARGE = 413
_MAYBE_TOO_LONG = (400, 422, 500)
# LiteLLM finds 4 of the 18 answers that the tests know.
_TOO_LONG = re.compile(
    r"context[ _-]?(length|size|window|limit)"  # OpenAI, vLLM, SGLang, llama.cpp, LM Studio, Ollama
    r"|(prompt|input)s?( \([^)]*\))? (is |are )?too long"  # Anthropic, Bedrock, Ollama
    r"|\binputs\b`? (tokens .*must be <=|must have less than)"  # text-generation-inference
    r"|maximum (prompt|input|model) length"  # xAI, vLLM
    r"|input (length|token count) .*exceeds",  # SGLang, Gemini
    re.IGNORECASE | re.DOTALL,
)

#: Names of one argument: OpenAI's newer models take the second alone, most other servers the first.
_OTHER_NAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
#: Words in which servers say that they do not know or take an argument at all.
_NOT_TAKEN = re.compile(
    r"(un|not |n't )(supported|recognized|known|expected|permitted|allowed)|\binstead\b"
    r"|\bextra (inputs|fields)\b|\bdoes not (support|take|accept|exist)",
    re.IGNORECASE,
)

#: Tries of a player's request after the first.
RETRIES = 2
#: Longest pause of the client library before another try.
_LONGEST_PAUSE_S = 8.0

#: unusable: an answer without text, where another may have some. silent: no answer in any try.
#: rejected: this request always fails. refused: every request fails. spent: the most tokens of an
#: answer were used up before there was any text, as by a model that reasons.
ChatFailure = Literal["unusable", "silent", "rejected", "refused", "spent"]


@value
class Usage:
    """Tokens, 0 where the server does not say, and dollars, None where they are not known."""

    prompt_tokens: int = 0
    answer_tokens: int = 0
    cost: float | None = None

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.prompt_tokens + self.answer_tokens


_NOTHING = Usage()


@value
class ChatReply:
    """An answer that has text, and what it took."""

    text: str
    finish_reason: FinishReason = "stop"
    used: Usage = _NOTHING


class ChatError(EngineError):
    """No usable answer; ``used`` was paid for an answer without text."""

    def __init__(self, message: str, kind: ChatFailure, used: Usage = _NOTHING) -> None:
        super().__init__(message)
        self.kind, self.used = kind, used


class ChatTooLongError(ChatError, PromptTooLongError):
    """The messages do not fit into the context of the model behind the API."""


@value
class Endpoint:
    """A model at an API.

    Attributes:
        base_url: None for the library's default address of ``provider``.
        key: Empty where LiteLLM reads it from the environment.
    """

    provider: str
    model: str
    base_url: str | None
    key: str

    def __str__(self) -> str:
        where = without_credentials(self.base_url) if self.base_url else "its API"
        return f"{self.provider}:{self.model} at {where}"


def _given(response: Any) -> object:
    """The fields that a server has set, of a response of the client library."""
    dump = getattr(response, "model_dump_json", None)
    return response if dump is None else dump(exclude_unset=True)


def _shown(content: object) -> str:
    """At most 200 characters of ``content``, on one line and without keys."""
    text = " ".join(str(content).split())
    for name, secret in os.environ.items():
        if name.endswith(_SECRETS) and secret.strip():
            text = text.replace(secret.strip(), "***")
    return text[:200]


def check_api(name: str, config: ApiSettings, base_url: str | None = None) -> Endpoint:
    """The endpoint of ``openai:MODEL``, ``openrouter:MODEL`` or ``litellm:PROVIDER/MODEL``.

    ``base_url`` replaces the one in ``config``. Sends no request. Raises ConfigError for another
    form of name, and where a key or the package is needed and there is none; a server on this
    machine needs no key.

    Example:
        >>> config = ApiSettings(openai_base_url="http://127.0.0.1:8000/v1")
        >>> print(check_api("openai:my-model", config))
        openai:my-model at http://127.0.0.1:8000/v1
    """
    provider, _, model = name.partition(":")
    if provider not in _KEY_VARIABLES or not model:
        raise ConfigError(
            f"API player {name!r}: write openai:MODEL or openrouter:MODEL, as in "
            "openrouter:qwen/qwen3-8b, or litellm:PROVIDER/MODEL"
        )
    if provider == "openai":
        base_url = base_url or config.openai_base_url or os.environ.get(_URL_VARIABLE, "").strip()
        if base_url and not is_address(base_url):  # of the variable
            raise ConfigError(
                f"{_URL_VARIABLE}={without_credentials(base_url)} must {ADDRESS.must}"
            )
    elif provider == "openrouter":
        base_url = base_url or OPENROUTER_URL
    else:
        base_url = base_url or config.litellm_base_url
    here = base_url is not None and on_loopback(base_url)
    if provider == "litellm":
        litellm = _litellm(name)
        spare_loopback(base_url)
        try:
            litellm.get_llm_provider(model)
        except litellm.exceptions.BadRequestError as error:
            raise ConfigError(f"API player {name!r}: {_shown(error)}") from None
        key, missing = "", litellm.validate_environment(model)["missing_keys"]
    else:
        need_packages(name, "api", "openai")
        key = os.environ.get(_KEY_VARIABLES[provider], "").strip()
        missing = [] if key else [_KEY_VARIABLES[provider]]
    if missing and not here:
        raise ConfigError(
            f"API player {name!r} needs a key: set the environment variable {' or '.join(missing)}"
        )
    if provider == "litellm" or not here:
        check_proxies()
    key = key or (_NO_KEY if here else "")
    return Endpoint(provider=provider, model=model, base_url=base_url or None, key=key)


def _litellm(name: str) -> Any:
    """The package LiteLLM, which takes seconds to import."""
    # Its tables of prices and of headers are those of the package, not of a download.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
    need_packages(name, "litellm", "litellm")
    import litellm

    litellm.suppress_debug_info = True
    return litellm


class ChatClient:
    """Requests chat completions, for one event loop at a time.

    Args:
        keys: The configuration group of these settings, for error messages.
        timeout_s: Longest time of each try.
        retries: Tries after the first: after a failed connection, a time-out, a rate limit or a
            server error.
        limit: The key in the group that says how long an answer may be.
    """

    def __init__(
        self, keys: str, *, timeout_s: float, retries: int, limit: str = "max_tokens"
    ) -> None:
        self._keys, self._timeout_s, self._retries = keys, timeout_s, retries
        self._limit = limit
        self._connections: dict[str, AsyncOpenAI] = {}
        self._not_taken: dict[str, set[str]] = {}  # arguments, by endpoint

    async def chat(
        self,
        endpoint: Endpoint,
        conversation: Sequence[Message],
        *,
        max_tokens: int | None,
        temperature: float | None,
        response_format: Mapping[str, Any] | None = None,
    ) -> ChatReply:
        """The endpoint's answer to messages with ``role`` and ``content``. Raises ChatError.

        Args:
            endpoint: From ``check_api``.
            conversation: All that was said so far.
            max_tokens: Most tokens of the answer; None leaves the endpoint's own.
            temperature: None leaves the endpoint's own, as do endpoints that refuse another.
            response_format: Left out where the endpoint refuses it.

        An argument that the endpoint knows by another name is sent once more under that.
        """
        own = endpoint.provider == "openai" and endpoint.base_url is None
        not_taken = self._not_taken.setdefault(str(endpoint), set())
        limit = "max_completion_tokens" if own else "max_tokens"
        wanted: dict[str, Any] = {
            "model": endpoint.model,
            "messages": list(conversation),
            _OTHER_NAME[limit] if limit in not_taken else limit: max_tokens,
            "temperature": temperature,
            "response_format": response_format,
        }
        request = {
            name: one for name, one in wanted.items() if one is not None and name not in not_taken
        }
        refused = set[str]()
        while True:
            try:
                response = await self._request(endpoint, request)
            except ChatError as error:
                if error.kind != "rejected" or isinstance(error, ChatTooLongError):
                    raise
                name = _argument_refused(request, str(error))
                other = _OTHER_NAME.get(name)
                if name not in request or other in refused:
                    raise
                refused.add(name)
                argument = request.pop(name)
                if other is not None:
                    request[other] = argument
                instead = f"{other} is sent instead" if other else "it is left out"
                log.warning("%s refuses a %s: %s", endpoint, name, instead)
            else:
                not_taken |= refused
                return self._reply(endpoint, response, max_tokens)

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    def _reply(self, endpoint: Endpoint, response: Any, max_tokens: int | None) -> ChatReply:
        try:
            choice = response.choices[0]
            text, finish = choice.message.content, choice.finish_reason
            declined = getattr(choice.message, "refusal", None)
        except (AttributeError, LookupError, TypeError) as error:
            message = f"{endpoint} gave an answer without choices: {_shown(_given(response))}"
            if _TOO_LONG.search(str(response)):  # LM Studio answers with status 200
                raise ChatTooLongError(message, "rejected") from error
            raise ChatError(message, "unusable") from error
        used = _used(response)
        reason: FinishReason = "length" if finish == "length" else "stop"
        # All but the prompt: not every server counts reasoning among ``completion_tokens``.
        short = max_tokens is not None and used.answer_tokens < max_tokens
        if reason == "length" and used.prompt_tokens and used.answer_tokens and short:
            reason = "context"
        if isinstance(text, str) and text.strip():
            return ChatReply(text=text, finish_reason=reason, used=used)
        if declined or finish == "content_filter":
            # The same question gets the same refusal.
            said = _shown(declined or "its content filter holds the answer back")
            raise ChatError(f"{endpoint} refuses to answer: {said}", "rejected", used)
        message = f"{endpoint} gave an answer without text (finish_reason {finish!r})"
        if reason == "context":
            raise ChatTooLongError(f"{message}: its context is full", "rejected", used)
        if reason == "length":
            message += f": it has used up {self._keys}.{self._limit}={max_tokens}; raise it"
            raise ChatError(message, "spent", used)
        raise ChatError(message, "unusable", used)

    async def _request(self, endpoint: Endpoint, arguments: Mapping[str, Any]) -> Any:
        # LiteLLM's exceptions are kinds of those of OpenAI's library.
        import openai

        proxy = through(endpoint.base_url or OPENAI_URL)
        tries = f"{1 + self._retries} {'tries' if self._retries else 'try'}{proxy}"
        longest = (1 + self._retries) * self._timeout_s + self._retries * _LONGEST_PAUSE_S
        try:
            # The library's time-out limits each pause between bytes; this one limits the whole.
            async with asyncio.timeout(longest):
                return await self._send(endpoint, arguments)
        except (openai.APITimeoutError, TimeoutError) as error:
            raise ChatError(
                f"{endpoint} gave no answer within {self._timeout_s:g} s in {tries}; raise "
                f"{self._keys}.timeout_s or lower {self._keys}.max_concurrency",
                "silent",
            ) from error
        except openai.APIStatusError as error:
            status = error.status_code
            # The library's text has no codes, and nothing of a body without a message.
            said = str(error) if isinstance(error.body, Mapping) else f"{error} {error.body or ''}"
            message = f"{endpoint} refused with HTTP status {status}{proxy}: {_shown(said)}"
            too_long = status in _MAYBE_TOO_LONG and _TOO_LONG.search(f"{error} {error.body}")
            if too_long or status == _TOO_LARGE:
                raise ChatTooLongError(message, "rejected") from error
            tried = status in _TRIED or status >= 500
            kind: ChatFailure = "silent" if tried else "rejected"
            raise ChatError(message, "refused" if status in _REFUSED else kind) from error
        except openai.APIConnectionError as error:
            raise ChatError(
                f"{endpoint} cannot be reached in {tries}; check the address and the "
                f"{'proxy' if proxy else 'network'}",
                "silent",
            ) from error
        except (openai.OpenAIError, ValueError) as error:
            # ValueError: a body that is not JSON.
            message = f"{endpoint} gave an unreadable answer: {_shown(error)}"
            raise ChatError(message, "unusable") from error

    def _send(self, endpoint: Endpoint, arguments: Mapping[str, Any]) -> Awaitable[Any]:
        if endpoint.provider == "litellm":
            by_litellm: Awaitable[Any] = _litellm(str(endpoint)).acompletion(
                **arguments,
                api_base=endpoint.base_url,
                api_key=endpoint.key or None,  # None: of the environment
                timeout=self._timeout_s,
                max_retries=0,
                num_retries=self._retries,
                drop_params=True,  # what a model does not take
            )
            return by_litellm
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        if endpoint.provider not in self._connections:
            self._connections[endpoint.provider] = AsyncOpenAI(
                api_key=endpoint.key,
                base_url=endpoint.base_url,
                timeout=self._timeout_s,
                max_retries=self._retries,
                http_client=DefaultAsyncHttpxClient(
                    trust_env=not on_loopback(endpoint.base_url or OPENAI_URL)
                ),
            )
        return self._connections[endpoint.provider].chat.completions.create(**arguments)


def _argument_refused(request: Mapping[str, Any], said: str) -> str:
    """The argument of a request that an error is about, by its words; else ``response_format``."""
    if "temperature" in request and re.search(r"\btemperature\b", said):
        return "temperature"
    limit = next((name for name in _OTHER_NAME if name in request), None)
    if limit and re.search(rf"\b{limit}\b", said) and _NOT_TAKEN.search(said):
        return limit
    return "response_format"


def _used(response: Any) -> Usage:
    """Tokens and dollars of a response, as LiteLLM reckons them or OpenRouter states them."""
    usage = getattr(response, "usage", None)
    both, asked = (getattr(usage, name, None) for name in ("total_tokens", "prompt_tokens"))
    both, asked = (count if isinstance(count, int) and count > 0 else 0 for count in (both, asked))
    cost: Any = getattr(response, "_hidden_params", {}).get("response_cost")
    if cost is None:
        cost = getattr(usage, "cost", None)
    known = isinstance(cost, int | float) and math.isfinite(cost) and cost >= 0
    return Usage(
        prompt_tokens=asked, answer_tokens=max(0, both - asked), cost=cost if known else None
    )


class ApiPlayer:
    """Asks models behind HTTP APIs for their moves; at most ``max_concurrency`` at once.

    One player serves all models and games of one event loop. keys: the configuration group of its
    settings, for error messages.
    """

    def __init__(
        self, config: ApiSettings, retries: int = RETRIES, *, keys: str = "pool.api"
    ) -> None:
        self._config = config
        self._client = ChatClient(keys, timeout_s=config.timeout_s, retries=retries)
        self._places = asyncio.Semaphore(config.max_concurrency)
        self._used: dict[str, ApiUsage] = {}

    async def chat(
        self,
        conversation: Sequence[Message],
        policy: PolicyRef,
        response_format: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Continue a conversation of messages with ``role`` and ``content``.

        response_format: as in ``ChatClient.chat``. The completion has text only. Raises ConfigError
        without a key, and ChatError without a usable answer.
        """
        config = self._config
        endpoint = check_api(policy.path_or_name or policy.uid, config)
        answer: ChatReply | ChatError | None = None  # None: the game was ended meanwhile
        async with self._places:
            begun = time.monotonic()
            try:
                answer = reply = await self._client.chat(
                    endpoint,
                    conversation,
                    max_tokens=config.max_tokens,
                    temperature=config.temperature,
                    response_format=response_format,
                )
            except ChatError as error:
                answer = error
                raise
            finally:
                self._count(policy.uid, time.monotonic() - begun, answer)
        return Completion(
            text=reply.text,
            finish_reason=reply.finish_reason,
            policy_uid=policy.uid,
            policy_version=policy.version,
        )

    def take_usage(self) -> tuple[ApiUsage, ...]:
        """Usage of each model that was asked since the last call."""
        used, self._used = self._used, {}
        return tuple(used.values())

    async def close(self) -> None:
        await self._client.close()

    def _count(self, uid: str, seconds: float, answer: ChatReply | ChatError | None) -> None:
        used, answered = answer.used if answer else _NOTHING, isinstance(answer, ChatReply)
        cost = used.cost
        if cost is None and used.tokens and (prices := self._config.prices) is not None:
            cost = (used.prompt_tokens * prices[0] + used.answer_tokens * prices[1]) / 1e6
        one = ApiUsage(
            uid=uid,
            requests=1,
            failed=int(not answered),
            prompt_tokens=used.prompt_tokens,
            answer_tokens=used.answer_tokens,
            seconds=seconds,
            cost=cost or 0.0,
            # Requests that were refused or not answered cost nothing.
            unpriced=int(cost is None and (used.tokens > 0 or answered)),
        )
        self._used[uid] = self._used[uid].plus(one) if uid in self._used else one
