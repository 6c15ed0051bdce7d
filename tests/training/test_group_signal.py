"""A signal to a whole process group, as ``timeout`` and batch systems send it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.harness.in_process import rlforge_here, use_actors_in_process
from tests.harness.live_run import RLFORGE, change_config, rows, train_arguments, wait_for

pytestmark = pytest.mark.timeout(600)  # several processes import torch, on a machine with others


def test_sigterm_to_the_group_of_a_run_interrupts_it_in_order(
    small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = ("learner.total_updates=400", "hardware=cpu")
    process = subprocess.Popen(
        [*RLFORGE, *train_arguments(small_model, *endless)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        process_group=0,
    )
    wait_for(lambda: rows("metrics.jsonl") != [], process)
    os.killpg(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)

    assert process.returncode == 130, stderr
    assert "died" not in stderr
    assert json.loads(Path("run/summary.json").read_text())["status"] == "interrupted"
    updates = rows("metrics.jsonl")[-1]["step"]
    change_config("total_updates", 400, updates + 2)
    use_actors_in_process(monkeypatch.setattr)
    assert rlforge_here("train", "--resume", "run") == 0
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, updates + 3))
    # Also after the resume, where earlier versions come from the checkpoints.
    assert all(row["logprob_gap_mean"] <= 1e-4 for row in metrics), metrics
