"""How commands end: on terminals of any encoding, on full disks, and at Ctrl-C."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.factories import SHARES, completion, evaluation, game_record, game_spec, turn, update
from tests.harness.composed import composed

from rlforge.cli import main
from rlforge.config.compose import to_yaml
from rlforge.config.schema import TrackerConfig
from rlforge.record.game_files import GameWriter
from rlforge.record.tracker import Tracker

RLFORGE = [sys.executable, "-m", "rlforge"]
RUN = Path("run")


@pytest.fixture
def run_dir():
    """A finished run whose texts have characters that no 8-bit encoding has."""
    tracker = Tracker(RUN, TrackerConfig(), "größe – 🎮", 2, about={"seed": 0})
    config = composed("+experiment=tictactoe_mirror").config
    (RUN / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    for version in (1, 2):
        tracker.log_learner(update(version), SHARES)
    game = {"env_id": "TicTacToe-v0-train", "ci95": (0.3, 0.95)}
    for step, wins in ((0, 1), (2, 3)):
        tracker.add_eval(evaluation(step, wins, games=4, **game))
    tracker.close({"status": "done"})
    games = GameWriter(RUN)
    answer = completion("ich ziehe → [4] … 🎮")
    spec = game_spec(env="TicTacToe-v0-train")
    games.add([game_record(spec, [turn(observation="┌─┐ 🎮", completion=answer)])])
    games.close()
    return RUN


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    "command",
    [
        ("train", "--help"),
        ("models",),
        ("graph", "+experiment=simpletak_mirror"),
        ("monitor", str(RUN)),
        ("monitor", str(RUN), "--once"),
        ("replay", str(RUN)),
        ("eval", str(RUN), "--checkpoint", "step–9"),
        ("trän",),
    ],
    ids=" ".join,
)
def test_commands_write_to_terminals_of_any_encoding(run_dir, monkeypatch, command, encoding):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "argv", ["rlforge", *command])
    with pytest.raises(SystemExit) as ending:
        main()
    monkeypatch.undo()
    written = []
    for stream in (out, err):
        stream.flush()
        written.append(stream.buffer.getvalue().decode(encoding, "replace"))
    assert ending.value.code == (2 if {"eval", "trän"} & {*command} else 0), written
    assert any(written)
    assert "Traceback" not in "".join(written)
    if command == ("models",):
        assert max(map(len, written[0].splitlines())) <= 80


def test_a_terminal_without_utf8_gets_question_marks(run_dir):
    command = [*RLFORGE, "monitor", str(run_dir), "--once"]
    terminal = os.environ | {"PYTHONIOENCODING": "latin-1", "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, env=terminal)
    assert done.returncode == 0, done.stderr
    assert "größe ? ?" in done.stdout.decode("latin-1")
    assert "30%?95%" in done.stdout.decode("latin-1")


def test_a_working_directory_that_is_gone_is_one_message(tmp_path):
    for words in (["doctor"], ["list"], ["train", "kuhn_grpo"], ["runs"]):
        folder = tmp_path / "gone"
        folder.mkdir()
        done = subprocess.run(
            ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(folder), *RLFORGE, *words],
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"rlforge: the working directory {folder} is gone: it was deleted or replaced; "
            "cd to one that exists\n"
        )


def test_a_full_disk_is_one_message():
    command = [*RLFORGE, "config", "+experiment=simpletak_mirror"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "rlforge: the disk or its quota is full (No space left on device); free some and run the "
        "command again\n"
    )


def test_a_crash_while_the_interpreter_ends_does_not_change_the_exit_code(tmp_path):
    script = tmp_path / "command.py"
    script.write_text(f"""\
import atexit, os, ray, sys
import rlforge.cli
from rlforge.__main__ import command

main = rlforge.cli.main
rlforge.cli.main = lambda: atexit.register(print, "closed") and main()

class Thread:
    __del__ = lambda self, kill=os.kill, process=os.getpid(): kill(process, {signal.SIGSEGV:d})

sys.native = Thread()  # its end is one of the last things of the interpreter
sys.argv = ["rlforge", *sys.argv[1:]]
command()
""")
    for words, code in (["list", "models"], 0), (["trän"], 2):
        ended = subprocess.run([sys.executable, script, *words], capture_output=True, text=True)
        assert (ended.returncode, ended.stdout[-7:]) == (code, "closed\n"), ended.stderr
