"""Extension of griffe: rlforge's docstrings as Markdown, its value classes with their fields."""

from __future__ import annotations

import re
from typing import Any

from griffe import (
    Attribute,
    Class,
    Docstring,
    ExprCall,
    ExprKeyword,
    ExprName,
    Extension,
    Function,
    Object,
)

EXAMPLE = re.compile(
    r"^Example:(?P<about>.*)\n(?= {4})(?P<body>(?: {4}.*(?:\n|\Z)|\n)+)", re.MULTILINE
)


class Prose(Extension):
    """Sentences about arguments become lists, ``Example:`` blocks code.

    A ``#:`` comment is the docstring of the field before or below it.
    """

    def on_class_instance(self, *, cls: Class, **kwargs: Any) -> None:
        for decorator in cls.decorators:
            if str(decorator.value) == "value":  # rlforge.types.value
                keyword_only = ExprKeyword("kw_only", "True")
                decorator.value = ExprCall(ExprName("dataclasses.dataclass"), [keyword_only])

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if isinstance(obj, Attribute) and not obj.docstring:
            comment = _comment_at(obj)
            obj.docstring = Docstring(comment, parent=obj) if comment else None
        elif obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value, _fields(obj))


def to_markdown(text: str, fields: list[str]) -> str:
    """A docstring with ``Example:`` as a fenced block and ``field: about`` as list items."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    prose, example, rest = text, "", ""
    if found := EXAMPLE.search(text):
        prose, example, rest = text[: found.start()], _fenced(found), text[found.end() :]
    if fields:
        prose = "\n\n".join(_listed(part, fields) for part in prose.split("\n\n"))
    return "\n\n".join(part.strip("\n") for part in (prose, example, rest) if part.strip())


def _listed(paragraph: str, fields: list[str]) -> str:
    """``about. a: x. b, c: y. Raises E.`` with a list item for each name or names of ``fields``."""
    name = rf"(?:{'|'.join(map(re.escape, fields))})(?: \[[\w, ]+\](?: \| None)?)?"
    start = re.compile(rf"(?:^|(?<=[.;:])[ \n])({name}(?:, {name})*): ")
    if paragraph.startswith("    ") or not start.search(paragraph):
        return paragraph
    paragraph, raises, errors = paragraph.partition("Raises ")
    before, *pieces = start.split(paragraph.rstrip())
    items = []
    for head, about in zip(pieces[::2], pieces[1::2], strict=True):
        heads = re.sub(r"(\w+)((?: \[[\w, ]+\](?: \| None)?)?)(?=, [a-z]|$)", r"`\1`\2", head)
        items.append(re.sub(r"\n\s*", "\n    ", f"- {heads}: {about}"))
    after = [f"\n{raises}{errors}"] if raises else []
    return "\n".join([*([before, ""] if before else []), *items, *after])


def _fields(obj: Object) -> list[str]:
    """Names of the parameters of a function, of the fields or constructor arguments of a class."""
    init = obj.members.get("__init__") if isinstance(obj, Class) else obj
    names = [one.name for one in init.parameters] if isinstance(init, Function) else []
    if isinstance(obj, Class):
        names += [name for name, member in obj.members.items() if member.is_attribute]
    return [name for name in names if name != "self"]


def _fenced(example: re.Match[str]) -> str:
    lines = [line[4:] for line in example["body"].rstrip().split("\n")]
    code = re.sub(r"  # doctest: .*", "", "\n".join(lines))
    about = example["about"].strip().rstrip(":.")
    return f"**Example**{', ' + about if about else ''}:\n\n```pycon\n{code}\n```\n"


def _comment_at(attribute: Attribute) -> str:
    """The ``#:`` comment behind an attribute, or in the lines above it."""
    lines, number = attribute.lines_collection[attribute.filepath], (attribute.lineno or 1) - 2
    _, _, behind = lines[number + 1].partition("  #: ")
    if behind:
        return behind
    comment: list[str] = []
    while number >= 0 and lines[number].strip().startswith("#:"):
        comment.insert(0, lines[number].strip().removeprefix("#:").strip())
        number -= 1
    return " ".join(comment)
