"""Adapters in a vLLM engine: new numbers, a bounded table, least recently used replaced first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig
from safetensors.torch import save_file

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
    path.mkdir(exist_ok=True)
    LoraConfig(r=4, target_modules=["q_proj"]).save_pretrained(path)
    save_file({"a.lora_A.weight": torch.zeros(4, 8)}, path / "adapter_model.safetensors")
    return path


@pytest.fixture
def key(tmp_path):
    def make(uid: str, folder: str = "adapter") -> PolicyKey:
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


def test_a_version_loaded_again_gets_a_new_number(key):
    backend = Backend(1)
    for uid in ("a", "b", "a"):
        assert backend.table.load(key(uid), busy=())
    assert [adapter.name for adapter in backend.ever] == ["a#1", "b#2", "a#3"]
    assert list(backend.held) == [3]


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


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (None, "is missing"),
        ("notes.txt", "neither adapter_config"),
        ("config.json", "full weights"),
    ],
)
def test_a_directory_without_an_adapter_is_refused_and_replaces_nothing(
    key, tmp_path, file, message
):
    backend = Backend(1)
    held = key("a")
    backend.table.load(held, busy=())
    folder = tmp_path / "wrong"
    if file is not None:
        folder.mkdir()
        (folder / file).touch()
    with pytest.raises(EngineError, match=message) as caught:
        backend.table.load(PolicyKey("x", str(folder)), busy=())
    assert str(folder) in str(caught.value)
    assert backend.table.resident == (held,)


def test_an_adapter_that_the_engine_refuses_is_not_resident(key):
    backend = Backend(1)
    broken = key("x", "broken")
    with pytest.raises(EngineError, match="broken"):
        backend.table.load(broken, busy=())
    assert not backend.table.is_resident(broken)
    assert backend.table.load(key("a"), busy=())


@pytest.mark.parametrize(
    ("file", "size"),
    [
        ("adapter_config.json", 10),
        ("adapter_model.safetensors", 100),
        ("adapter_model.safetensors", 0),
    ],
)
def test_a_truncated_adapter_is_refused_and_replaces_nothing(key, file, size):
    backend = Backend(1)
    held, torn = key("a"), key("x", "torn")
    backend.table.load(held, busy=())
    whole = Path(torn.path or "", file).read_bytes()
    Path(torn.path or "", file).write_bytes(whole[:size])
    with pytest.raises(EngineError, match=rf"policy 'x' cannot be loaded: .*{file} .*complete"):
        backend.table.load(torn, busy=())
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
