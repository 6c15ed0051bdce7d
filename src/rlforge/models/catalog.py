"""The models that ``rlforge models`` lists, and the place and shape of a configured one."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rlforge.config.catalog import first_sentence
from rlforge.config.model import ModelConfig
from rlforge.models.files import MODEL_CONFIG
from rlforge.models.load import local_copy
from rlforge.models.made import made_model
from rlforge.models.shape import ModelShape, known_shape, shape_from_config
from rlforge.types import value


@value
class ModelRow:
    """One option with the first comment of its file, and whether the model is ready."""

    option: str
    about: str
    state: str


def describe_models(folder: Path) -> list[ModelRow]:
    """One row per YAML file in ``folder``."""
    rows = []
    for path in sorted(folder.glob("*.yaml")):
        loaded = OmegaConf.load(path)
        assert isinstance(loaded, DictConfig)
        # A file may hold a whole configuration, with a key ``model``, or that group alone.
        model = loaded.get("model", loaded)
        name = model.get("name")
        if made := made_model(str(model.get("kind", "hf"))):
            state = f"ready: {made.folder}" if os.path.isdir(made.folder) else "made on first use"
        else:
            state = "fetched from the hub by transformers" if name else "needs model.name=…"
        about = first_sentence(path) or str(name)
        rows.append(ModelRow(option=path.stem, about=about, state=state))
    return rows


@value
class Located:
    """The place of a model, in words, and its shape, if that is known."""

    place: str
    shape: ModelShape | None


def locate(config: ModelConfig) -> Located:
    """Read ``config.json`` where the model would be loaded from, else look among known shapes."""
    name = config.label
    if (folder := local_copy(config)) is not None:
        shape = None
        # Errors are left to the loader, which explains a missing or damaged file.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, ArithmeticError):
            described = json.loads((folder / MODEL_CONFIG).read_text(encoding="utf-8"))
            shape = shape_from_config(name, described) if isinstance(described, dict) else None
        return Located(place=str(folder), shape=shape)
    if made_model(config.kind) is not None:
        known = known_shape("SmolLM2-135M") if config.kind == "smollm2_135m" else None
        return Located(place="made on first use", shape=known)
    return Located(place="not on this machine: fetched from the hub", shape=known_shape(name))
