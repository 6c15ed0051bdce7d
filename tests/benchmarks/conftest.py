"""Benchmarks are scripts outside the package: their folder is put on the path."""

import os
from pathlib import Path

import pytest

ABSENT_HERE = ("ray", "hydra", "omegaconf", "textarena", "pyspiel", "trl", "unstable")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def on_path():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield BENCHMARKS


@pytest.fixture
def bare_environment(monkeypatch, tmp_path):
    """Processes started from here find none of ``ABSENT_HERE``."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({ABSENT_HERE}))\n"
    )
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    )
