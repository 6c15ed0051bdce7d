"""Whole runs in the test's process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from tests.harness.live_run import train_arguments


class Ended(NamedTuple):
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str


Train = Callable[..., Ended]


@pytest.fixture
def train(small_model: Path, in_process: ModuleType, capsys: pytest.CaptureFixture[str]) -> Train:
    """Train the small model on the CPU with further arguments."""

    def trained(*arguments: str, without: str = "") -> Ended:
        given = train_arguments(small_model, "hardware=cpu", *arguments)
        code = in_process.rlforge_here(*[one for one in given if one != without])
        return Ended(code, *capsys.readouterr())

    return trained
