"""Files of a run and of its export have the mode that the umask gives, whoever writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.live_run import start, train_arguments
from tests.harness.permissions import modes

#: A critic, states, whole and averaged weights beside adapters, a picture on the model card.
EVERY_FILE = ("learner=tiny_ppo", "learner.state_every=1", "learner.total_updates=2")


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0o002, 0o022])
def test_every_file_of_a_run_and_its_export_has_the_mode_of_the_umask(
    small_model: Path, mask: int
) -> None:
    for arguments in (
        train_arguments(small_model, *EVERY_FILE),
        ["export", "run", "exported", "--merge"],
        ["export", "run", "adapter"],
    ):
        process = start(*arguments, umask=mask)
        _, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
    found = modes(Path("run"), Path("exported"), Path("adapter"))
    weights = [name for name in found if name.endswith((".safetensors", ".pt"))]
    assert len(weights) >= 5
    assert {name: oct(mode) for name, mode in found.items() if mode != 0o666 & ~mask} == {}
