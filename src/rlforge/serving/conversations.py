"""Conversations as prompts, and the calls of tools in a model's answer.

Calls are read as Hermes and Qwen write them, any number of them with text around them:
``<tool_call>{"name": …, "arguments": {…}}</tool_call>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlforge.system.values import writable

_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def conversation_tokens(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[int, ...]:
    """The prompt of a conversation, by the model's chat template. tools: in OpenAI's form."""
    text = _rendered(tokenizer, messages, tools)
    return tuple(tokenizer.encode(writable(text), add_special_tokens=False))


def takes_tools(tokenizer: Any, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the model's chat template shows tools to the model."""
    asked = [{"role": "user", "content": "?"}]
    return _rendered(tokenizer, asked, tools) != _rendered(tokenizer, asked, None)


def _rendered(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
) -> str:
    return str(
        tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] if tools else None,
            tokenize=False,
            add_generation_prompt=True,
        )
    )


def tool_calls(text: str, prefix: str = "call") -> tuple[Mapping[str, Any], ...]:
    """The calls in an answer, in OpenAI's form with their arguments as an object.

    What is no JSON object with a name is text. prefix: of their ids.

    Example:
        >>> (call,) = tool_calls('<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>')
        >>> call["id"], call["function"]
        ('call_0', {'name': 'add', 'arguments': {'a': 2}})
    """
    calls = [call for written in _CALL.findall(text) if (call := _call(written)) is not None]
    return tuple(
        {"id": f"{prefix}_{number}", "type": "function", "function": call}
        for number, call in enumerate(calls)
    )


def without_calls(text: str) -> str:
    """What an answer says besides its calls."""
    return _CALL.sub(lambda found: found[0] if _call(found[1]) is None else "", text).strip()


def _call(written: str) -> dict[str, Any] | None:
    try:
        call = json.loads(written)
    except ValueError:
        return None
    if not isinstance(call.get("name"), str):
        return None
    return {"name": call["name"], "arguments": call.get("arguments", {})}
