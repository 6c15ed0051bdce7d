"""Takes the steps of a walk: commands at a terminal of 80 columns, with a user at its keys."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pexpect
from rich.console import Console
from rich.text import Text
from tests.harness.live_run import free_port

COLUMNS = 80
_TIMEOUT_S = 240
#: What differs from run to run: the digits of times and speeds.
_MEASURED = re.compile(r"\d+:\d\d\b|[\d.,]+(?= tok/s|/s)")
_RUN_TIME = re.compile(r"\b20\d\d-\d\d-\d\d_\d\d-\d\d-\d\d\b")
_ANSWER_ID = re.compile(r'(?<="id":")[^"]+|(?<="created":)\d+')


@dataclass(frozen=True)
class Step:
    """A command and what the user does at it.

    command: with ``{name}`` for what earlier steps found. shows: regular expressions that the
    screen has. code: the exit code. until: what the screen shows when the steps ``meanwhile`` are
    taken at another terminal, and when Ctrl-C is pressed, if ``interrupt``. replies: question ->
    what is typed; ``\\1`` is a group of the question. finds: name -> regular expression whose group
    is what later steps call by that name; the last match counts. same: the screen is that of every
    walk. last: lines of the record, from the end; all by default. picture: name of an SVG file.
    """

    title: str
    command: str
    shows: tuple[str, ...]
    code: int = 0
    until: str = ""
    meanwhile: tuple[Step, ...] = ()
    interrupt: bool = False
    replies: Mapping[str, str] = field(default_factory=dict)
    finds: Mapping[str, str] = field(default_factory=dict)
    same: bool = False
    last: int | None = None
    picture: str = ""


@dataclass(frozen=True)
class Screen:
    """What a step showed: ``ansi`` with colours. command, code: as they were."""

    step: Step
    command: str
    ansi: str
    code: int | None

    @property
    def lines(self) -> list[str]:
        """Without colours."""
        lines = Text.from_ansi(self.ansi).plain.splitlines()
        return [line.rstrip() for line in lines]

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)

    def svg(self) -> str:
        """A picture of the end of the screen; it needs no font from elsewhere."""
        lines = Text.from_ansi(self.ansi.strip("\n")).split("\n")[-(self.step.last or 0) :]
        console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
        console.print(Text("\n").join(lines))
        drawn = console.export_svg(title=self.command, unique_id=self.step.picture)
        drawn = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", drawn, flags=re.DOTALL)
        return re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE).rstrip("\n") + "\n"


class Walk:
    """Takes steps in ``folder``, each with what earlier ones have ``found``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found = {"port": str(free_port())}

    def take(self, step: Step) -> list[Screen]:
        """The screens of a step and of those meanwhile."""
        command = self._filled(step.command)
        process = pexpect.spawn(
            "bash",
            ["-c", command],
            encoding="utf-8",
            cwd=str(self.folder),
            dimensions=(50, COLUMNS),
            timeout=_TIMEOUT_S,
            env=_environment(),
        )
        process.logfile_read = seen = io.StringIO()
        others: list[Screen] = []
        if step.until:
            process.expect(step.until)
            for other in step.meanwhile:
                others += self.take(other)
            if step.interrupt:
                process.sendintr()
        replies = list(step.replies.items())
        questions = [*step.replies, pexpect.EOF]
        while (asked := process.expect(questions)) < len(replies):
            process.sendline(process.match.expand(replies[asked][1]))
        process.wait()
        process.close()
        screen = Screen(step, command, seen.getvalue().replace("\r\n", "\n"), process.exitstatus)
        for name, pattern in step.finds.items():
            self.found[name] = re.findall(pattern, screen.text)[-1]
        return [screen, *others]

    def recorded(self, screen: Screen) -> str:
        """The command and its lines, without what differs from machine to machine and by time."""
        lines = screen.lines
        if screen.step.last is not None and len(lines) > screen.step.last:
            lines = ["…", *lines[-screen.step.last :]]
        text = "\n".join([f"$ {screen.command}", *lines]).strip("\n")
        text = text.replace(str(self.folder), "~/day").replace(self.found["port"], "8000")
        text = _RUN_TIME.sub("2026-01-01_12-00-00", text)
        text = _ANSWER_ID.sub(lambda found: re.sub(r"\w", "#", found[0]), text)
        return _MEASURED.sub(lambda found: re.sub(r"\d", "#", found[0]), text)

    def _filled(self, command: str) -> str:
        for name, found in self.found.items():
            command = command.replace(f"{{{name}}}", found)
        return command


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    return os.environ | own | {"CUDA_VISIBLE_DEVICES": "", "PYTHONIOENCODING": "utf-8"}
