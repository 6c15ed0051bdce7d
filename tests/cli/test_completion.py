"""What the shell offers for the word under the cursor."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlforge.cli import main

SIMPLETAK = ["simpletak_lagged", "simpletak_mirror", "simpletak_nash", "simpletak_pool"]


def bash(monkeypatch, capsys, *words):
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


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], ["train"]),
        (["train", "kuhn"], ["kuhn3_nash", "kuhn_grpo", "kuhn_nash"]),
        (["train", "+experiment", "=", "simpletak"], SIMPLETAK),
        (["train", "+experiment=simpletak_m"], ["+experiment=simpletak_mirror"]),
        (["train", "env", "=", "tic"], []),
        (["train", "--res"], ["--resume"]),
        (["trian", "x"], []),
    ],
)
def test_bash_is_offered_commands_options_and_experiments(monkeypatch, capsys, words, offered):
    assert bash(monkeypatch, capsys, *words) == offered


def test_runs_are_offered(monkeypatch, capsys):
    run = Path("runs/mine/2026-01-01_12-00-00")
    run.mkdir(parents=True)
    (run / "summary.json").write_text("{}")
    for command in (["eval"], ["train", "--resume"], ["windows", "list"], ["deploy"]):
        assert bash(monkeypatch, capsys, *command, "") == ["latest", str(run)]


def test_completion_imports_nothing_heavy():
    code = """
import atexit, sys
heavy = {"torch", "ray", "transformers", "pandas", "textarena"}
atexit.register(lambda: print(sorted(heavy & set(sys.modules)), file=sys.stderr))
sys.argv = ["rlforge"]
from rlforge.cli import main
main()
"""
    words = {"COMP_WORDS": "rlforge\ntrain\n+experiment\n=\nsimple", "COMP_CWORD": "4"}
    words |= {"_RLFORGE_COMPLETE": "complete_bash"}
    given = {"env": os.environ | words, "timeout": 60, "check": True}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **given)
    assert done.stdout.split() == SIMPLETAK
    assert done.stderr.strip() == "[]"
