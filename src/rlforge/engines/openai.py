"""The client of OpenAI-compatible HTTP endpoints, and the players behind them.

``openai:MODEL`` and ``openrouter:MODEL`` name opponents in games and judges of decisions. They are
never trained, because their tokens are not seen. API keys come from the environment only, and are
never part of a message.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from rlforge.config.schema import ApiConfig
from rlforge.errors import ConfigError, EngineError, PromptTooLongError
from rlforge.games.markup import Message
from rlforge.types import Completion, PolicyRef, value

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "openrouter": "OPENROUTER_API_KEY"}
#: Sent to servers on this machine, which need no key.
_NO_KEY = "none"

#: HTTP statuses with which a server refuses every request of this caller, and statuses after which
#: another try may succeed (as may one after 500 and above).
_REFUSED = (401, 403, 404)
_AGAIN = (408, 409, 425, 429)
_TOO_LONG = "maximum context length"

#: Longest pause of the client library before another try, and longest ``Retry-After`` obeyed.
_LONGEST_PAUSE_S = 8.0

#: again: another try may succeed. form: one that asks for a simpler form of answer may. rejected:
#: this request always fails. refused: every request fails, as with a wrong key.
ChatFailure = Literal["again", "form", "rejected", "refused"]


class ChatError(EngineError):
    """No usable answer. wait_s: the pause that the server asks for."""

    def __init__(self, message: str, kind: ChatFailure, *, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.kind, self.wait_s = kind, wait_s


class ChatTooLongError(ChatError, PromptTooLongError):
    """The messages do not fit into the context of the model behind the API."""


@value
class Endpoint:
    """A model at an API. base_url None: the library's default address of ``provider``."""

    provider: str
    model: str
    base_url: str | None
    key: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.model} at {self.base_url or 'its API'}"

    def shown(self, content: object) -> str:
        """At most 200 characters of a text for a message, on one line and without the key."""
        text = " ".join(str(content).split())
        return (text if self.key == _NO_KEY else text.replace(self.key, "***"))[:200]


def check_api(name: str, config: ApiConfig) -> Endpoint:
    """The endpoint of ``openai:MODEL`` or ``openrouter:MODEL``; sends no request.

    A server on this machine needs no key. Raises ConfigError for another form of name, and where
    a key is needed and the environment has none.

    Example:
        >>> config = ApiConfig(openai_base_url="http://127.0.0.1:8000/v1")
        >>> print(check_api("openai:my-model", config))
        openai:my-model at http://127.0.0.1:8000/v1
    """
    provider, _, model = name.partition(":")
    if provider not in _KEY_VARIABLES or not model:
        raise ConfigError(
            f"API player {name!r}: write openai:MODEL or openrouter:MODEL, as in "
            "openrouter:qwen/qwen3-8b"
        )
    openai = provider == "openai"
    base_url = config.openai_base_url if openai else config.openrouter_base_url
    variable = _KEY_VARIABLES[provider]
    key = os.environ.get(variable, "").strip()
    if not key:
        if base_url is None or not _is_loopback(base_url):
            raise ConfigError(
                f"API player {name!r} needs a key: set the environment variable {variable}"
            )
        key = _NO_KEY
    return Endpoint(provider=provider, model=model, base_url=base_url, key=key)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@value
class ChatReply:
    """An answer that has text. tokens: of prompt and answer, None where the server does not say."""

    text: str
    finish_reason: str = "stop"
    tokens: int | None = None


class ChatClient:
    """Requests chat completions, for one event loop at a time.

    A request is tried ``1 + retries`` times, each within ``timeout_s``: again after a failed
    connection, a time-out, a rate limit or a server error.
    keys: the configuration group of these settings, for error messages.
    """

    def __init__(self, keys: str, *, timeout_s: float, retries: int) -> None:
        self._keys, self._timeout_s, self._retries = keys, timeout_s, retries
        self._connections: dict[str, AsyncOpenAI] = {}

    async def chat(
        self,
        endpoint: Endpoint,
        conversation: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float | None,
        **options: Any,
    ) -> ChatReply:
        """The endpoint's answer to messages with ``role`` and ``content``. Raises ChatError.

        temperature None: the endpoint's own. options: further arguments of the request.
        """
        # OpenAI's newer models know only max_completion_tokens, other servers only max_tokens.
        own = endpoint.provider == "openai" and endpoint.base_url is None
        options["max_completion_tokens" if own else "max_tokens"] = max_tokens
        if temperature is not None:
            options["temperature"] = temperature
        response = await self._request(
            endpoint, {"model": endpoint.model, "messages": list(conversation), **options}
        )
        try:
            choice = response.choices[0]
            text, finish = choice.message.content, choice.finish_reason
        except (AttributeError, LookupError, TypeError) as error:
            shown = endpoint.shown(response)
            raise ChatError(
                f"{endpoint} gave an answer without choices: {shown}", "again"
            ) from error
        if not isinstance(text, str) or not text.strip():
            message = f"{endpoint} gave an answer without text (finish_reason {finish!r})"
            raise ChatError(message, "again")
        used = getattr(getattr(response, "usage", None), "total_tokens", None)
        tokens = used if isinstance(used, int) and used > 0 else None
        return ChatReply(text=text, finish_reason=str(finish), tokens=tokens)

    async def close(self) -> None:
        """Closes the connections; a later request opens new ones."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    async def _request(self, endpoint: Endpoint, arguments: Mapping[str, Any]) -> Any:
        import openai

        tries = f"{1 + self._retries} {'tries' if self._retries else 'try'}"
        longest = (1 + self._retries) * self._timeout_s + self._retries * _LONGEST_PAUSE_S
        try:
            # The library's time-out limits each pause between bytes; this one limits the whole.
            async with asyncio.timeout(longest):
                return await self._connection(endpoint).chat.completions.create(**arguments)
        except (openai.APITimeoutError, TimeoutError) as error:
            raise ChatError(
                f"{endpoint} gave no answer within {self._timeout_s:g} s in {tries}; raise "
                f"{self._keys}.timeout_s or lower {self._keys}.max_concurrency",
                "again",
            ) from error
        except openai.APIStatusError as error:
            status = error.status_code
            again = status in _AGAIN or status >= 500
            # OpenAI's code, and the words of servers that have none.
            too_long = error.code == "context_length_exceeded" or _TOO_LONG in str(error)
            raise (ChatTooLongError if status == 400 and too_long else ChatError)(
                f"{endpoint} refused with HTTP status {status}: {endpoint.shown(error)}",
                "refused" if status in _REFUSED else "again" if again else "rejected",
                wait_s=_retry_after(error.response.headers),
            ) from error
        except openai.APIConnectionError as error:
            raise ChatError(
                f"{endpoint} cannot be reached in {tries}; check the address and the network",
                "again",
            ) from error
        except (openai.OpenAIError, ValueError) as error:
            # ValueError: a body that is not JSON.
            shown = endpoint.shown(error)
            raise ChatError(f"{endpoint} gave an unreadable answer: {shown}", "again") from error

    def _connection(self, endpoint: Endpoint) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        if endpoint.provider not in self._connections:
            self._connections[endpoint.provider] = AsyncOpenAI(
                api_key=endpoint.key,
                base_url=endpoint.base_url,
                timeout=self._timeout_s,
                max_retries=self._retries,
            )
        return self._connections[endpoint.provider]


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds of a ``Retry-After`` header, 0 without one, at most ``_LONGEST_PAUSE_S``."""
    try:
        seconds = float(headers.get("retry-after", "0"))
    except ValueError:  # a date, which servers rarely send
        return 0.0
    return min(max(seconds, 0.0), _LONGEST_PAUSE_S)


class ApiPlayer:
    """Asks models behind HTTP APIs for their moves; at most ``max_concurrency`` at once.

    One player serves all models and games of one event loop.
    """

    def __init__(self, config: ApiConfig) -> None:
        self._config = config
        self._client = ChatClient(
            "pool.api", timeout_s=config.timeout_s, retries=config.max_retries
        )
        self._places = asyncio.Semaphore(config.max_concurrency)

    async def chat(self, conversation: Sequence[Message], policy: PolicyRef) -> Completion:
        """Continues a conversation of messages with ``role`` and ``content``.

        The completion has text only: its token ids and log-probabilities are empty. Raises
        ConfigError without a key, and ChatError (an EngineError) without a usable answer.
        """
        config = self._config
        endpoint = check_api(policy.path_or_name or policy.uid, config)
        async with self._places:
            reply = await self._client.chat(
                endpoint,
                conversation,
                max_tokens=config.max_tokens,
                temperature=config.temperature,
            )
        return Completion(
            text=reply.text,
            finish_reason="length" if reply.finish_reason == "length" else "stop",
            policy_uid=policy.uid,
            policy_version=policy.version,
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()
