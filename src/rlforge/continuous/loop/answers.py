"""Decisions that are answers of a model in a conversation, not actions in a market."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlforge.continuous.decisions.records import Decision, Json, Metadata
from rlforge.errors import EngineError
from rlforge.types import Completion

ANSWER = "ANSWER"
"""The type of the action; its ``content`` is the answer."""

Conversation = Sequence[Mapping[str, Any]] | str
"""The messages of a conversation, or the prompt of a completion."""


class NotAskedError(EngineError):
    """The model may not be asked any more, as its budget is spent."""


class Ask(Protocol):
    """Asks the model for an agent."""

    async def __call__(
        self, agent_id: str, prompt: tuple[int, ...], draw: int, grammar: str | None = None
    ) -> Completion:
        """draw: seed of the answer. grammar: grammar that it keeps to. Raises EngineError."""


def answer_decision(
    name: str,
    agent_id: str,
    window_id: str,
    moment: float,
    provider: str,
    conversation: Conversation,
    text: str,
    completion: Completion,
    tokenizer: Any,
) -> Decision:
    """The answer ``text`` as a decision without its outcome. name: its id."""
    state: Json
    if isinstance(conversation, str):
        state = {"prompt": conversation}
    else:
        state = {"messages": [dict(message) for message in conversation]}
    return Decision(
        id=name,
        agent_id=agent_id,
        window_id=window_id,
        state=state,
        action={"type": ANSWER, "content": text},
        timestamp=moment,
        metadata=Metadata(provider=provider, confidence=confidence_of(completion)),
        observation=str(tokenizer.decode(list(completion.prompt_token_ids))),
        completion=completion,
    )


def state_after(decision: Decision) -> Json:
    state, text = decision.state, decision.action["content"]
    if "prompt" in state:
        return {"prompt": state["prompt"] + text}
    return {"messages": [*state["messages"], {"role": "assistant", "content": text}]}


def confidence_of(completion: Completion) -> float:
    """Geometric mean of its tokens' probabilities; 1 where there are none."""
    if not completion.logprobs:
        return 1.0
    # By rounding, the log-probability of a sure token may be slightly above 0.
    return min(1.0, math.exp(math.fsum(completion.logprobs) / len(completion.logprobs)))
