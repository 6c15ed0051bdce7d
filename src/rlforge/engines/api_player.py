"""Models behind HTTP APIs as players, and what their answers took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from rlforge.config.pool import ApiConfig
from rlforge.engines.openai import ChatClient, ChatError, ChatReply, check_api
from rlforge.games.markup import Message
from rlforge.record.results import ApiUsage
from rlforge.types import Completion, PolicyRef

#: Tries of a request after the first.
RETRIES = 2


class ApiPlayer:
    """Asks models behind HTTP APIs for their moves; at most ``max_concurrency`` at once.

    One player serves all models and games of one event loop.
    """

    def __init__(self, config: ApiConfig, retries: int = RETRIES) -> None:
        self._config = config
        self._client = ChatClient("pool.api", timeout_s=config.timeout_s, retries=retries)
        self._places = asyncio.Semaphore(config.max_concurrency)
        self._used: dict[str, ApiUsage] = {}

    async def chat(self, conversation: Sequence[Message], policy: PolicyRef) -> Completion:
        """Continues a conversation of messages with ``role`` and ``content``.

        The completion has text only: its token ids and log-probabilities are empty. Raises
        ConfigError without a key, and ChatError (an EngineError) without a usable answer.
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
        """Usage of each model since the last call; nothing of those that were not asked."""
        used, self._used = self._used, {}
        return tuple(used.values())

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    def _count(self, uid: str, seconds: float, answer: ChatReply | ChatError | None) -> None:
        prompt, both = (answer.prompt_tokens, answer.tokens or 0) if answer is not None else (0, 0)
        cost = answer.cost if answer is not None else None
        if cost is None and both and (prices := self._config.prices) is not None:
            cost = (prompt * prices[0] + (both - prompt) * prices[1]) / 1e6
        one = ApiUsage(
            uid=uid,
            requests=1,
            failed=int(not isinstance(answer, ChatReply)),
            prompt_tokens=prompt,
            answer_tokens=both - prompt,
            seconds=seconds,
            cost=cost or 0.0,
            # Requests that were refused or not answered cost nothing.
            unpriced=int(cost is None and (both > 0 or isinstance(answer, ChatReply))),
        )
        before = self._used.get(uid)
        self._used[uid] = one if before is None else before.plus(one)
