"""Adapters of small random weights, for benchmarks that need versions and no learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from rlforge.types import PolicyRef


def randomise(model: Any) -> None:
    """Set every adapter weight of ``model`` to random values: with B = 0, A has no gradient."""
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight.data, std=0.02)


def save_adapters(model: Any, folder: Path, number: int, rank: int = 8) -> list[PolicyRef]:
    """Versions 1 to ``number`` of ``model``, saved in ``folder``; the model is as it was after."""
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", init_lora_weights=False
    )
    made = get_peft_model(model, config)
    refs = []
    for version in range(1, number + 1):
        randomise(made)
        path = folder / f"step-{version}"
        made.save_pretrained(path)
        refs.append(
            PolicyRef(uid=path.name, kind="checkpoint", path_or_name=str(path), version=version)
        )
    made.unload()
    return refs
