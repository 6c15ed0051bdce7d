"""HTML by function call: every text is escaped, except markup that these functions made.

Example:
    >>> el("p", "a < b", el("b", "!"), cls="note")
    '<p class="note">a &lt; b<b>!</b></p>'
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


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
    """A table that scrolls when it is too wide; the first ``names`` columns are text.

    caption: for screen readers.
    """
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


def fold(summary: str, *content: str | None) -> Html:
    """A part that is collapsed until the reader opens it."""
    return el("details", el("summary", summary), *content)


#: Works in one column on phones, and in light and dark mode.
CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #5c6675; --line: #dfe3e9;
  --accent: #2463c9; --good: #0b7f5f; --bad: #b4520a; --neutral: #98a1ae;
  --c0: #2463c9; --c1: #c96a12; --c2: #0e8a68; --c3: #b23a86;
  --c4: #6d54c0; --c5: #8a6d0b; --c6: #4c7d1f; --c7: #5c6675;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161c; --card: #1a2029; --ink: #e6eaf0; --soft: #9ba6b5; --line: #2e3744;
    --accent: #78a9ff; --good: #45c79f; --bad: #f0954a; --neutral: #6f7b8b;
    --c0: #78a9ff; --c1: #f0a35e; --c2: #45c79f; --c3: #ec85c2;
    --c4: #ab98f5; --c5: #d9ba4c; --c6: #9ccc65; --c7: #9ba6b5;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 1180px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { margin: 0; font-size: 1.7rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 2.4rem 0 .3rem; font-size: 1.2rem; }
h3 { margin: 0; font-size: 1rem; }
p { margin: .2rem 0 .8rem; }
.soft, .note { color: var(--soft); }
.note { font-size: .87rem; max-width: 75ch; }
.badge {
  display: inline-block; padding: .05rem .55rem; border-radius: 99px; font-size: .78rem;
  border: 1px solid currentColor; vertical-align: middle; white-space: nowrap;
}
.good { color: var(--good); } .bad { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: .7rem;
  margin: 1rem 0; }
.tile, .card, figure { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.tile { padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.25rem; font-weight: 650; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .82rem; }
.charts { display: grid; gap: .8rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); }
figure { margin: 0; padding: .7rem .6rem .3rem; max-width: 560px; display: flex;
  flex-direction: column; }
figcaption { font-weight: 600; font-size: .9rem; padding: 0 .3rem; overflow-wrap: anywhere; }
figure svg { width: 100%; height: auto; display: block; margin-top: auto; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem .9rem; margin: .15rem 0;
  padding: 0 .3rem; font-size: .8rem; color: var(--soft); }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em;
  background: currentColor; vertical-align: -.05em; }
.grid { stroke: var(--line); stroke-width: 1; }
.tick { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
circle.line { fill: currentColor; }
.raw { opacity: .3; stroke-width: 1.2; }
.band { fill: currentColor; opacity: .15; }
.strip { fill: transparent; } .strip:hover { fill: var(--ink); fill-opacity: .08; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); }
.c3 { color: var(--c3); } .c4 { color: var(--c4); } .c5 { color: var(--c5); }
.c6 { color: var(--c6); } .c7 { color: var(--c7); }
.win { color: var(--good); } .draw { color: var(--neutral); } .loss { color: var(--bad); }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; width: fit-content; max-width: 100%; min-width: min(100%, 480px); }
.scroll:has(.stack) { width: auto; }
.scroll + .note, .scroll + h3, h3 + .scroll { margin-top: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th { font-weight: 600; color: var(--soft); font-size: .82rem; white-space: nowrap; }
th, td { padding: .45rem .8rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
.figure { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.stack { display: flex; width: 100%; min-width: 150px; height: .65rem; border-radius: 4px;
  overflow: hidden; margin: .25rem 0; gap: 1px; }
.stack i { background: currentColor; }
.heat td { text-align: center; padding: .35rem .5rem; font-variant-numeric: tabular-nums;
  background: color-mix(in srgb, var(--accent) calc(var(--heat, 0) * 55%), transparent); }
.heat th { text-align: center; } .heat tbody th { text-align: right; }
.card { padding: .9rem 1rem; margin: .8rem 0; }
.turns { list-style: none; margin: .6rem 0 0; padding: 0; display: grid; gap: .6rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 235px), 1fr)); }
.turn { border: 1px solid var(--line); border-left: 3px solid currentColor; border-radius: 6px;
  padding: .5rem .6rem; min-width: 0; }
.turn > * { color: var(--ink); }
.turn.wrong { border-color: var(--bad); }
.turn header { font-size: .82rem; color: var(--soft); display: flex; flex-wrap: wrap;
  gap: .1rem .5rem; justify-content: space-between; }
pre { margin: .4rem 0; padding: .4rem .5rem; background: var(--page); border-radius: 5px;
  font: 12px/1.4 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  max-height: 210px; overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
/* Scrolled to the end, where most games print the board. */
.from-end { display: flex; flex-direction: column-reverse; }
.answer { border-left: 2px solid var(--accent); }
.turn footer { font-size: .8rem; color: var(--soft); }
code { font: .92em ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
details { margin: .7rem 0; }
summary { cursor: pointer; color: var(--accent); padding: .2rem 0; }
details pre { max-height: 640px; background: var(--card); border: 1px solid var(--line); }
@media (max-width: 720px) {
  .scroll:has(.stack) thead { display: none; }
  .scroll:has(.stack) tr { display: grid; grid-template-columns: 1fr 1fr;
    border-bottom: 1px solid var(--line); padding: .3rem 0; }
  .scroll:has(.stack) td { border: 0; text-align: left; padding: .25rem .8rem; }
  .stack { min-width: 0; }
}
"""
