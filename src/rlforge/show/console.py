"""The console of all commands."""

from __future__ import annotations

import re
from collections.abc import Iterable

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

#: Control characters but for tabs and ends of lines.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Console(rich.console.Console):
    """Rich's console, which shows control characters of answers and records as pictures of them.

    A terminal would obey them: an answer could clear the screen, or write a title.

    Example:
        >>> Console().print("an answer \\x1b[2J")
        an answer ␛[2J
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of ``renderable``."""
        for segment in super().render(renderable, options):
            if not segment.control and _CONTROLS.search(segment.text):
                yield Segment(_CONTROLS.sub(_picture, segment.text), segment.style)
            else:
                yield segment


def _picture(control: re.Match[str]) -> str:
    return "␡" if control[0] == "\x7f" else chr(0x2400 + ord(control[0]))
