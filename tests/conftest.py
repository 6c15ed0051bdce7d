"""Shared by all tests: a home and a model cache of their own, and a very small model."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

import pytest

with contextlib.suppress(ImportError):  # GPU tests run where there is little more than pytest
    from hypothesis import settings

    # No verdict about time: another process may have the core. What CI asks for besides stays.
    asked = settings.get_profile(settings.get_current_profile_name())
    settings.register_profile("untimed", asked, deadline=None)
    settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs first: they take longest, and another process does the rest meanwhile."""
    items.sort(key=lambda item: item.path.name != "test_controller.py")


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ray must not look for a cloud, nor a test for the user's files."""
    home = tmp_path_factory.mktemp("home")
    (home / "ray_bootstrap_config.yaml").write_text("provider:\n  type: local\n")
    os.environ["HOME"] = str(home)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["RLFORGE_CACHE"] = str(home / "models")
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of a few thousand parameters with the tiny model's tokenizer, barely warmed up."""
    from rlforge.models.tiny.create import create_tiny
    from rlforge.models.tiny.recipe import TINY

    folder = tmp_path_factory.mktemp("models") / "small"
    folder.mkdir()
    games = tuple(dataclasses.replace(game, games=60) for game in TINY.games)
    recipe = dataclasses.replace(TINY, games=games, hidden=32, heads=2, ffn=64, steps=60)
    create_tiny(folder, recipe, progress=lambda text: None)
    return folder


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to runs/ in the current directory: give each test its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """A stand-in for nvidia-smi that answers as the real one does, and notes how it was asked."""

    def pretend(*lines: str, status: int = 0) -> Path:
        asked = tmp_path / "asked"
        tool = tmp_path / "bin" / "nvidia-smi"
        tool.parent.mkdir(exist_ok=True)
        answer = "\n".join(lines)
        tool.write_text(
            f'#!/bin/sh\necho "$@" > {asked}\ncat <<END\n{answer}\nEND\nexit {status}\n'
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return asked

    return pretend
