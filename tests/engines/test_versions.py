"""Adapters in a vLLM engine: new numbers, a bounded table, least recently used replaced first."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.engines.versions import Adapter, AdapterTable, PolicyKey
from rlforge.errors import EngineError

BASE = PolicyKey("", None)


class Backend:
    """A stand-in for vLLM that records the adapters it holds."""

    def __init__(self, capacity: int) -> None:
        self.held: dict[int, Adapter] = {}
        self.broken: tuple[str, ...] = ("broken",)
        self.most = 0
        self.ever: list[Adapter] = []
        self.table = AdapterTable(capacity, add=self._add, remove=self._remove)

    def _add(self, adapter: Adapter) -> None:
        if Path(adapter.path).name in self.broken:
            raise EngineError("broken")
        self.held[adapter.number] = adapter
        self.ever.append(adapter)
        self.most = max(self.most, len(self.held))

    def _remove(self, adapter: Adapter) -> None:
        del self.held[adapter.number]


def _adapter(path: Path) -> Path:
    """Complete files of an adapter."""
    import torch
    from peft import LoraConfig
    from safetensors.torch import save_file

    path.mkdir(exist_ok=True)
    LoraConfig(r=4, target_modules=["q_proj"]).save_pretrained(path)
    save_file({"a.lora_A.weight": torch.zeros(4, 8)}, path / "adapter_model.safetensors")
    return path


@pytest.fixture
def key(tmp_path):
    def make(uid, folder="adapter"):
        return PolicyKey(uid, str(_adapter(tmp_path / folder)))

    return make


def test_the_same_uid_with_another_path_is_another_adapter(key):
    backend = Backend(3)
    for asked in (key("a"), key("a", "other"), key("b")):
        assert backend.table.load(asked, busy=())
        adapter = backend.table.use(asked)
        assert adapter is not None
        assert adapter.path == asked.path
    assert len({adapter.number for adapter in backend.ever}) == 3
    assert len({adapter.name for adapter in backend.ever}) == 3


def test_the_least_recently_used_idle_version_is_replaced(key):
    backend = Backend(2)
    a, b, c = key("a"), key("b"), key("c")
    for asked in (a, b):
        backend.table.load(asked, busy=())
    backend.table.use(a)
    assert backend.table.load(c, busy={a})
    assert backend.table.resident == (a, c)
    assert not backend.table.load(b, busy={a, c})
    assert backend.table.resident == (a, c)


def test_the_base_model_does_not_count_towards_the_capacity():
    backend = Backend(1)
    assert backend.table.load(BASE, busy=())
    assert backend.table.is_resident(BASE)
    assert backend.table.use(BASE) is None
    assert backend.ever == []


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def _leave(folder: Path, name: str) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / name).touch()


def _cut(folder: Path, name: str, size: int) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:size])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "is missing"),
        (lambda folder: _leave(folder, "notes.txt"), "neither adapter_config"),
        (lambda folder: _leave(folder, "config.json"), "full weights"),
        (lambda folder: _cut(folder, CONFIG, 10), rf"cannot be loaded: .*{CONFIG} .*complete"),
        (lambda folder: _cut(folder, WEIGHTS, 100), rf"cannot be loaded: .*{WEIGHTS} .*complete"),
        (lambda folder: _cut(folder, WEIGHTS, 0), rf"cannot be loaded: .*{WEIGHTS} .*complete"),
    ],
)
def test_a_directory_without_a_whole_adapter_is_refused_and_replaces_nothing(key, damage, message):
    backend = Backend(1)
    held, wrong = key("a"), key("x", "wrong")
    backend.table.load(held, busy=())
    damage(Path(wrong.path))
    with pytest.raises(EngineError, match=message) as caught:
        backend.table.load(wrong, busy=())
    assert wrong.path in str(caught.value)
    assert backend.table.resident == (held,)
    assert [adapter.name for adapter in backend.ever] == ["a#1"]


def test_an_adapter_unloaded_in_vain_is_loaded_again(key):
    backend = Backend(3)
    a, b, c = key("a"), key("b"), key("c")
    for asked in (a, b, c):
        backend.table.load(asked, busy=())
    with pytest.raises(EngineError, match="broken"):
        backend.table.load(key("x", "broken"), busy={a})
    assert backend.table.resident == (a, b, c)
    assert sorted(adapter.name for adapter in backend.held.values()) == ["a#1", "b#5", "c#3"]
    adapter = backend.table.use(b)
    assert adapter is not None
    assert backend.held[adapter.number] == adapter


def test_an_adapter_that_cannot_be_loaded_again_is_not_resident(key):
    backend = Backend(1)
    lost = key("a", "lost")
    backend.table.load(lost, busy=())
    backend.broken = ("broken", "lost")
    with pytest.raises(EngineError, match="broken"):
        backend.table.load(key("x", "broken"), busy=())
    assert backend.table.resident == ()
    assert backend.held == {}
    assert backend.table.load(key("b"), busy=())


@given(asked=st.lists(st.integers(0, 6), max_size=60), capacity=st.integers(1, 4))
def test_capacity_is_kept_and_numbers_are_never_reused(asked, capacity, tmp_path_factory):
    folder = _adapter(tmp_path_factory.getbasetemp() / "table")
    backend = Backend(capacity)
    for index in asked:
        key = PolicyKey(f"v{index}", str(folder))
        assert backend.table.load(key, busy=())
        adapter = backend.table.use(key)
        assert adapter is not None
        assert backend.held[adapter.number].name.startswith(f"v{index}#")
        assert len(backend.held) == len(backend.table.resident)
    assert backend.most <= capacity
    numbers = [adapter.number for adapter in backend.ever]
    assert len(set(numbers)) == len(numbers)
