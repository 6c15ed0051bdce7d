"""Every wrong command line of wrong_lines.txt ends in a short message with its mend."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
import typer.main

from rlforge.cli import app, main
from rlforge.config.compose import compose, to_yaml
from rlforge.config.continuous import ContinuousConfig
from rlforge.config.schema import PolicyConfig, RunConfig, TrackerConfig
from rlforge.tracking.tracker import Tracker
from rlforge.trajectories.store import TrajectoryStore

FILE = Path(__file__).with_name("wrong_lines.txt")


Case = tuple[str, int, str]
"""A line, its exit code, and a part of the message."""


def _cases() -> dict[str, list[Case]]:
    """The cases below each heading."""
    _about, *sections = FILE.read_text().split("\n\n# ")
    found: dict[str, list[Case]] = {}
    for section in sections:
        heading, *rows = section.strip().splitlines()
        for line, answer in zip(rows[::2], rows[1::2], strict=True):
            code, _, part = answer.partition(" ")
            found.setdefault(heading, []).append((line.removeprefix("$ "), int(code), part))
    return found


CASES = _cases()


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A folder with what the lines name; nothing there can start actors."""
    _record(Path("game"), "tictactoe_mirror", RunConfig)
    _record(Path("market"), "market_continuous", ContinuousConfig)
    Path("market/windows.jsonl").touch()
    TrajectoryStore(Path("market/store")).close()
    Path("full").mkdir()
    Path("full/file").touch()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for key in ("OPENAI_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.delenv(key, raising=False)

    def started(*_: object, **__: object) -> None:
        raise AssertionError("the actors were started")

    monkeypatch.setattr("ray.init", started)
    return tmp_path


def _record(root: Path, experiment: str, kind: type[PolicyConfig]) -> None:
    """A run that ended before its first update."""
    tracker = Tracker(root, TrackerConfig(), experiment, 2, about={"seed": 0})
    config = compose([f"+experiment={experiment}"], root=kind).config
    (root / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    tracker.close({"status": "done"})


@pytest.mark.parametrize("heading", CASES)
def test_wrong_lines_end_with_what_is_wrong_and_leave_nothing(folder, monkeypatch, capsys, heading):
    before = sorted(folder.rglob("*"))
    wrong = {}
    for line, code, part in CASES[heading]:
        words = [word.replace("WINDOWS", "market") for word in shlex.split(line)]
        words = [word.replace("RUN", "game") for word in words]
        monkeypatch.setattr(sys, "argv", ["rlforge", *words])
        with pytest.raises(SystemExit) as ending:
            main()
        out, err = capsys.readouterr()
        expected = part.replace("WINDOWS", "market").replace("RUN", "game")
        fine = (
            ending.value.code == code
            and out == ""
            and err.startswith("rlforge: ")
            and err.count("\n") <= 3
            and "Traceback" not in err
            and expected in " ".join(err.split())
            and sorted(folder.rglob("*")) == before
        )
        if not fine:
            wrong[line] = f"exit code {ending.value.code}, {out}{err}"
    assert wrong == {}


def test_there_are_two_hundred_wrong_lines_and_every_command_has_one():
    lines = [line for cases in CASES.values() for line, _, _ in cases]
    assert len(lines) == len(set(lines)) >= 200
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(commands) <= {line.split()[0] for line in lines}
