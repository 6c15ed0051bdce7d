"""Pydantic's complaints about values, in the words of rlforge."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlforge.errors import ConfigError, nearest


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A key, relative to what was validated, its value, and what is wrong.

    clash: the value contradicts others, and is right by itself.
    """

    key: str
    given: Any
    reason: str
    unknown: bool = False
    clash: bool = False

    def __str__(self) -> str:
        return f"{self.key}={self.given}: {self.reason}"


class InvalidValuesError(ConfigError):
    """Values that make no configuration."""

    def __init__(self, wrong: list[Wrong]) -> None:
        super().__init__("\n".join(map(str, wrong)))
        self.wrong = wrong


# A ValueError, which pydantic gathers with its own; others would end the validation.
class ClashError(ValueError):
    """The ``clashes`` of a configuration."""

    def __init__(self, wrong: list[Wrong]) -> None:
        super().__init__("clashes")
        self.wrong = wrong


def translated(errors: Sequence[Any], values: Any) -> Iterator[Wrong]:
    for error in errors:
        path: list[str] = []
        inside = values
        for part in error["loc"]:  # ends where it names a key of a mapping, or an alternative
            # ``problems`` validates a configuration, whose groups are no mappings.
            inside = vars(inside) if dataclasses.is_dataclass(inside) else inside
            try:
                inside = inside[part]
            except (KeyError, IndexError, TypeError):
                break
            path.append(str(part))
        # A validator raises one error only: each of the clashes in it is reported by itself.
        clash = error.get("ctx", {}).get("error")
        if isinstance(clash, ClashError):
            for one in clash.wrong:
                yield dataclasses.replace(one, key=".".join([*path, one.key]), clash=True)
        else:
            unknown = error["type"] == "unexpected_keyword_argument"
            # The input of an error about the key of a mapping is that key.
            found = inside if error["loc"][-1:] == ("[key]",) else error["input"]
            for key, given in _leaves(".".join(path), found, whole=not unknown):
                yield Wrong(key, given, _reason(error), unknown)


def _leaves(key: str, given: Any, *, whole: bool) -> Iterator[tuple[str, Any]]:
    """The dotted keys of a mapping that is unknown as a whole."""
    if whole or not isinstance(given, Mapping) or not given:
        yield key, given
    else:
        for name, inside in given.items():
            yield from _leaves(f"{key}.{name}", inside, whole=False)


def _reason(error: Mapping[str, Any]) -> str:
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "literal_error":
        # pydantic gives the choices as a sentence alone.
        choices = re.findall(r"'([^']*)'", context["expected"])
        return f"no such choice{nearest(str(given), choices)} (there are {', '.join(choices)})"
    if kind == "value_error":
        return str(context["error"])
    # Before the types: "must be a number" would not say that null is what is wrong.
    if given is None and "_type" in kind:
        return "cannot be null"
    if kind in ("too_short", "too_long"):
        number = context["min_length" if kind == "too_short" else "max_length"]
        least = "at least" if kind == "too_short" else "at most"
        return f"must have {least} {number} entr{'y' if number == 1 else 'ies'}"
    # Integers in full: six digits of a large one would name a bound that is none.
    bounds = {
        name: str(bound) if isinstance(bound, int) else f"{bound:g}"
        for name, bound in context.items()
        if name in _BOUNDS
    }
    words = (text.format(**bounds) for name, text in _WORDS.items() if kind.startswith(name))
    return next(words, str(error["msg"]))


NOT_FINITE = "must be a finite number"
LIST_NEEDED = "must be a list, in brackets: [ONE, TWO]"
MAPPING_NEEDED = "must be a mapping: {NAME: VALUE}"

_BOUNDS = ("gt", "ge", "lt", "le")
_WORDS = {
    # A longer beginning stands first, else "greater_than" would answer for it.
    "greater_than_equal": "must be {ge} or more",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be {le} or less",
    "less_than": "must be below {lt}",
    "finite_number": NOT_FINITE,
    "int_": "must be a whole number",
    "float_": "must be a number",
    "bool_": "must be true or false",
    "string_": "must be a text",
    "list_": LIST_NEEDED,
    "dict_": "must be a mapping: {{name: NAME}}",
    "dataclass_type": "must be a mapping: {{name: NAME}}",
    "unexpected_keyword_argument": "no such key",
}
"""Words by the beginning of an error's type."""
