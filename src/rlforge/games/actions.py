"""Extraction of an action from a model's answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from rlforge.config.plugins import EXTRACTIONS
from rlforge.system.values import json_objects
from rlforge.types import value


@value
class Extraction:
    """An action, empty where the text held none, and the judgement of its format.

    feedback: the format error, for the player's next try; empty without one.
    """

    action: str
    well_formed: bool
    feedback: str = ""


@value
class Extractor:
    """One way to find the action in an answer.

    Attributes:
        read: The action in a text, None without one.
        request: Asks for answers of that form.
        feedback: For the player whose answer had no action.
        adds_brackets: Whether brackets are added where a game writes actions in them.
        write: An action in an answer of this form.

    Example:
        >>> shout = Extractor(
        ...     read=lambda text: text.partition("!")[0].split()[-1] if "!" in text else None,
        ...     request="End your answer with your action and an exclamation mark.",
        ...     feedback="Your last answer had no exclamation mark.",
        ...     write=lambda action: f"{action}!",
        ... )
        >>> shout.read("Then I play 4!")
        '4'
        >>> shout.read(shout.write("4"))
        '4'
    """

    read: Callable[[str], str | None]
    request: str
    feedback: str
    adds_brackets: bool = True
    write: Callable[[str], str] = str

    def extract(self, text: str, legal_actions: Sequence[str] | None = None) -> Extraction:
        """The action in an answer to a view with ``legal_actions``."""
        action = self.read(text)
        if action is None:
            return Extraction(action="", well_formed=False, feedback=self.feedback)
        plain = "[" not in action and not action.startswith("{")
        # A game that lists no actions most likely wants brackets, as nearly all of TextArena.
        bracketed = not legal_actions or legal_actions[0].startswith("[")
        if self.adds_brackets and plain and bracketed:
            action = f"[{action}]"
        return Extraction(action=action, well_formed=True)


def extract(name: str, text: str, legal_actions: Sequence[str] | None = None) -> Extraction:
    """Apply the extraction ``name`` to an answer; ConfigError for an unknown name.

    Example:
        >>> extract("boxed", r"The centre: \\boxed{4}", ("[3]", "[4]")).action
        '[4]'
        >>> extract("boxed", "The centre.").well_formed
        False
    """
    extractor: Extractor = EXTRACTIONS.find(name)
    return extractor.extract(text, legal_actions)


def _boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{…}`` that is not empty; braces balance."""
    found, latest = None, -1
    # Plain braces (-1) count, so that their ends do not close the box around them.
    starts: list[int] = []
    for mark in re.finditer(r"\\boxed\{|[{}]", text):
        if mark[0] != "}":
            starts.append(-1 if mark[0] == "{" else mark.end())
        elif starts and (start := starts.pop()) > latest:
            content = text[start : mark.start()]
            # Models trained on mathematics wrap words (\boxed{\text{[4]}}), which no game would
            # accept.
            wrapped = re.fullmatch(r"\s*\\text\{(.*)\}\s*", content, re.DOTALL)
            content = (wrapped.group(1) if wrapped else content).strip()
            found, latest = (content, start) if content else (found, latest)
    return found


def _last_line(text: str) -> str | None:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else None


def _json(text: str) -> str | None:
    """The last JSON object, or its ``action`` where it holds nothing else."""
    objects = [*json_objects(text)]
    if not objects:
        return None
    last = objects[-1]
    plain = last.get("action") if last.keys() == {"action"} else None
    return plain.strip() or None if isinstance(plain, str) else json.dumps(last, ensure_ascii=False)


def _last(pattern: str) -> Callable[[str], str | None]:
    """Reads the last match of ``pattern``."""

    def read(text: str) -> str | None:
        found = re.findall(pattern, text)
        return found[-1] if found else None

    return read


_number = _last(r"\d+")


BOXED = Extractor(
    read=_boxed,
    request=r"Think it through step by step, then give your final action inside \boxed{}.",
    feedback=r"Your last answer had no \boxed{...} with an action in it.",
    write=lambda action: rf"\boxed{{{action}}}",
)
BRACKET = Extractor(
    read=_last(r"\[[^\[\]]*[^\[\]\s][^\[\]]*\]"),
    request=(
        "Think it through step by step, then end with your final action in square brackets, "
        "written as the game asks for it."
    ),
    feedback="Your last answer had no action in square brackets.",
)
LAST_LINE = Extractor(
    read=_last_line,
    request=(
        "Think it through step by step, then write your final action, and nothing else, "
        "on the last line."
    ),
    feedback="Your last answer was empty.",
)
NUMBER = Extractor(
    read=_number,
    request="Think it through step by step, then end with the number of your final action.",
    feedback="Your last answer had no number.",
    write=lambda action: _number(action) or action,
)
JSON = Extractor(
    read=_json,
    request=(
        'End with your action as a JSON object. One that is no JSON is written {"action": "..."}.'
    ),
    feedback="Your last answer had no JSON object.",
    # A market's action is a JSON object already, so none goes around it.
    write=lambda action: (
        action if any(json_objects(action)) else json.dumps({"action": action}, ensure_ascii=False)
    ),
)
RAW = Extractor(
    read=lambda text: text.strip() or None,
    request="Answer with your action and nothing else.",
    feedback="Your last answer was empty.",
    adds_brackets=False,
)
