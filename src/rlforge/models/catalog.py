"""What ``rlforge models`` lists: the options of config group ``model``, and what is at hand."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rlforge.models.cachedir import cache_dir
from rlforge.models.smollm2 import CACHE_NAME as SMOLLM2_CACHE_NAME
from rlforge.models.tiny.recipe import RECIPES, cache_name
from rlforge.types import value

#: Kinds that are made here, and the directory in the cache that holds the finished one.
_MADE_HERE = {
    **{kind: cache_name(kind) for kind in RECIPES},
    "smollm2_135m": SMOLLM2_CACHE_NAME,
}


@value
class ModelRow:
    """One option: its name, the first comment of its file, and where it stands here."""

    option: str
    about: str
    state: str


def describe_models(folder: Path) -> list[ModelRow]:
    """One row per YAML file in ``folder``."""
    return [_row(path) for path in sorted(folder.glob("*.yaml"))]


def _row(path: Path) -> ModelRow:
    first = path.read_text().splitlines()[0]
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig)
    kind, name = str(loaded.get("kind", "hf")), loaded.get("name")
    about = first.removeprefix("#").strip() if first.startswith("#") else str(name)
    return ModelRow(option=path.stem, about=about, state=_state(kind, name))


def _state(kind: str, name: str | None) -> str:
    if kind not in _MADE_HERE:
        return "fetched from the hub by transformers" if name else "needs model.name=…"
    made = cache_dir() / _MADE_HERE[kind]
    return f"ready: {made}" if made.is_dir() else "made on first use"
