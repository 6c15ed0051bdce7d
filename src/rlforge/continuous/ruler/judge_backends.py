"""The models that answer a judge's question: behind HTTP, or in the run's engine."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from rlforge.config.pool import ApiSettings
from rlforge.continuous.config.ruler import JudgeConfig
from rlforge.continuous.ruler.question import answer_schema, each_in_turn
from rlforge.engines.base import Generator
from rlforge.engines.grammars import json_grammar
from rlforge.engines.openai import ChatClient, ChatError, ChatReply, Endpoint, Usage, check_api
from rlforge.errors import ConfigError, EngineDeadError, EngineError
from rlforge.games.encoding import Encoder
from rlforge.games.markup import Markup, Message, Tokenizer, by_chat_template
from rlforge.types import PolicyRef, SamplingParams, value

#: ``ruler.judge.model`` for the run's own model.
ENGINE = "engine"

#: The form of a question to a model without chat template.
_WITHOUT_CHAT = Markup(user="{content}\n\n", assistant="Answer:{content}")


def estimated_tokens(messages: Sequence[Message], answer: str = "") -> int:
    """An upper estimate of a conversation's tokens by its length."""
    length = sum(len(message["content"]) for message in messages) + len(answer)
    # Three characters a token are few, so that the estimate is high.
    return length // 3 + 8 * len(messages)


@value
class LocalModel:
    generator: Generator
    tokenizer: Tokenizer
    policy: PolicyRef
    stop_token_ids: tuple[int, ...] = ()


class LocalJudge:
    """A local model as a judge, bound to a grammar of one score for each decision."""

    def __init__(self, config: JudgeConfig, model: LocalModel) -> None:
        self._model = model
        self._encoder = Encoder(model.tokenizer)
        self._params = SamplingParams(
            # Greedy by default, so that scores repeat.
            temperature=config.sampling_temperature or 0.0,
            max_tokens=config.max_answer_tokens,
            stop_token_ids=model.stop_token_ids,
        )
        self._timeout_s = config.timeout_s

    @property
    def name(self) -> str:
        policy = self._model.policy
        return f"engine {policy.uid} {policy.path_or_name} {policy.version}"

    async def answer(self, messages: Sequence[Message], ids: Sequence[str]) -> ChatReply:
        model = self._model
        if model.tokenizer.chat_template:
            asked = by_chat_template(messages, "", model.tokenizer)
        else:
            asked = _WITHOUT_CHAT.render(messages, "")
        # The encoder makes no control token of what agents say.
        prompt = self._encoder.encode(asked)
        # An explanation has room for half of an entry's tokens, at one character a token or more.
        letters = self._params.max_tokens // (2 * len(ids))
        grammar = json_grammar(each_in_turn(ids, letters))
        params = dataclasses.replace(self._params, grammar=grammar)
        try:
            async with asyncio.timeout(self._timeout_s):
                completion = await model.generator.generate(prompt, params, model.policy)
        except TimeoutError as error:
            message = f"no answer within ruler.judge.timeout_s {self._timeout_s:g} s"
            raise ChatError(message, "silent") from error
        except EngineDeadError as error:
            raise ChatError(str(error), "refused") from error
        except EngineError as error:
            raise ChatError(str(error), "rejected") from error
        used = Usage(prompt_tokens=len(prompt), answer_tokens=len(completion.token_ids))
        return ChatReply(text=completion.text, used=used)

    async def close(self) -> None:
        """Do nothing: the engine belongs to the caller."""


def check_endpoint(config: JudgeConfig) -> Endpoint:
    """The address of ``ruler.judge.model``; ConfigError for a bad name or a missing key."""
    try:
        return check_api(config.model, ApiSettings(), config.base_url)
    except ConfigError as error:
        raise ConfigError(f"ruler.judge.model={config.model}: {error}") from None


class ApiJudge:
    def __init__(self, config: JudgeConfig) -> None:
        self._config, self._endpoint = config, check_endpoint(config)
        self._client = ChatClient(
            "ruler.judge",
            timeout_s=config.timeout_s,
            retries=config.retries,
            limit="max_answer_tokens",
        )

    @property
    def name(self) -> str:
        """Model and address, without keys, for the cache of answers."""
        return str(self._endpoint)

    async def answer(self, messages: Sequence[Message], ids: Sequence[str]) -> ChatReply:
        """The model's answer, JSON about ``ids`` if it can comply. Raises ChatError."""
        named = {"name": "scores", "strict": True, "schema": answer_schema(ids)}
        return await self._client.chat(
            self._endpoint,
            messages,
            max_tokens=self._config.max_answer_tokens,
            temperature=self._config.sampling_temperature,
            response_format={"type": "json_schema", "json_schema": named},
        )

    async def close(self) -> None:
        await self._client.close()


def judge_backend(config: JudgeConfig, local: LocalModel | None) -> ApiJudge | LocalJudge:
    """The model ``ruler.judge.model``, where ``engine`` stands for ``local``."""
    if config.model != ENGINE:
        return ApiJudge(config)
    if local is None:
        raise ConfigError(
            "ruler.judge.model=engine: there is no engine here; name openai:MODEL, "
            "openrouter:MODEL or litellm:PROVIDER/MODEL"
        )
    return LocalJudge(config, local)
