"""A finished game as an animated picture, one turn after another."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from rich.segment import Segment, SegmentLines

from rlforge.errors import ConfigError
from rlforge.local.replay import scenes
from rlforge.system.files import atomic_write
from rlforge.types import GameRecord

#: Columns of text, and most lines of a turn: of a longer one, the last ones.
_COLUMNS, _MOST_LINES = 80, 40
#: Seconds of a turn, and how many turns long the last one is shown.
_TURN_S, _LAST = 1.5, 3
#: Size of a letter, as Rich draws it.
_LETTER, _LINE = 12.2, 24.4

_PART = "<style>{styles}</style><defs>{lines}</defs>{backgrounds}{matrix}"


def check_picture(file: Path) -> None:
    """Raise ConfigError where ``write_svg`` cannot write ``file``."""
    if file.suffix.lower() != ".svg":
        raise ConfigError(f"--export {file}: pictures are SVG; write NAME.svg")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ConfigError(f"--export {file}: give the name of a file in an existing folder")


def write_svg(record: GameRecord, file: Path) -> None:
    """Write the game as an SVG that shows its turns in a loop, and needs no other file.

    Where nothing moves (a printer, or a reader who wants no motion) it shows the end of the game.
    """
    parts = [_console().render_lines(scene, pad=False)[-_MOST_LINES:] for scene in scenes(record)]
    slots = len(parts) - 1 + _LAST
    whole = slots * _TURN_S
    frames = "".join(
        f'<g class="turn" style="animation-delay:{place * _TURN_S - whole:g}s">'
        f"{_drawn(part, place)}</g>"
        for place, part in enumerate(parts)
    )
    width, height = _COLUMNS * _LETTER + 20, max(map(len, parts)) * _LINE + 20
    style = (
        "text{font:20px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
        ".turn{visibility:hidden;animation:turn " + f"{whole:g}s step-end infinite}}"
        ".turn:last-child{visibility:visible;animation-name:last}"
        f"@keyframes turn{{0%{{visibility:visible}}{100 / slots:g}%{{visibility:hidden}}}}"
        f"@keyframes last{{0%{{visibility:visible}}{100 * _LAST / slots:g}%{{visibility:hidden}}}}"
        "@media(prefers-reduced-motion:reduce){.turn{animation:none}}"
    )
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#292929"/>'
        f'<g transform="translate(10 10)">{frames}</g></svg>\n'
    )
    atomic_write(file, picture.encode())


def _console() -> Console:
    return Console(
        record=True, file=io.StringIO(), width=_COLUMNS, force_jupyter=False, highlight=False
    )


def _drawn(lines: list[list[Segment]], place: int) -> str:
    console = _console()
    console.print(SegmentLines(lines, new_lines=True), end="")
    return console.export_svg(code_format=_PART, unique_id=f"t{place}")
