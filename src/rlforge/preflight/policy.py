"""Checks that games, continuous runs and services share, before anything is created."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

from rlforge.config.complaints import InvalidValuesError
from rlforge.config.compose import Composed
from rlforge.config.names import Kind
from rlforge.config.overrides import key_of, parse_overrides
from rlforge.config.plugins import ALGORITHMS, ENGINES, EXTRACTIONS, MODELS, PROMPTS
from rlforge.config.rules import read
from rlforge.config.schema import PolicyConfig
from rlforge.config.training import ALGORITHM_CONFIGS, AlgorithmConfig
from rlforge.engines.vllm_settings import (
    TEMPERATURES,
    check_installed,
    samples_at,
    setting_problems,
)
from rlforge.errors import ConfigError, refusals
from rlforge.models.load import check_source, load_tokenizer, local_copy
from rlforge.models.made import made_model
from rlforge.record.sinks import check_sinks, further_sinks
from rlforge.system.hardware import detect

C = TypeVar("C", bound=PolicyConfig)


def with_template(composed: Composed[C], *, fetch: bool = False) -> tuple[Composed[C], str | None]:
    """Set the prompt template ``default``, with a note, for a model without a chat template.

    fetch: also read the tokenizer of a model that is not on this machine.
    """
    model, key = composed.config.model, "model.prompt_template"
    typed = parse_overrides(composed.overrides)
    # A template that the user chose stays, and is refused where it cannot be. ``model=OPTION``
    # alone chooses none.
    others = tuple(one.input_line or "" for one in typed if key_of(one) != "model")
    chosen = dataclasses.replace(composed, overrides=others).origin(key)
    shipped = chosen == "default" or chosen.startswith("conf/")
    if model.prompt_template != "chat" or not shipped or made_model(model.kind) is not None:
        return composed, None
    folder = local_copy(model)
    if folder is None and not fetch:
        return composed, None
    if folder is None:
        check_source(model)
    here = model if folder is None else dataclasses.replace(model, name=str(folder))
    if load_tokenizer(here).chat_template:
        return composed, None
    plain = dataclasses.replace(model, prompt_template="default")
    config = dataclasses.replace(composed.config, model=plain)
    note = (
        f"{key}=default: the tokenizer of {model.label} has no chat template, so prompts are plain "
        "text"
    )
    return dataclasses.replace(composed, config=config), note


def checked(
    composed: Composed[C], check: Callable[[Composed[C]], None], say: Callable[[str], None]
) -> Composed[C]:
    """The configuration that runs, from ``with_template`` and ``check``. say: takes the note."""
    result, note = with_template(composed)
    check(result)
    if note is None:
        result, note = with_template(result, fetch=True)
    if note is not None:
        say(f"note: {note}")
    return result


Problems = Iterator[ConfigError | str]
"""Problems, one by one; ``raise_all`` refuses them together."""


def value_problems(composed: Composed[PolicyConfig]) -> Problems:
    config, model = composed.config, composed.config.model
    # Configuration classes judge values, but only registries know the names below.
    yield from (composed.error(key, problem) for key, problem in config.problems())
    try:
        read(type(config), config)
    except InvalidValuesError:
        # With a value that is impossible by itself no name can be judged.
        return
    yield from name_problems(composed, "model.kind", model.kind, MODELS)
    yield from prompt_problems(composed, "model.prompt_template", model.prompt_template)
    extraction = model.action_extraction
    yield from name_problems(composed, "model.action_extraction", extraction, EXTRACTIONS)
    yield from name_problems(composed, "engine.name", config.engine.name, ENGINES)
    yield from composed.trial("tracker.sinks", lambda: further_sinks(config.tracker))
    algorithm = config.algorithm
    if algorithm.name not in ALGORITHM_CONFIGS:
        yield from refusals(lambda: _try_algorithm(algorithm, config.engine.max_tokens))


def _try_algorithm(algorithm: AlgorithmConfig, max_tokens: int) -> None:
    with ALGORITHMS.trial(algorithm.name):
        ALGORITHMS.find(algorithm.name)(algorithm, max_tokens)


def policy_problems(composed: Composed[PolicyConfig]) -> Problems:
    """Settings that vLLM does not take, where it is the engine."""
    config = composed.config
    for key, problem in setting_problems(config) if config.engine.name == "vllm" else ():
        yield composed.error(key, problem)


def reward_problems(composed: Composed[PolicyConfig]) -> Problems:
    if composed.config.algorithm.name == "supervised":
        # This algorithm would learn from no reward.
        yield composed.error("algorithm.name", "learns given answers: start it with rlforge sft")


def name_problems(composed: Composed[PolicyConfig], key: str, name: str, kind: Kind) -> Problems:
    if (problem := kind.problem(name)) is not None:
        yield composed.error(key, problem)


def prompt_problems(composed: Composed[PolicyConfig], key: str, name: str) -> Problems:
    """The problem of ``name``, the value of ``key``, if no template is called so."""
    own = composed.config.prompts
    if name not in own and (problem := PROMPTS.problem(name)) is not None:
        others = f"; the key prompts has {', '.join(own)}" if own else ""
        yield composed.error(key, f"{problem}{others}")


def reader_problems(
    composed: Composed[PolicyConfig],
    key: str,
    subject: Literal["games", "market", "social"],
    what: str,
) -> Problems:
    """The problem of a model that was made for something else than ``what``.

    key: configuration key of ``what``. subject: games, markets, or those with ``market.social``.
    """
    kind = composed.config.model.kind
    made = made_model(kind)
    if made is None or made.knows(subject):
        return
    own = {"games": "tiny", "market": "tiny_market", "social": "tiny_social"}[subject]
    yield composed.error(
        key,
        f"the model {kind} does not know the words of {what}, and would learn nothing; use "
        f"model={own}, or a language model such as model=smollm2_135m",
    )


def temperature_problems(
    composed: Composed[PolicyConfig], key: str, given: float | None
) -> Problems:
    if composed.config.engine.name == "vllm" and not samples_at(given or 0):
        yield composed.error(key, TEMPERATURES)


def machine_problems(config: PolicyConfig) -> Problems:
    """Packages, compilers and keys that a run needs and this machine lacks."""
    yield from refusals(lambda: check_sinks(config.tracker))
    if config.engine.name == "vllm":
        yield from refusals(check_installed)
    if config.learner.compile and config.hardware.ray_address is None:
        # Imported here, because loading torch takes seconds.
        from rlforge.learner.layers import check_compiling

        device, gpus = config.hardware.device, config.hardware.num_gpus or detect().gpus
        device = ("cuda" if gpus else "cpu") if device == "auto" else device
        yield from refusals(lambda: check_compiling(device))
