"""benchmarks/logits.py measures two ways to the same gradient."""

from __future__ import annotations

import json
import subprocess
import sys

import torch


def test_the_learner_takes_a_fraction_of_full_logits_for_the_same_gradient(on_path, tmp_path):
    taken, gradients = {}, {}
    for way in ("rlforge", "full_logits"):
        file = tmp_path / f"{way}.pt"
        sizes = ["--tokens", "1024", "--vocabulary", "100000"]
        command = [sys.executable, str(on_path / "logits.py"), *sizes, "--measure", way, str(file)]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        taken[way] = json.loads(run.stdout.splitlines()[-1])
        gradients[way] = torch.load(file, weights_only=True)

    assert taken["full_logits"] > 2 * 1024 * 100_000 * 4
    assert taken["rlforge"] < taken["full_logits"] / 2
    torch.testing.assert_close(gradients["rlforge"], gradients["full_logits"], rtol=1e-3, atol=1e-7)
