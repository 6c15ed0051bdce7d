"""Every wrong command line of wrong_lines.txt ends in a short message with its mend."""

import shlex
import shutil
from pathlib import Path

import pytest
import typer.main

from rlforge.cli import app
from rlforge.config.compose import compose, to_yaml
from rlforge.config.schema import RunConfig, TrackerConfig
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.record.tracker import Tracker

FILE = Path(__file__).with_name("wrong_lines.txt")


def _cases():
    """The cases below each heading: a line, its exit code, and a part of the message."""
    _about, *sections = FILE.read_text().split("\n\n# ")
    found: dict[str, list[tuple[str, int, str]]] = {}
    for section in sections:
        heading, *rows = section.strip().splitlines()
        for line, answer in zip(rows[::2], rows[1::2], strict=True):
            code, _, part = answer.partition(" ")
            found.setdefault(heading, []).append((line.removeprefix("$ "), int(code), part))
    return found


CASES = _cases()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What the lines name."""
    folder = tmp_path_factory.mktemp("runs")
    _record(folder / "game", "tictactoe_mirror", RunConfig)
    _record(folder / "market", "market_continuous", ContinuousConfig)
    (folder / "market" / "windows.jsonl").touch()
    TrajectoryStore(folder / "market" / "store").close()
    (folder / "full").mkdir()
    (folder / "full" / "file").touch()
    return folder


@pytest.fixture
def folder(runs, monkeypatch, tmp_path):
    """A folder with ``runs``; nothing there can start actors."""
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    for key in ("OPENAI_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.delenv(key, raising=False)

    def started(*_, **__):
        raise AssertionError("the actors were started")

    monkeypatch.setattr("ray.init", started)
    return tmp_path


def _record(root, experiment, kind):
    """A run that ended before its first update."""
    tracker = Tracker(root, TrackerConfig(), experiment, 2, about={"seed": 0})
    config = compose([f"+experiment={experiment}"], root=kind).config
    (root / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    tracker.close({"status": "done"})


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("heading", "part"), [(one, part) for one in CASES for part in range(4)])
def test_wrong_lines_end_with_what_is_wrong_and_leave_nothing(rlforge, folder, heading, part):
    before = sorted(folder.rglob("*"))
    wrong = {}
    for line, code, answer in CASES[heading][part::4]:
        words = [word.replace("WINDOWS", "market") for word in shlex.split(line)]
        words = [word.replace("RUN", "game") for word in words]
        ended, out, err = rlforge(*words)
        expected = answer.replace("WINDOWS", "market").replace("RUN", "game")
        fine = (
            ended == code
            and out == ""
            and err.startswith("rlforge: ")
            and err.count("\n") == 1 + ("\nfor help: rlforge" in err)
            and "Traceback" not in err
            and expected in " ".join(err.split())
            and sorted(folder.rglob("*")) == before
        )
        if not fine:
            wrong[line] = f"exit code {ended}, {out}{err}"
    assert wrong == {}


def test_every_command_has_a_wrong_line():
    lines = [line for cases in CASES.values() for line, _, _ in cases]
    assert len(lines) == len(set(lines)) >= 170
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(commands) <= {line.split()[0] for line in lines}
