"""A redaction: what a served model may keep of its conversations."""

import re
from collections.abc import Mapping, Sequence

ADDRESS = re.compile(r"\S+@\S+")


def addresses(
    conversation: Sequence[Mapping[str, str]] | str, answer: str
) -> Sequence[Mapping[str, str]] | str | None:
    """Hides e-mail addresses in a conversation; nothing is kept where the answer has one."""
    if ADDRESS.search(answer):
        return None
    if isinstance(conversation, str):
        return ADDRESS.sub("[address]", conversation)
    return [
        {**message, "content": ADDRESS.sub("[address]", message["content"])}
        for message in conversation
    ]
