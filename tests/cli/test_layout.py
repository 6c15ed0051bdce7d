"""How help texts look."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator

import pytest
import typer.main

from rlforge.cli import app, main
from rlforge.cli.layout import paragraphs


def _commands(command: typer.main.TyperCommand, name: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield name
    for inner, one in getattr(command, "commands", {}).items():
        yield from _commands(one, (*name, inner))


COMMANDS = list(_commands(typer.main.get_command(app), ()))


def _help(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    columns: int,
) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "argv", ["rlforge", *command, "--help"])
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_paragraphs_of_help_fill_their_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    text = _help(monkeypatch, capsys, command, 80).split("╭")[0]
    lines = [line.strip() for line in text.splitlines()]
    for line, after in itertools.pairwise(lines):
        if line and after:
            assert len(f"{line} {after.split()[0]}") > 78, f"{line}\n{after}"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_is_whole_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    wide = _help(monkeypatch, capsys, command, 200)
    narrow = _help(monkeypatch, capsys, command, 40)
    assert "[bold]" not in narrow
    assert set(re.findall(r"--[a-z-]+", wide)) <= set(re.findall(r"--[a-z-]+", narrow))
    prose = [line for line in narrow.splitlines() if not re.search(r"\S{30}|Usage", line)]
    assert max(map(len, prose)) <= 40


def test_every_example_stands_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = typer.main.get_command(app)
    for name in COMMANDS:
        command = root
        for part in name:
            command = command.commands[part]  # type: ignore[attr-defined]
        text = _help(monkeypatch, capsys, name, 80)
        examples = [one for one in paragraphs(command.help or "") if one.startswith("rlforge ")]
        assert [one for one in examples if f" {one} " not in text] == []
