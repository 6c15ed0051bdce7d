"""Players behind an OpenAI-compatible HTTP endpoint: ``openai:MODEL`` and ``openrouter:MODEL``.

They are opponents and judges of ours, never trained: their tokens are not seen. API keys come
from the environment only, and are never part of a message.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rlforge.config.schema import ApiConfig
from rlforge.errors import ConfigError, EngineError
from rlforge.games.base import View
from rlforge.games.prompts import messages
from rlforge.types import Completion, FinishReason, PolicyRef, value

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "openrouter": "OPENROUTER_API_KEY"}

#: Longest pause that the client library makes before another try.
_LONGEST_PAUSE_S = 8.0

Message = dict[str, str]


@value
class Endpoint:
    """Where ``provider`` answers, and with which key. base_url None: the library's default."""

    provider: str
    model: str
    base_url: str | None
    key: str


def check_api(name: str, config: ApiConfig) -> Endpoint:
    """The endpoint of ``openai:MODEL`` or ``openrouter:MODEL``; asks nobody.

    A server on this machine needs no key. Raises ConfigError for another form of name, and where
    a key is needed and the environment has none.
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
        key = "none"
    return Endpoint(provider=provider, model=model, base_url=base_url, key=key)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ApiPlayer:
    """Asks models behind HTTP APIs for their moves; at most ``max_concurrency`` at once.

    One player serves all models and games of one event loop. A request is tried
    ``1 + max_retries`` times, each within ``timeout_s``; connections, time-outs, rate limits and
    server errors count as worth another try.
    """

    def __init__(self, config: ApiConfig) -> None:
        self._config = config
        self._clients: dict[str, AsyncOpenAI] = {}
        self._places = asyncio.Semaphore(config.max_concurrency)

    async def answer(
        self, template: str, view: View, policy: PolicyRef, extraction: str = "boxed"
    ) -> Completion:
        """The model's answer to what the player to move sees, asked as ``template`` says."""
        return await self.chat(messages(template, view, extraction), policy)

    async def chat(self, conversation: Sequence[Message], policy: PolicyRef) -> Completion:
        """Continues a conversation of messages with ``role`` and ``content``.

        The completion has text only: its token ids and log-probabilities are empty. Raises
        ConfigError without a key, and EngineError when the endpoint does not answer, refuses, or
        answers nonsense.
        """
        name = policy.path_or_name or policy.uid
        endpoint = check_api(name, self._config)
        async with self._places:
            response = await self._request(name, endpoint, conversation)
        text, finish_reason = _read(name, response)
        return Completion(
            text=text,
            finish_reason=finish_reason,
            policy_uid=policy.uid,
            policy_version=policy.version,
        )

    async def close(self) -> None:
        """Closes the connections."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()

    async def _request(self, name: str, endpoint: Endpoint, conversation: Sequence[Message]) -> Any:
        import openai

        config = self._config
        tries = 1 + config.max_retries
        # OpenAI's own newer models know the limit under this name only, other servers not at all.
        own = endpoint.provider == "openai" and endpoint.base_url is None
        limit = {"max_completion_tokens" if own else "max_tokens": config.max_tokens}
        options: dict[str, Any] = {
            "model": endpoint.model,
            "messages": list(conversation),
            "temperature": config.temperature,
            **limit,
        }
        try:
            # The library's time-out is between two bytes; a server that drips is cut off here.
            async with asyncio.timeout(tries * (config.timeout_s + _LONGEST_PAUSE_S)):
                return await self._client(endpoint).chat.completions.create(**options)
        except (openai.APITimeoutError, TimeoutError) as error:
            raise EngineError(
                f"{name} gave no answer within {config.timeout_s:g} s in {tries} tries; raise "
                "pool.api.timeout_s or lower pool.api.max_concurrency"
            ) from error
        except openai.APIStatusError as error:
            raise EngineError(
                f"{name} refused with HTTP status {error.status_code}: {_short(error)}"
            ) from error
        except openai.APIConnectionError as error:
            where = endpoint.base_url or "its API"
            raise EngineError(
                f"{name} cannot be reached at {where} in {tries} tries; check the address and "
                "the network"
            ) from error
        except (openai.OpenAIError, ValueError) as error:
            # ValueError: a body that is not JSON.
            raise EngineError(f"{name} gave an unreadable answer: {_short(error)}") from error

    def _client(self, endpoint: Endpoint) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        if endpoint.provider not in self._clients:
            self._clients[endpoint.provider] = AsyncOpenAI(
                api_key=endpoint.key,
                base_url=endpoint.base_url,
                timeout=self._config.timeout_s,
                max_retries=self._config.max_retries,
            )
        return self._clients[endpoint.provider]


def _read(name: str, response: Any) -> tuple[str, FinishReason]:
    """Text and finish reason of a response, which may be anything that parsed."""
    try:
        choice = response.choices[0]
        text, finish = choice.message.content, choice.finish_reason
    except (AttributeError, IndexError, TypeError) as error:
        raise EngineError(f"{name} gave an answer without choices: {_short(response)}") from error
    if not isinstance(text, str) or not text.strip():
        raise EngineError(f"{name} gave an answer without text (finish_reason {finish!r})")
    return text, "length" if finish == "length" else "stop"


def _short(what: object) -> str:
    return " ".join(str(what).split())[:200]
