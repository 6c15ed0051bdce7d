"""What a page says and draws."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from typing import Any


class _Checked(HTMLParser):
    """Fails on elements that are not closed in order; gathers text and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & {*self.open}:
            self.text.append(data)


def check(page: str) -> tuple[str, list[str]]:
    """The text and the tags of a well-formed page."""
    parser = _Checked()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return re.sub(r"\s+", " ", " ".join(parser.text)), parser.seen


def charts(page: str) -> dict[str, dict[str, Any]]:
    """What each chart draws, by its caption."""
    found = re.findall(
        r"<figcaption>(.*?)</figcaption>\s*<div [^>]*data-plot='(.*?)'", page, re.DOTALL
    )
    return {html.unescape(caption): json.loads(html.unescape(plot)) for caption, plot in found}


def cells(page: str) -> list[list[str]]:
    """The text of the cells of each row of the page's tables, without the heads."""
    rows = [
        re.findall(r"<td[^>]*>(.*?)</td>", row)
        for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    ]
    texts = [[html.unescape(re.sub("<[^>]*>", "", cell)) for cell in row] for row in rows]
    return [row for row in texts if row]
