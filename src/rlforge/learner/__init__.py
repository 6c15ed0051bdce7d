"""The learner: batches of steps in, better weights out.

``learner.py`` is the loop of one update; ``batching.py`` cuts a batch into micro-batches,
``packing.py`` lays their rows out without padding, ``attention.py`` computes such rows,
``scorer.py`` computes log-probabilities, ``optim.py`` holds optimizer and schedule, ``layers.py``
trades computation for memory, ``weights.py`` saves and loads trained weights, ``policy.py`` holds
the model in training and its reference, ``inputs.py`` what its loss reads, ``gap.py`` compares its
log-probs with the engine's, and ``update_metrics.py`` computes what an update reports.
Several processes make one update together: ``ranks.py`` is their communication, ``partition.py``
decides which rank computes which rows, ``sharding.py`` divides a model among them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlforge.algorithms import make_algorithm
from rlforge.config.schema import A2cConfig, PolicyConfig
from rlforge.learner.learner import Learner
from rlforge.learner.optim import learning_rate_factor
from rlforge.learner.policy import PolicySpec
from rlforge.learner.ranks import Ranks
from rlforge.models.devices import resolve_dtype
from rlforge.models.load import load_base_model, load_tokenizer, load_value_head
from rlforge.system.limits import kept_versions

__all__ = [
    "Learner",
    "PolicySpec",
    "learning_rate_factor",
    "make_learner",
    "read_state",
    "write_state",
]

STATE_FOLDER = "state"
"""Folder of a checkpoint with the files that only a resumed run needs."""


def make_learner(config: PolicyConfig, device: torch.device, ranks: Ranks) -> Learner:
    """The learner that ``config`` describes on ``device``, one of ``ranks``.

    Raises ConfigError or CheckpointError when the model, its layers or the adapter do not fit.
    """
    dtype = resolve_dtype(config.model.dtype, device)
    # A model to be sharded may be too large for one device: it moves there layer by layer.
    first = torch.device("cpu") if config.learner.shard_weights else device
    algorithm = make_algorithm(config.algorithm, config.engine.max_tokens)
    critic = config.algorithm if isinstance(config.algorithm, A2cConfig) else None
    spec = PolicySpec(
        model=load_base_model(config.model, first, dtype),
        lora=config.model.lora,
        temperature=config.engine.temperature,
        pad_token_id=load_tokenizer(config.model).pad_token_id,
        seed=config.seed,
        initial_value_head=load_value_head(config.model) if critic else None,
    )
    return Learner(
        spec,
        config.learner,
        algorithm,
        device=device,
        total_updates=config.total_updates,
        ranks=ranks,
        value_learning_rate=critic.value_learning_rate if critic else None,
        kept_versions=kept_versions(config),
    )


def write_state(folder: Path, learner: Learner, others: Mapping[str, Any]) -> None:
    """Write the learner's state and ``others`` (JSON values of the other actors) into ``folder``.

    On rank 0; the other ranks call ``learner.save_state(None)``.
    """
    state = folder / STATE_FOLDER
    state.mkdir()
    learner.save_state(state)
    (state / "run.json").write_text(json.dumps(others), encoding="utf-8")


def read_state(folder: Path, learner: Learner) -> dict[str, Any]:
    """Load the learner's state from ``folder``; returns what the other actors saved."""
    state = folder / STATE_FOLDER
    learner.load_state(state)
    loaded: dict[str, Any] = json.loads((state / "run.json").read_text(encoding="utf-8"))
    return loaded
