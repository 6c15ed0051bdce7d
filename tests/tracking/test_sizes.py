"""What a run takes on disk."""

import pytest

from rlforge.errors import RlforgeError
from rlforge.tracking.sizes import run_size


def test_parts_are_measured_with_the_keys_that_limit_them(tmp_path):
    (tmp_path / "config.yaml").write_text("x" * 10)
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-1" / "weights").write_bytes(bytes(3000))
    (tmp_path / "checkpoints" / "step-1" / "config").write_bytes(bytes(2))
    (tmp_path / "checkpoints" / "latest").symlink_to("step-1")
    (tmp_path / "store").mkdir()
    found = run_size(tmp_path)
    assert [(part.name, part.size, part.files) for part in found.parts] == [
        ("checkpoints", 3002, 2),
        ("config.yaml", 10, 1),
        ("store", 0, 0),
    ]
    assert found.parts[0].limits == ("learner.keep_checkpoints",)
    assert found.size == 3012
    assert found.free > 0


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(RlforgeError, match="no run directory"):
        run_size(tmp_path / "none")
