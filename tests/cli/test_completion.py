"""What the shell offers for the word under the cursor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlforge.cli import main

Capture = pytest.CaptureFixture[str]
SIMPLETAK = ["simpletak_lagged", "simpletak_mirror", "simpletak_nash", "simpletak_pool"]


def _bash(monkeypatch: pytest.MonkeyPatch, capsys: Capture, *words: str) -> list[str]:
    """What is offered for the last of the words, which bash also splits at equals signs."""
    monkeypatch.setenv("_RLFORGE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(["rlforge", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    monkeypatch.setattr(sys, "argv", ["rlforge"])
    with pytest.raises(SystemExit) as ending:
        main()
    out, err = capsys.readouterr()
    assert (ending.value.code, err) == (0, "")
    return out.split()


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A run with two versions, below ``runs/``."""
    folder = Path("runs/mine/2026-01-01_12-00-00")
    for version in (2, 10):
        (folder / "checkpoints" / f"step-{version}").mkdir(parents=True)
    (folder / "config.yaml").touch()
    (folder / "summary.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], ["train"]),
        (["train", "+experiment", "=", "simpletak"], SIMPLETAK),
        (["train", "kuhn"], ["kuhn3_nash", "kuhn_grpo", "kuhn_nash"]),
        (["train", "env", "=", "tic"], ["tictactoe"]),
        (["train", "env=tic"], ["env=tictactoe"]),
        (["train", "learner.ba"], ["learner.batch_size=", "learner.batch_delay_buffer="]),
        (["train", "learner.batch_s"], ["learner.batch_size=384"]),
        (["train", "learner.schedule", "=", "c"], ["constant", "cosine"]),
        (["train", "learner.shard_weights", "="], ["true", "false"]),
        (["train", "pool.mode=m"], ["pool.mode=mirror", "pool.mode=match_quality"]),
        (["continuous", "window.minu"], ["window.minutes=60.0"]),
        (["train", "window.minu"], []),
        (["list", "exp"], ["experiment"]),
        (["show", "learner.batch_s"], ["learner.batch_size"]),
        (["trian", "x"], []),
        (["train", "--config-dir", "nowhere", "env", "=", "tic"], ["tictactoe"]),
        (["train", "'"], None),
        (["train", "learner.", "=", "."], []),
    ],
)
def test_bash_is_offered_experiments_groups_keys_and_values(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: list[str], offered: list[str] | None
) -> None:
    found = _bash(monkeypatch, capsys, *words)
    assert offered is None or found == offered


def test_runs_and_their_versions_are_offered(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, run: str
) -> None:
    for command in (["eval"], ["train", "--resume"], ["windows", "list"], ["deploy"]):
        assert _bash(monkeypatch, capsys, *command, "") == ["latest", run]
    found = _bash(monkeypatch, capsys, "eval", run, "--checkpoint", "")
    assert found == ["latest", "best", "step-10", "step-2"]


def test_zsh_is_offered_the_meanings_too(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("_RLFORGE_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "rlforge train env=tic")
    monkeypatch.setattr(sys, "argv", ["rlforge"])
    with pytest.raises(SystemExit):
        main()
    assert '"env=tictactoe":"TicTacToe by TextArena."' in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, shell: str
) -> None:
    monkeypatch.setenv("_RLFORGE_COMPLETE", f"source_{shell}")
    monkeypatch.setattr(sys, "argv", ["rlforge"])
    with pytest.raises(SystemExit):
        main()
    assert "_RLFORGE_COMPLETE" in capsys.readouterr().out


def test_completion_imports_nothing_heavy() -> None:
    code = """
import atexit, sys
heavy = {"torch", "ray", "transformers", "pandas", "textarena"}
atexit.register(lambda: print(sorted(heavy & set(sys.modules)), file=sys.stderr))
sys.argv = ["rlforge"]
from rlforge.cli import main
main()
"""
    words = {"COMP_WORDS": "rlforge\ntrain\n+experiment\n=\nsimple", "COMP_CWORD": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | words | {"_RLFORGE_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == SIMPLETAK
    assert done.stderr.strip() == "[]"
