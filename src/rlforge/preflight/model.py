"""Checks of the model, its adapters and opponents, by an empty model and by headers of files.

Only ``weight_problems`` reads weights.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from rlforge.config.compose import Composed
from rlforge.config.model import ModelConfig
from rlforge.config.schema import PolicyConfig
from rlforge.engines.registry import check_playable
from rlforge.engines.vllm_settings import check_heads
from rlforge.errors import CheckpointError, ConfigError, collected, nearest, refusals
from rlforge.kinds import kind_of
from rlforge.models.catalog import locate
from rlforge.models.files import ADAPTER_CONFIG, MODEL_CONFIG
from rlforge.models.finite import check_finite
from rlforge.models.fit import NO_ADAPTER, check_initial_adapter, start_of
from rlforge.models.load import (
    check_source,
    lacking_weights,
    listed_ends,
    load_tokenizer,
    local_copy,
    prompt_room,
    resolve_model,
    stop_token_ids,
    unfetched,
)
from rlforge.models.made import made_model
from rlforge.models.shape import unknown_targets
from rlforge.preflight.games import check_history, check_room
from rlforge.rollout.lineup import as_played_by, other_models
from rlforge.rollout.policies import with_own_form
from rlforge.system.checkpoint import step_name
from rlforge.system.hardware import detect
from rlforge.types import PolicyRef

C = TypeVar("C", bound=PolicyConfig)


def check_start(composed: Composed[PolicyConfig]) -> None:
    """Raise ConfigError where ``learner.initial_adapter`` names neither a run nor an adapter."""
    try:
        start = start_of(composed.config)
    except CheckpointError as error:
        raise composed.error("learner.initial_adapter", str(error)) from None
    if start is not None and not (start / ADAPTER_CONFIG).is_file():
        raise composed.error("learner.initial_adapter", NO_ADAPTER)


def shape_problems(config: PolicyConfig) -> Iterator[str]:
    """Layers and heads that do not suit ``config``, where the shape of the model is known."""
    shape, lora = locate(config.model).shape, config.model.lora
    if shape is None:
        return
    if config.learner.train == "lora":
        if lora.last_layers is not None and lora.last_layers > shape.layers:
            yield (
                f"model.lora.last_layers={lora.last_layers}: {shape.name} has {shape.layers} layers"
            )
        if (unknown := unknown_targets(shape.name, shape.layer_names, lora)) is not None:
            yield unknown
    yield from _of_heads(config, [shape.head_dim], latent=False)


def model_problems(config: PolicyConfig, *, fetch: bool = True) -> Iterator[str]:
    """Why the model cannot be trained as ``config`` says, or other models (``hf:``) cannot play.

    fetch: False leaves out what only files that are not on this machine say of other models.
    """
    if made_model(config.model.kind) is not None:
        # Before a model is made, only its shape is known.
        yield from shape_problems(config)
    else:
        yield from _of_empty_model(config)
    if config.model.chat_template_args and local_copy(config.model) is not None:
        yield from _of_template(config.model)
    yield from other_problems(config, fetch=fetch)


def other_problems(config: PolicyConfig, *, fetch: bool = True) -> Iterator[str]:
    """Why other models (``hf:``) of ``config`` cannot play. fetch: see ``model_problems``."""
    for key, own in _other_models(config):
        yield from (f"{key}: {problem}" for problem in other_model_problems(own, fetch=fetch))


def _other_models(config: PolicyConfig) -> Iterator[tuple[str, PolicyConfig]]:
    """Yield the other models that a run meets, each as it plays, with the key that names it."""
    try:
        named = other_models(config)
    except ConfigError:
        # The checks of the games report wrong names.
        return
    keys = {policy.uid: key for policy, key in named.items()}
    yield from ((keys[uid], own) for uid, own in as_played_by(config, named).items())


def other_model_problems(own: PolicyConfig, *, fetch: bool = True) -> Iterator[str]:
    """Why another model (``hf:``) cannot play, as far as its weights do not say.

    own: from ``as_played_by``. fetch: see ``model_problems``.
    """
    name, found = own.model.label, list[str]()
    if (Path(name) / ADAPTER_CONFIG).is_file() and not (Path(name) / MODEL_CONFIG).is_file():
        found = [f"it is an adapter; one of the trained model is checkpoint:{name}"]
    else:
        check = check_source if fetch else resolve_model
        found = [str(error) for error in refusals(lambda: check(own.model))]
        known = not found and (fetch or local_copy(own.model) is not None)
        found += [*_of_empty_model(own), *_of_template(own.model)] if known else []
        if known and not found:
            formed, _ = with_own_form(own)
            found += collected(_prompt_problems(formed))
    yield from (_as_other(own, line) for text in found for line in text.splitlines())


def _prompt_problems(config: PolicyConfig) -> Iterator[ConfigError]:
    if (games := config.games) is None:
        return refusals(lambda: prompt_room(config), lambda: kind_of(config).check_prompts(config))
    return refusals(lambda: check_room(games), lambda: check_history(games))


def other_weight_problems(own: PolicyConfig) -> Iterator[str]:
    """Yield ``weight_problems`` of another model (``hf:``). own: from ``as_played_by``."""
    folder = local_copy(own.model)
    if folder is not None and not unfetched(own.model):
        for problem in _of_weights({folder: own.model.place}):
            yield _as_other(own, problem)


def _as_other(own: PolicyConfig, problem: str) -> str:
    """A problem of a model in terms of ``hf:NAME`` and of the keys of its settings."""
    name, settings = own.model.label, own.other_hf
    keys = "|".join(field.name for field in dataclasses.fields(settings))
    text = re.sub(rf"\b(?:model|engine)\.({keys})\b", rf"{own.others}.hf.\1", problem)
    text = text.replace("check model.name", "check the folder or the id")
    text = text.removeprefix(f"model.name={name}").removeprefix(f"model.name {name}")
    return f"hf:{name}{text if text[:1] in (':', ' ') else f': {text}'}"


def _of_template(model: ModelConfig) -> Iterator[str]:
    try:
        template = str(load_tokenizer(model).chat_template or "")
    except ConfigError:
        # The checks of the model report this error.
        return
    words = set(re.findall(r"\w+", template))
    for name in sorted(set(model.chat_template_args) - words):
        reason = "does not read it" if template else "is missing"
        yield (
            f"model.chat_template_args.{name}: the chat template of {model.label} {reason}"
            f"{nearest(name, words) or '; leave it out'}"
        )


def _of_empty_model(config: PolicyConfig) -> Iterator[str]:
    from rlforge.models.empty import embedded_tokens, empty_model, head_sizes, tokens_without_row
    from rlforge.models.kind import check_trainable
    from rlforge.models.targets import adapted_layers, numbers_of_layers

    try:
        model = empty_model(config.model)
        tokenizer = load_tokenizer(config.model)
        stop_token_ids(config.model, tokenizer)
    except ConfigError as error:
        yield str(error)
        return
    if kinds := [*refusals(lambda: check_trainable(model))]:
        yield f"{config.model.place}: {kinds[0]}"
        return
    rows = embedded_tokens(model)
    if missing := tokens_without_row(tokenizer, rows):
        yield (
            f"{config.model.place}: {len(missing):,} tokens of the tokenizer have no row in "
            f"the model, which knows tokens 0 to {rows - 1:,}; give it the tokenizer that it was "
            "trained with"
        )
    lora = config.model.lora
    if config.learner.train == "lora":
        checks = (partial(check, model, lora) for check in (adapted_layers, numbers_of_layers))
        yield from map(str, refusals(*checks))
    if config.batch_invariant and config.engine.name != "vllm":
        from rlforge.engines.invariant import make_invariant

        yield from map(str, refusals(lambda: make_invariant(model)))
    sizes, latent = head_sizes(model)
    yield from _of_heads(config, sizes, latent=latent)


def _of_heads(config: PolicyConfig, sizes: list[int], *, latent: bool) -> Iterator[str]:
    device = config.hardware.device
    on_cpu = device == "cpu" or (
        device == "auto" and not (config.hardware.num_gpus or detect().gpus)
    )
    if config.engine.name == "vllm" and on_cpu:
        yield from map(str, refusals(lambda: check_heads(config.model.label, sizes, latent=latent)))


def saved_policies(config: PolicyConfig) -> dict[str, tuple[PolicyRef, ...]]:
    """The saved policies that a run begins with or meets, by key."""
    start = config.learner.initial_adapter
    version = PolicyRef(uid=step_name(0), kind="checkpoint", path_or_name=start)
    named: dict[str, tuple[PolicyRef, ...]] = {"learner.initial_adapter": (version,)}
    named |= {key: tuple(met) for key, met in kind_of(config).opponents(config).items()}
    return {
        key: tuple(one for one in policies if one.kind == "checkpoint" and one.path_or_name)
        for key, policies in named.items()
    }


def saved_problems(config: PolicyConfig) -> Iterator[str]:
    start = config.learner.initial_adapter
    if start is not None:
        try:
            check_initial_adapter(Path(start), config.model, resolve_model(config.model))
        except ConfigError as error:
            yield str(error)
            return
    for key, policies in saved_policies(config).items():
        unfit = refusals(partial(check_playable, policies, config))
        yield from (f"{key}: {problem}" for problem in unfit)


def weight_problems(config: PolicyConfig) -> Iterator[str]:
    """Weights of the models and of saved policies that are not finite, or not there."""
    folders: dict[Path, str] = {}
    made, own = made_model(config.model.kind), local_copy(config.model)
    if own is not None and made is not None:
        # A made model that is there is whole, so only its numbers are checked.
        broken = [*refusals(partial(check_finite, own))]
        yield from (f"{error}; delete {own}, and it is made again" for error in broken)
    # Weights that are still on the hub are not fetched for a check.
    elif own is not None and not unfetched(config.model):
        folders[own] = config.model.place
    for key, policies in saved_policies(config).items():
        folders |= {Path(one.path_or_name or ""): key for one in policies}
    yield from _of_weights(folders)
    for key, other in _other_models(config):
        yield from (f"{key}: {problem}" for problem in other_weight_problems(other))


def _of_weights(folders: Mapping[Path, str]) -> Iterator[str]:
    from rlforge.models.empty import empty_model

    for folder, named_by in folders.items():
        found = [*refusals(partial(check_finite, folder))]
        yield from (f"{named_by}: {error}; take another version of it" for error in found)
        whole = ModelConfig(kind="hf", name=str(folder))
        whole_files = (partial(empty_model, whole), partial(listed_ends, whole))
        if not (folder / MODEL_CONFIG).is_file() or [*refusals(*whole_files)]:
            # An adapter has no whole weights, and other checks refuse the rest.
            continue
        try:
            lacking = lacking_weights(whole)
        except ConfigError as error:
            # A file that is damaged was reported above.
            if not found:
                yield str(error)
        else:
            yield from [f"{named_by}: {lacking}"] if lacking else []


def model_notes(config: PolicyConfig) -> Iterator[str]:
    if made_model(config.model.kind) is None:
        yield from _notes(config)
    for key, own in _other_models(config):
        if local_copy(own.model) is None:
            yield f"{key}: hf:{own.model.label} is not on this machine: training fetches it"
            continue
        formed, _ = with_own_form(own)
        if formed.model.prompt_template != own.model.prompt_template:
            yield (
                f"{key}: the tokenizer of hf:{own.model.label} has no chat template, so its "
                "prompts are plain text (pool.hf.prompt_template=default)"
            )
        yield from (f"{key}: {note}" for note in _notes(own))


def _notes(config: PolicyConfig) -> Iterator[str]:
    from rlforge.models.empty import empty_model
    from rlforge.models.kind import whole_passes_note
    from rlforge.models.targets import experts_note

    model = empty_model(config.model)
    notes = [experts_note(model) if config.learner.train == "lora" else None]
    notes += [whole_passes_note(model) if config.engine.name != "vllm" else None]
    yield from (note for note in notes if note is not None)
