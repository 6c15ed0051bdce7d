"""Extraction of an action from a model's answer, and whether the answer had the right format.

Only the action reaches the game: some games read the first bracket of a text and some the last,
and plain TextArena ids show the whole text to the opponent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rlforge.errors import ConfigError, nearest
from rlforge.types import value


@value
class Extraction:
    """An action and the judgement of its format.

    action: passed to the game; empty where the text held none, which games count as invalid.
    feedback: the format error, shown to the player before its next try; empty without one.
    """

    action: str
    well_formed: bool
    feedback: str = ""


def extract(name: str, text: str, legal_actions: Sequence[str] | None = None) -> Extraction:
    """Apply the extraction ``name`` to a model's answer.

    legal_actions: of the view that was answered. Where a game writes actions in brackets, or does
    not list its actions, missing brackets are added. Raises ``ConfigError`` for an unknown name.

    Example:
        >>> extract("boxed", r"The centre: \\boxed{4}", ("[3]", "[4]")).action
        '[4]'
        >>> extract("boxed", "The centre.").well_formed
        False
    """
    check_extraction(name)
    action = _EXTRACTIONS[name](text)
    if action is None:
        return Extraction(action="", well_formed=False, feedback=_FEEDBACK[name])
    if name != "raw" and "[" not in action and _wants_brackets(legal_actions):
        action = f"[{action}]"
    return Extraction(action=action, well_formed=True)


def extraction_names() -> list[str]:
    """All extractions, sorted."""
    return sorted(_EXTRACTIONS)


def check_extraction(name: str) -> None:
    """Raises ``ConfigError`` for an unknown name."""
    if name not in _EXTRACTIONS:
        raise ConfigError(
            f"action extraction {name!r} is unknown{nearest(name, _EXTRACTIONS)}; there are "
            f"{', '.join(extraction_names())}"
        )


def _wants_brackets(legal_actions: Sequence[str] | None) -> bool:
    return not legal_actions or legal_actions[0].startswith("[")


def _boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{…}``; braces inside have to balance."""
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth = 0
    for end in range(start + len(r"\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            content = text[start + len(r"\boxed{") : end]
            # Models used to mathematics wrap words: \boxed{\text{[4]}}.
            wrapped = re.fullmatch(r"\s*\\text\{(.*)\}\s*", content, re.DOTALL)
            return (wrapped.group(1) if wrapped else content).strip() or None
    return None


def _bracket(text: str) -> str | None:
    """The last part in square brackets, brackets included."""
    found = re.findall(r"\[[^\[\]]*[^\[\]\s][^\[\]]*\]", text)
    return found[-1] if found else None


def _last_line(text: str) -> str | None:
    """The last line with anything on it."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else None


def _raw(text: str) -> str | None:
    """The whole text, for players that answer with an action and nothing else."""
    return text.strip() or None


_EXTRACTIONS: dict[str, Callable[[str], str | None]] = {
    "boxed": _boxed,
    "bracket": _bracket,
    "last_line": _last_line,
    "raw": _raw,
}

_FEEDBACK = {
    "boxed": r"Your last answer had no \boxed{...} with an action in it.",
    "bracket": "Your last answer had no action in square brackets.",
    "last_line": "Your last answer was empty.",
    "raw": "Your last answer was empty.",
}
