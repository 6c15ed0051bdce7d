"""The shape of a configured model, found without loading it and without a network."""

from __future__ import annotations

import json
from pathlib import Path

from rlforge.config.schema import ModelConfig
from rlforge.models.cachedir import cache_dir
from rlforge.models.files import MODEL_CONFIG
from rlforge.models.shape import ModelShape, known_shape, shape_from_config
from rlforge.models.smollm2 import CACHE_NAME as SMOLLM2_CACHE_NAME
from rlforge.models.tiny.recipe import RECIPES, cache_name
from rlforge.types import value


@value
class Located:
    """Where a model is, in words, and its shape; None where it cannot be known here."""

    place: str
    shape: ModelShape | None


def locate(config: ModelConfig) -> Located:
    """Look for ``config.json`` where the model would be loaded from, else among known shapes."""
    if config.kind in RECIPES or config.kind == "smollm2_135m":
        name = cache_name(config.kind) if config.kind in RECIPES else SMOLLM2_CACHE_NAME
        folder = cache_dir() / name
        if (folder / MODEL_CONFIG).is_file():
            return Located(place=str(folder), shape=_read(config.kind, folder / MODEL_CONFIG))
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
        config = json.loads(file.read_text())
        return shape_from_config(name, config) if isinstance(config, dict) else None
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError):
        return None  # the loader says what is wrong with it


def _hub_copy(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, MODEL_CONFIG)
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None
