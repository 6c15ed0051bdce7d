"""What an extra brings is named where it is not there, and the main job needs none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlforge.continuous.loop.kind import PACKAGES
from rlforge.system.packages import extra_of

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
from rlforge.cli import main
main()
"""


def without(packages: tuple[str, ...], *arguments: str) -> tuple[int, str]:
    """Exit code and errors of a command where these packages are not installed."""
    line = [sys.executable, "-c", WITHOUT, ",".join(packages), *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_every_package_of_continuous_training_is_in_its_extra() -> None:
    assert {extra_of(module) for module in PACKAGES} == {"continuous"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "arguments", [("continuous", "+experiment=market_continuous"), ("serve", "model=tiny")]
)
def test_a_command_says_which_extra_brings_its_packages(arguments: tuple[str, ...]) -> None:
    code, said = without(PACKAGES, *arguments)
    assert code == 2
    assert "not installed; pip install 'rlforge[continuous]'" in said
    assert "Traceback" not in said


@pytest.mark.one_in(2)
@pytest.mark.parametrize("command", ["graph", "config"])
def test_the_main_job_is_planned_without_them(command: str) -> None:
    code, said = without(PACKAGES, command, "+experiment=simpletak_mirror")
    assert (code, said) == (0, "")
