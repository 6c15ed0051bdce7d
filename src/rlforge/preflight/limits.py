"""Limits that keep other values of a configuration from being reached, as notes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from operator import attrgetter

from rlforge.config.compose import Composed
from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError
from rlforge.kinds import kind_of
from rlforge.models.load import local_copy, model_positions
from rlforge.rollout.lineup import other_models


def limit_notes(composed: Composed[PolicyConfig]) -> Iterator[str]:
    """Values that cannot be reached, each with the key that is in the way, and what that does."""
    config, said = composed.config, composed.said
    if not kind_of(config).generates:
        return

    # Nothing is said where all values involved are defaults, because the user chose none.
    def chosen(*keys: str) -> bool:
        return any(composed.origin(key) != composed.rest for key in keys)

    shared = "is never reached: prompt and answer share"
    engine, learner, algorithm = config.engine, config.learner, config.algorithm
    context, reason = engine.max_model_len, said("engine.max_model_len")
    if local_copy(config.model) is not None:
        # The checks of the model report this error.
        with contextlib.suppress(ConfigError):
            context = min(context, model_positions(config.model))
    if context < engine.max_model_len:
        reason = f"the {context:,} positions of {config.model.label}"
        if chosen("engine.max_model_len"):
            yield f"{said('engine.max_model_len')} {shared} {reason}"
    if engine.max_tokens >= context and chosen("engine.max_tokens", "engine.max_model_len"):
        yield (
            f"{said('engine.max_tokens')} {shared} {reason}, so "
            f"that a prompt of n tokens leaves {context} - n for the answer"
        )
    trained = learner.max_train_len or context
    if trained < context and trained <= engine.max_tokens:
        yield (
            f"{said('learner.max_train_len')} is shared by prompt and answer, so that after a "
            f"prompt of n tokens {trained} - n of the answer are learned from, and not "
            f"{said('engine.max_tokens')}"
        )
    yield from kind_of(config).notes(composed)
    own = algorithm.max_generation_len is not None
    key = "algorithm.max_generation_len" if own else "engine.max_tokens"
    divisor = attrgetter(key)(config)
    longest = min(engine.max_tokens, context - 1, trained - 1)
    if algorithm.loss_aggregation == "constant" and divisor > longest:
        yield (
            f"algorithm.loss_aggregation=constant divides by {said(key)}, and no answer that is "
            f"learned from has more than {longest:,} tokens: steps are smaller by that"
        )
    if other_models(config):
        other, key = config.other_hf, f"{config.others}.hf"
        if other.max_tokens >= other.max_model_len:
            yield f"{said(f'{key}.max_tokens')} {shared} {said(f'{key}.max_model_len')}"
