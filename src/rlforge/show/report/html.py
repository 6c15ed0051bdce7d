"""HTML by function call: every text is escaped, except markup that these functions made.

Example:
    >>> el("p", "a < b", el("b", "!"), cls="note")
    '<p class="note">a &lt; b<b>!</b></p>'
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlforge.errors import ConfigError
from rlforge.system.files import atomic_write

_STYLE = Path(__file__).with_name("style.css")


class Html(str):
    """Markup. Any other string is text and is escaped when it is joined with markup."""

    __slots__ = ()


def el(tag: str, *content: str | None, **attributes: str | float | None) -> Html:
    """An element; None is left out, ``cls`` means class, ``_`` in attribute names ``-``."""
    names = {name: "class" if name == "cls" else name.replace("_", "-") for name in attributes}
    inside = "".join(
        f' {names[name]}="{html.escape(str(setting))}"'
        for name, setting in attributes.items()
        if setting is not None
    )
    return Html(f"<{tag}{inside}>{join(content)}</{tag}>")


def join(parts: Iterable[str | None], between: str = "") -> Html:
    """Concatenate parts; texts are escaped."""
    return Html(
        between.join(
            part if isinstance(part, Html) else html.escape(part)
            for part in parts
            if part is not None
        )
    )


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str, names: int = 1
) -> Html:
    """A table that scrolls; the first ``names`` columns are text. caption: for screen readers."""
    sides = ["name"] * names + ["figure"] * (len(heads) - names)
    head = el("tr", *(el("th", text, cls=side) for text, side in zip(heads, sides, strict=True)))
    body = [
        el("tr", *(el("td", text, cls=side) for text, side in zip(row, sides, strict=True)))
        for row in rows
    ]
    return el(
        "div",
        el("table", el("caption", caption), el("thead", head), el("tbody", *body)),
        cls="scroll",
    )


def heat(caption: str, columns: Iterable[str], rows: Iterable[tuple[str, Sequence[Html]]]) -> Html:
    """A square of cells that are coloured by their ``--heat``; rows: name and cells."""
    heads = el("tr", el("td", ""), *(el("th", name, scope="col") for name in columns))
    body = (el("tr", el("th", name, scope="row"), *cells) for name, cells in rows)
    parts = el("caption", caption), el("thead", heads), el("tbody", *body)
    return el("div", el("table", *parts, cls="heat"), cls="scroll")


def fold(summary: str, *content: str | None) -> Html:
    """A part that is collapsed until the reader opens it."""
    return el("details", el("summary", summary), *content)


def changed(change: float, text: str, sure: bool) -> Html:
    """``text`` about a ``change``, in the colour of a good (above 0) or a bad one if it is sure."""
    return el("b", text, cls="soft" if not sure else "good" if change > 0 else "bad")


def check_page(output: Path | None) -> None:
    """Raise ConfigError where ``write_page`` cannot write the file, if one is given."""
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise ConfigError(
            f"the report cannot be written to {output}: it must be a file in a folder that exists"
        )


def write_page(target: Path, title: str, body: Html) -> Path:
    """Write a page that needs no other file; returns its path. body: the element of that name."""
    head = el(
        "head",
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        el("title", title),
        el("style", Html(_STYLE.read_text(encoding="utf-8"))),
    )
    page = f"<!doctype html>\n{el('html', head, body, lang='en')}\n"
    atomic_write(target, page.encode(errors="replace"))
    return target
