"""Conversations as prompts, and the calls of tools in a model's answer.

Calls are read as Hermes and Qwen write them: ``<tool_call>{"name": …, "arguments":
{…}}</tool_call>``.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from rlforge.engines.grammars import json_term
from rlforge.errors import ConfigError
from rlforge.games.encoding import encoder_of
from rlforge.games.markup import chat_text

_BEGIN, END = "<tool_call>", "</tool_call>"
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def conversation_tokens(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> tuple[int, ...]:
    """The prompt of a conversation; ValueError where the chat template refuses it."""
    with _refusals_explained():
        # Control tokens in messages, calls, tools and arguments are text, so that no client can
        # forge turns.
        return encoder_of(tokenizer).chat(messages, tools or (), arguments)


def takes_tools(tokenizer: Any, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the model's chat template shows tools to the model."""
    asked = [{"role": "user", "content": "?"}]
    with _refusals_explained():
        return chat_text(asked, tokenizer, tools) != chat_text(asked, tokenizer)


@contextlib.contextmanager
def _refusals_explained() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        reason = error.__cause__ or error
        raise ValueError(f"the model's chat template refuses these messages: {reason}") from error


def calls_grammar(
    tools: Sequence[Mapping[str, Any]], *, required: bool, parallel: bool
) -> str | None:
    """The grammar of answers that may call ``tools``; None where it would allow any answer.

    required: the answer is a call and nothing else, or several where ``parallel``.
    """
    functions = [tool["function"] for tool in tools]
    if not required and not any(function.get("strict") for function in functions):
        return None
    rules = [f"called: {' | '.join(f'call_{n}' for n in range(len(functions)))}"]
    for number, function in enumerate(functions):
        begin = json.dumps(f'\n{{"name": {json.dumps(function["name"])}, "arguments": ')
        # A required call is held to its schema, because the model has no other answer.
        held = function.get("strict") or required
        schema = function.get("parameters") if held else None
        arguments = json_term(schema or {"type": "object"})
        rules.append(f'call_{number}: {begin} {arguments} "}}\\n</tool_call>"')
    if required:
        more = ' ("\\n<tool_call>" called)*' if parallel else ""
        return "\n".join([f'start: "<tool_call>" called{more}', *rules])
    # As soon as the model writes <tool_call>, the rest of the call is held to its form.
    return "\n".join(
        ["start: (begun called)* ANY", 'begun[lazy]: ANY "<tool_call>"', r"ANY: /(.|\n)*/", *rules]
    )


def tool_calls(text: str, prefix: str = "call") -> tuple[dict[str, Any], ...]:
    """The calls in an answer, in OpenAI's form with their arguments as an object."""
    # Tags around anything but a JSON object with a name are text, not a call.
    calls = [call for written in _CALL.findall(text) if (call := _call(written)) is not None]
    return tuple(
        {"id": f"{prefix}_{number}", "type": "function", "function": call}
        for number, call in enumerate(calls)
    )


def without_calls(text: str, *, cut: bool = False) -> str:
    """Text of an answer without its calls. cut: whether one that is not closed is left out."""
    said = _CALL.sub(lambda found: found[0] if _call(found[1]) is None else "", text)
    if cut:
        begun = said.rfind(_BEGIN)
        if begun >= 0 and END not in said[begun:]:
            said = said[:begun]
        # The answer may end within the opening tag, whose beginning is no text either.
        for length in range(len(_BEGIN) - 1, len("<to") - 1, -1):
            said = said.removesuffix(_BEGIN[:length])
    return said.strip()


def _call(written: str) -> dict[str, Any] | None:
    try:
        # For deep nesting json.loads would raise a RecursionError, not a ValueError.
        call = from_json(written, allow_inf_nan=False)
    except ValueError:
        return None
    if not isinstance(call.get("name"), str):
        return None
    return {"name": call["name"], "arguments": call.get("arguments", {})}
