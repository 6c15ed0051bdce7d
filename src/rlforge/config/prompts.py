"""Prompt templates written in YAML (key ``prompts``), and the placeholders of their texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rlforge.config.plugins import PROMPTS
from rlforge.config.rules import Group, Problem, Rule, Text, pattern
from rlforge.errors import nearest

PLACEHOLDER = re.compile(r"\{(\{\w+\})\}|\{(\w+)\}")
"""A placeholder ``{name}`` as group 2; of ``{{name}}``, which stands for it, group 1."""

PLACES = ("observation", "legal_actions", "request", "board", "grid")
"""Placeholders of ``PromptConfig``."""

ROLES = ("system", "user", "assistant")


NEW_NAME = Rule(
    lambda name: not PROMPTS.has_own(name), "have another name than rlforge's own templates"
)


@dataclass
class PromptConfig(Group):
    """A prompt template: what the model is asked, and in which markup.

    Texts may hold ``{observation}`` (in later turns of a conversation only what is new),
    ``{legal_actions}`` (without a list its paragraph is left out), ``{request}`` (the form that
    the action extraction reads), ``{board}`` (the compact state of some games) and ``{grid}`` (the
    squares of placement games). ``{{word}}`` stands for ``{word}``.
    """

    #: System message; empty: none.
    system: str = ""
    #: User message.
    user: Text = "{observation}\n\n{request}"
    #: User message of later turns of a conversation; null takes ``user``.
    later: Text | None = None
    #: Opening of each answer, as ``<think>`` and a line break.
    assistant: str = ""
    #: Markup of the messages; ``chat``: the tokenizer's own chat template.
    markup: Literal["chat", "chatml", "gemma", "llama", "none"] = "chat"
    #: Beginnings of the ids of games that the texts are about; empty: any.
    games: list[Text] = field(default_factory=list)
    #: Markup of your own: texts around ``{content}`` for ``user``, ``assistant`` and ``system``
    #: (without it system messages open the user's), and ``begin``, in front of all.
    roles: dict[str, str] = field(default_factory=dict)

    def clashes(self) -> Iterator[Problem]:
        for key in ("system", "user", "later"):
            text = getattr(self, key) or ""
            # A doubled brace is text, and no placeholder.
            names = [found[2] for found in PLACEHOLDER.finditer(text) if found[2]]
            for name in names:
                if name not in PLACES:
                    yield (
                        key,
                        f"no placeholder {{{name}}}{nearest(name, PLACES)} (there are "
                        f"{', '.join(f'{{{place}}}' for place in PLACES)}); write {{{{{name}}}}} "
                        "for the text itself",
                    )
            # A message that shows nothing of the game would be the same at each turn.
            if key != "system" and text and not {"observation", "board", "grid"} & {*names}:
                yield key, "shows nothing of the game; add {observation}, {board} or {grid}"
        if self.roles:
            for name in self.roles:
                if name not in (*ROLES, "begin"):
                    known = ("begin", *ROLES)
                    mend = f"{nearest(name, known)} ({', '.join(known)})"
                    yield f"roles.{name}", f"no such role{mend}"
            for name in ROLES:
                content = self.roles.get(name)
                # Without text for ``system``, its message opens the user's.
                if content is None and name != "system":
                    yield "roles", f"has no {name}; add its text around {{content}}"
                if content is not None and content.count("{content}") != 1:
                    yield f"roles.{name}", "must have {content} once"


Prompts = dict[
    Annotated[str, pattern(r"[\w.-]+", "consist of letters, digits, '.', '_' and '-'"), NEW_NAME],
    PromptConfig,
]


#: Arguments of the chat template that are rlforge's to give.
_OWN_ARGS = {
    *("add_generation_prompt", "chat_template", "continue_final_message", "conversation"),
    *("max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict"),
    *("return_tensors", "tokenize", "tokenizer_kwargs", "tools", "truncation"),
}


def template_args_problem(given: Mapping[str, Any]) -> str | None:
    """The reason why a chat template cannot have these arguments, or None.

    Example:
        >>> template_args_problem({"tools": []})
        'tools is given by rlforge; leave it out'
        >>> template_args_problem({"enable_thinking": False}) is None
        True
    """
    if taken := sorted(_OWN_ARGS & given.keys()):
        return f"{', '.join(taken)} is given by rlforge; leave it out"
    # The tokenizer takes them as keyword arguments.
    bad = next((name for name in given if not name.isidentifier()), None)
    return None if bad is None else f"{bad!r} is no name of an argument"
