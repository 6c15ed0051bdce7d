"""The models that ``rlforge models`` lists, and where a configured model is, with its shape.

No model is loaded and no network is used.
"""

from __future__ import annotations

import json
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rlforge.config.catalog import first_sentence
from rlforge.config.schema import ModelConfig
from rlforge.models.files import MODEL_CONFIG
from rlforge.models.made import made_model
from rlforge.models.shape import ModelShape, known_shape, shape_from_config
from rlforge.types import value


@value
class ModelRow:
    """One option: its name, the first comment of its file, and whether the model is ready."""

    option: str
    about: str
    state: str


def describe_models(folder: Path) -> list[ModelRow]:
    """One row per YAML file in ``folder``."""
    return [_row(path) for path in sorted(folder.glob("*.yaml"))]


def _row(path: Path) -> ModelRow:
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig)
    kind, name = str(loaded.get("kind", "hf")), loaded.get("name")
    about = first_sentence(path) or str(name)
    return ModelRow(option=path.stem, about=about, state=_state(kind, name))


def _state(kind: str, name: str | None) -> str:
    made = made_model(kind)
    if made is None:
        return "fetched from the hub by transformers" if name else "needs model.name=…"
    return f"ready: {made.folder}" if made.folder.is_dir() else "made on first use"


@value
class Located:
    """Where a model is, in words, and its shape; None if it is unknown."""

    place: str
    shape: ModelShape | None


def locate(config: ModelConfig) -> Located:
    """Look for ``config.json`` where the model would be loaded from, else among known shapes."""
    made = made_model(config.kind)
    if made is not None:
        if (made.folder / MODEL_CONFIG).is_file():
            file = made.folder / MODEL_CONFIG
            return Located(place=str(made.folder), shape=_read(config.kind, file))
        known = known_shape("SmolLM2-135M") if config.kind == "smollm2_135m" else None
        return Located(place="made on first use", shape=known)
    source = config.name or ""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return Located(place=str(folder), shape=_read(source, folder / MODEL_CONFIG))
    cached = _hub_copy(source)
    if cached is not None:
        return Located(place=str(cached.parent), shape=_read(source, cached))
    return Located(place="not on this machine: fetched from the hub", shape=known_shape(source))


def _read(name: str, file: Path) -> ModelShape | None:
    """None for a file that is not there, is damaged or describes another architecture."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        return shape_from_config(name, config) if isinstance(config, dict) else None
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError):
        return None  # the loader raises the error that explains it


def _hub_copy(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, MODEL_CONFIG)
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None
