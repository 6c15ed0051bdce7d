"""Batches of samples in, better weights out.

``learner.py`` makes an update of a batch, which ``batching.py`` cuts, ``packing.py`` lays out and
``attention.py`` computes; ``scorer.py`` finds log-probs by ways that ``trial.py`` compares with the
plain model; ``policy.py`` holds the model in training. Several processes make one update together:
``ranks.py`` is their communication, ``partition.py`` divides the rows and ``sharding.py`` a model
among them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rlforge.algorithms import make_algorithm
from rlforge.config.per_policy import entries, of_policy, policy_names
from rlforge.config.schema import PolicyConfig
from rlforge.errors import CheckpointError
from rlforge.learner.learner import Learner
from rlforge.learner.policy import PolicySpec
from rlforge.learner.ranks import Ranks
from rlforge.models.devices import resolve_dtype
from rlforge.models.load import load_base_model, load_tokenizer, load_value_head
from rlforge.system.limits import kept_versions

__all__ = [
    "Learner",
    "Learners",
    "PolicySpec",
    "make_learner",
    "make_learners",
    "read_state",
    "write_state",
]

STATE_FOLDER = "state"
"""Folder of a checkpoint with the files that only a resumed run needs."""
STATE_LAYOUT = 1
"""Number of these files' layout; a change of it raises the number."""


class Learners:
    """Learners of a run's policies, which take turns in one model. Every rank has the same.

    A run with one policy has one learner, without a name.
    """

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        """Take learners by the names of their policies; all but the last have stepped aside."""
        self._all = dict(learners)
        self._inside = next(reversed(self._all))

    def turn(self, name: str = "") -> Learner:
        """Learner of a policy, with its weights in the model until another's turn."""
        if name != self._inside:
            self._all[self._inside].step_aside()
            self._all[name].step_in()
            self._inside = name
        return self._all[name]

    def other(self, name: str) -> Learner:
        """Learner of a policy, with its weights in the model or aside."""
        return self._all[name]

    def each(self) -> Iterator[Learner]:
        """All learners, one after the other at its turn."""
        return (self.turn(name) for name in self._all)

    def rest(self, *, offload: bool) -> None:
        """See ``Learner.rest``."""
        for learner in self._all.values():
            learner.rest(offload=offload)

    def wake(self) -> None:
        """See ``Learner.wake``."""
        for learner in self._all.values():
            learner.wake()


def make_learners(
    config: PolicyConfig, device: torch.device, ranks: Ranks, here: Callable[[str], str] = str
) -> Learners:
    """Learners of all policies of ``config``; raises as ``make_learner``."""
    if not entries(config):
        return Learners({"": make_learner(config, device, ranks, here)})
    made: dict[str, Learner] = {}
    for name in policy_names(config):
        beside = next(reversed(made.values())) if made else None
        if beside is not None:
            beside.step_aside()
        made[name] = make_learner(of_policy(config, name), device, ranks, here, name, beside)
    return Learners(made)


def make_learner(
    config: PolicyConfig,
    device: torch.device,
    ranks: Ranks,
    here: Callable[[str], str] = str,
    name: str = "",
    beside: Learner | None = None,
) -> Learner:
    """Learner that ``config`` describes on ``device``, one of ``ranks``.

    Raises ConfigError or CheckpointError when the model, its layers or the adapter do not fit.

    Args:
        here: Finds the place on this node of ``learner.initial_adapter``.
        beside: Learner of another policy, which shares its model and has stepped aside.
    """
    dtype = resolve_dtype(config.model.dtype, device)
    # A model to be sharded may be too large for one device: it moves there layer by layer.
    first = torch.device("cpu") if config.learner.shard_weights else device
    algorithm = make_algorithm(config.algorithm, config.engine.max_tokens)
    start = config.learner.initial_adapter
    spec = PolicySpec(
        model=load_base_model(config.model, first, dtype) if beside is None else beside.model,
        lora=config.model.lora,
        temperature=config.engine.temperature,
        pad_token_id=load_tokenizer(config.model).pad_token_id,
        seed=config.seed,
        initial_value_head=load_value_head(config.model) if algorithm.needs_values else None,
        start=None if start is None else Path(here(start)),
    )
    return Learner(
        spec,
        config.learner,
        algorithm,
        device=device,
        total_updates=config.total_updates,
        ranks=ranks,
        value_learning_rate=getattr(config.algorithm, "value_learning_rate", None),
        kept_versions=kept_versions(config),
        name=name,
        beside=beside,
    )


def write_state(folder: Path, learners: Learners, others: Mapping[str, Any]) -> None:
    """Write the learners' states and ``others``, JSON values of other actors, into ``folder``.

    Rank 0 calls it; the other ranks call ``save_state(None)`` of each.
    """
    state = folder / STATE_FOLDER
    state.mkdir()
    for learner in learners.each():
        learner.save_state(state)
    content = {"layout": STATE_LAYOUT, **others}
    (state / "run.json").write_text(json.dumps(content), encoding="utf-8")


def read_state(folder: Path, learners: Learners) -> dict[str, Any]:
    """Load the learners' states from ``folder``; returns the state of the other actors.

    Raises CheckpointError for a state that is absent or of another layout.
    """
    state = folder / STATE_FOLDER
    try:
        loaded: dict[str, Any] = json.loads((state / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{state} holds no run.json to resume from") from None
    if (layout := loaded.pop("layout", 0)) != STATE_LAYOUT:
        raise CheckpointError(
            f"{state}: the saved state has layout {layout} and this rlforge goes on from layout "
            f"{STATE_LAYOUT} alone; begin a new run, from its adapter with learner.initial_adapter"
        )
    for learner in learners.each():
        learner.load_state(state)
    return loaded
