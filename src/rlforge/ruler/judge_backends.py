"""Who answers a judge's question: any model that a conversation can be had with."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from rlforge.config.ruler import JudgeConfig
from rlforge.engines.base import Generator
from rlforge.errors import EngineDeadError, EngineError
from rlforge.games.prompts import Tokenizer
from rlforge.ruler.question import Message, UnusableAnswerError, asked_ids, read
from rlforge.types import PolicyRef, SamplingParams, value

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
