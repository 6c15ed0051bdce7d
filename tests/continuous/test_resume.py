"""A run killed at any phase resumes at the right window and trains once on each."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlforge.continuous.journal import Journal
from rlforge.serving.server import compose_service
from rlforge.system.checkpoint import list_checkpoints, read_manifest
from rlforge.trajectories.reader import StoreReader

Run = Callable[..., int]

#: Keys that may differ between two runs of one seed: times, and whether the scorer had learned a
#: window already when the run was killed before the window was recorded.
_MAY_DIFFER = (
    "duration_minutes",
    "seconds",
    "tokens_per_s",
    "tflops",
    "memory_peak_gb",
    "scorer/newly_learned",
)


def rows(run_dir: Path, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run_dir / name).read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if not key.startswith(_MAY_DIFFER)}
        for row in found
    ]


def decisions(run_dir: Path) -> list[Any]:
    return StoreReader(run_dir / "store").decisions()


@pytest.fixture(scope="module")
def whole(
    run_continuous: Run, small: Sequence[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run of two windows without an interruption."""
    folder = tmp_path_factory.mktemp("whole")
    assert run_continuous(*small, f"run_dir={folder / 'run'}", log=str(folder / "log")) == 0
    return folder / "run"


@pytest.mark.slow
def test_a_run_killed_around_every_phase_ends_like_an_undisturbed_one(
    run_continuous: Run, small: Sequence[str], whole: Path
) -> None:
    """Windows, updates, decisions and weights are the same, and no window is trained on twice."""
    run_dir = Path("run").absolute()
    kills = [
        (1, phase, when)
        for phase in ("collected", "scored", "trained", "deployed", "done")
        for when in ("before", "after")
    ]
    arguments: tuple[str | Path, ...] = (*small, f"run_dir={run_dir}")
    for kill in kills:
        assert run_continuous(*arguments, kill=kill) == -signal.SIGKILL, Path("log").read_text()
        arguments = ("--resume", run_dir)
    assert run_continuous(*arguments) == 0, Path("log").read_text()

    assert rows(run_dir, "windows.jsonl") == rows(whole, "windows.jsonl")
    assert rows(run_dir, "metrics.jsonl") == rows(whole, "metrics.jsonl")
    assert decisions(run_dir) == decisions(whole)
    windows = [
        read_manifest(path).meta["window_id"] for path in list_checkpoints(run_dir / "checkpoints")
    ]
    assert windows == [None, "2024-11-13-10:00", "2024-11-13-10:30"]
    for name in ("step-1", "step-2"):
        mine, other = (run / "checkpoints" / name for run in (run_dir, whole))
        weights = "adapter_model.safetensors"
        assert (mine / weights).read_bytes() == (other / weights).read_bytes()


def test_the_phases_of_a_window_are_in_the_journal(whole: Path) -> None:
    entries = Journal(whole / "journal.sqlite").entries()
    assert [(entry.number, entry.phase) for entry in entries] == [(1, "done"), (2, "done")]
    assert [entry.facts["trained"]["uid"] for entry in entries] == ["step-1", "step-2"]


def test_a_finished_run_is_not_resumed(run_continuous: Run, whole: Path) -> None:
    assert run_continuous("--resume", whole) == 1
    assert re.search(r"already finished its 2 windows", Path("log").read_text())


def test_a_service_of_the_run_asks_new_versions_about_the_market(whole: Path) -> None:
    composed = compose_service([str(whole)])
    assert [entry.source for entry in composed.config.env.train] == ["market"]
    assert composed.source == whole
    assert composed.state_dir == whole / "deployments"
