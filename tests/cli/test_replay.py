"""``rlforge replay`` in a process of its own, as a user starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rlforge
from rlforge.tracking.files import create_run
from rlforge.tracking.game_files import GameWriter

RUN = Path("run")


@pytest.fixture
def game_id():
    """A run with one game on disk."""
    create_run(RUN).config.write_text("name: demo\n")
    record = rlforge.play_game("tictactoe", "minimax", "random_legal", seed=1)
    writer = GameWriter(RUN)
    writer.add([record])
    writer.close()
    return record.spec.game_id


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from rlforge.cli import main; main()", "replay", str(RUN)]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=240
    )


def test_a_game_is_listed_shown_and_exported(game_id):
    assert game_id in replay("--opponent", "random_legal").stdout
    assert "plays [" in replay("latest", "--purpose", "eval").stdout
    written = replay(game_id, "--export", "game.svg")
    assert (written.returncode, written.stdout) == (0, "game.svg\n")
    assert Path("game.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--step", "7"), "none of the 1 finished games has --step 7"),
        (("--interactive",), "need a game: its id, or latest"),
        (("latest", "--interactive"), "--interactive needs a terminal"),
        (("latest", "--export", "game.gif"), "pictures are SVG"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_line(game_id, arguments, message):
    answer = replay(*arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr
