import numpy as np
import pytest

from rlforge.continuous.ruler.memory import LearnedWindow, WindowMemory
from rlforge.errors import CheckpointError


def _memory(windows=3, rows=100):
    return WindowMemory(("a", "b"), windows=windows, rows=rows, seed=0)


def _window(name, n, offset=0.0):
    rewards = np.arange(n, dtype=np.float64) + offset
    features = np.stack([rewards * 10, -rewards], axis=1)
    return LearnedWindow(id=name, features=features, rewards=rewards)


def test_a_saved_memory_is_read_back(tmp_path):
    memory, again, path = _memory(), _memory(), tmp_path / "deep" / "state.npz"
    memory.save(path)
    again.load(path)
    assert again.windows == ()
    memory.add(_window("w1", 3))
    memory.add(_window("w0", 2, offset=7.0))
    memory.save(path)
    again.load(path)
    assert [window.id for window in again.windows] == ["w0", "w1"]
    for found, kept in zip(again.windows, memory.windows, strict=True):
        np.testing.assert_array_equal(found.features, kept.features)
        np.testing.assert_array_equal(found.rewards, kept.rewards)
    assert list(path.parent.iterdir()) == [path]


def test_a_window_is_remembered_once_and_the_oldest_is_forgotten():
    memory = _memory()
    assert memory.add(_window("w", 2))
    assert not memory.add(_window("w", 5))
    assert not memory.add(_window("empty", 0))
    assert len(memory.windows) == 1
    memory = _memory(windows=2)
    for name in ("w2", "w1", "w3"):
        memory.add(_window(name, 2))
    assert [window.id for window in memory.windows] == ["w2", "w3"]


def test_a_seeded_sample_of_a_large_window_is_kept():
    draws = []
    for _ in range(2):
        memory = _memory(rows=10)
        memory.add(_window("w", 1000))
        (window,) = memory.windows
        assert len(set(window.rewards)) == 10
        np.testing.assert_array_equal(window.features[:, 0], window.rewards * 10)
        draws.append(window.rewards)
    np.testing.assert_array_equal(*draws)


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "state.npz"
    _memory().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    with pytest.raises(CheckpointError, match=r"state\.npz is not a readable state.*remove it"):
        _memory().load(path)
