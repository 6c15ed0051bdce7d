"""Who answers a judge's question: any model that a conversation can be had with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from rlforge.config.ruler import JudgeConfig
from rlforge.engines.base import Generator
from rlforge.errors import EngineDeadError, EngineError
from rlforge.games.prompts import Tokenizer
from rlforge.ruler.question import Message
from rlforge.types import PolicyRef, SamplingParams, value

#: Characters per token, where nobody counts: low, so that estimates are high.
_CHARS_PER_TOKEN = 3

#: again: another try may help. form: the form of answer asked for is not known there, and the next
#: call asks for a simpler one. rejected: this question will not be answered. refused: none will be.
Failure = Literal["again", "form", "rejected", "refused"]


@value
class Reply:
    """text: the answer. tokens: of prompt and answer together."""

    text: str
    tokens: int


class VoiceError(EngineError):
    """No answer. kind: what may be done; wait_s: how long the other side asks to wait."""

    def __init__(self, message: str, kind: Failure, *, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.kind, self.wait_s = kind, wait_s


class Voice(Protocol):
    """Answers a conversation, in one call."""

    @property
    def name(self) -> str:
        """Model and place, without secrets: part of what answers are remembered under."""
        ...

    async def answer(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> Reply:
        """The model's words, JSON of ``schema`` if it can hold to it. Raises VoiceError."""
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


class EngineVoice:
    """A local model as a judge. Without ``ruler.judge.sampling_temperature`` it is greedy."""

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
        """See ``Voice``."""
        policy = self._model.policy
        return f"engine {policy.uid} {policy.path_or_name} {policy.version}"

    async def answer(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> Reply:
        """See ``Voice``. The schema is not enforced: the question itself asks for the form."""
        prompt = self._encode(messages)
        generate = self._model.generator.generate
        try:
            async with asyncio.timeout(self._timeout_s):
                completion = await generate(prompt, self._params, self._model.policy)
        except TimeoutError as error:
            message = f"no answer within ruler.judge.timeout_s {self._timeout_s:g} s"
            raise VoiceError(message, "again") from error
        except EngineDeadError as error:
            raise VoiceError(str(error), "refused") from error
        except EngineError as error:
            raise VoiceError(str(error), "rejected") from error
        return Reply(text=completion.text, tokens=len(prompt) + len(completion.token_ids))

    async def close(self) -> None:
        """The engine belongs to whoever made it."""

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        tokenizer = self._model.tokenizer
        if tokenizer.chat_template:
            text = tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        else:
            text = "\n\n".join(message["content"] for message in messages) + "\n\nAnswer:"
        return tokenizer.encode(text, add_special_tokens=False)
