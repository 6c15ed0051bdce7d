"""Commands of ``rlforge`` in the test's process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rlforge.cli import main


class Answer(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def rlforge(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """``rlforge ARGUMENTS`` in this process, 80 columns wide, without a GPU."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["rlforge", *map(str, arguments)])
        with pytest.raises(SystemExit) as ending:
            main()
        out, err = capsys.readouterr()
        code = ending.value.code
        assert isinstance(code, int)
        return Answer(code, out, err)

    return run
