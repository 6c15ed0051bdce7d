"""Checks of what games, continuous runs and services share, before anything is created.

Each value is judged by its configuration class (``problems``); here are names that a registry
knows, rules across groups, and what this machine must have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, TypeVar

from rlforge.config.compose import Composed
from rlforge.config.overrides import key_of, parse_overrides
from rlforge.config.plugins import ALGORITHMS, ENGINES, EXTRACTIONS, MODELS, PROMPTS, Kind
from rlforge.config.schema import PolicyConfig
from rlforge.config.training import ALGORITHM_CONFIGS
from rlforge.engines.vllm_settings import check_installed, lora_rank
from rlforge.errors import ConfigError
from rlforge.models.load import check_source, load_tokenizer, local_copy
from rlforge.models.made import made_model
from rlforge.system.hardware import detect
from rlforge.tracking.sinks import check_sinks, further_sinks

C = TypeVar("C", bound=PolicyConfig)


def with_template(composed: Composed[C], *, fetch: bool = False) -> tuple[Composed[C], str | None]:
    """With the prompt template ``default`` for a model that has no chat template, and a note.

    None: it stays as it is, as where the user chose ``chat``. fetch: also read the tokenizer of a
    model that is not on this machine. Raises ConfigError where it cannot be loaded.
    """
    model, key = composed.config.model, "model.prompt_template"
    typed = parse_overrides(composed.overrides)
    others = tuple(one.input_line or "" for one in typed if key_of(one) != "model")  # an option
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
    """What runs: as ``with_template``, of any model, after ``check``; say: takes the note."""
    result, note = with_template(composed)
    check(result)
    if note is None:
        result, note = with_template(result, fetch=True)
    if note is not None:
        say(f"note: {note}")
    return result


def check_policy(composed: Composed[PolicyConfig]) -> None:
    """Raise ConfigError for the first impossible value, unknown name or contradiction."""
    for key, problem in composed.config.problems():
        raise composed.error(key, problem)
    model = composed.config.model
    check_name(composed, "model.kind", model.kind, MODELS)
    check_prompt(composed, "model.prompt_template", model.prompt_template)
    check_name(composed, "model.action_extraction", model.action_extraction, EXTRACTIONS)
    check_name(composed, "engine.name", composed.config.engine.name, ENGINES)
    try:
        further_sinks(composed.config.tracker)
    except ConfigError as error:
        raise composed.error("tracker.sinks", str(error)) from None
    algorithm = composed.config.algorithm
    if algorithm.name not in ALGORITHM_CONFIGS:
        with ALGORITHMS.trial(algorithm.name):
            ALGORITHMS.find(algorithm.name)(algorithm, composed.config.engine.max_tokens)
    _check_update(composed)
    _check_engine(composed)


def check_learns_from_rewards(composed: Composed[PolicyConfig]) -> None:
    """Raise ConfigError for the algorithm that learns given answers."""
    if composed.config.algorithm.name == "supervised":
        raise composed.error("algorithm.name", "learns given answers: start it with rlforge sft")


def check_name(composed: Composed[PolicyConfig], key: str, name: str, kind: Kind) -> None:
    """Raise ConfigError where ``name``, the value of ``key``, cannot be chosen."""
    if (problem := kind.problem(name)) is not None:
        raise composed.error(key, problem)


def check_prompt(composed: Composed[PolicyConfig], key: str, name: str) -> None:
    """Raise ConfigError where no template is called ``name``, the value of ``key``."""
    own = composed.config.prompts
    if name not in own and (problem := PROMPTS.problem(name)) is not None:
        others = f"; the key prompts has {', '.join(own)}" if own else ""
        raise composed.error(key, f"{problem}{others}")


def check_reads(
    composed: Composed[PolicyConfig], key: str, subject: Literal["games", "market"], what: str
) -> None:
    """Raise ConfigError for a model that was made for something else than ``what``.

    key: that chose ``what``, a game or a market. subject: which of both it is.
    """
    kind = composed.config.model.kind
    made = made_model(kind)
    if made is None or made.knows(subject):
        return
    own = {"games": "tiny", "market": "tiny_market"}[subject]
    raise composed.error(
        key,
        f"the model {kind} does not know the words of {what}, and would learn nothing; use "
        f"model={own}, or a language model such as model=smollm2_135m",
    )


def check_temperature(composed: Composed[PolicyConfig], key: str, given: float | None) -> None:
    """Raise ConfigError for temperatures at which vLLM does not sample; 0 is greedy."""
    if composed.config.engine.name == "vllm" and given and not 0.01 <= given <= 2:
        raise composed.error(key, "vLLM samples at temperatures from 0.01 to 2")


def _check_engine(composed: Composed[PolicyConfig]) -> None:
    config, engine = composed.config, composed.config.engine
    if engine.name != "vllm":
        if config.hardware.engine_gpus > 1:
            raise composed.error(
                "hardware.engine_gpus", "only engine=vllm divides a model among several GPUs"
            )
        return
    if config.learner.train == "full":
        raise composed.error(
            "learner.train",
            "vLLM swaps adapters, not whole models; use learner.train=lora or engine=transformers",
        )
    try:
        lora_rank(config.model.lora.rank)
    except ConfigError as error:
        raise composed.error("model.lora.rank", str(error)) from None
    check_temperature(composed, "engine.temperature", engine.temperature)
    tokens = engine.vllm.max_num_batched_tokens
    if tokens is not None and tokens < engine.max_parallel_seq:
        raise composed.error(
            "engine.vllm.max_num_batched_tokens",
            f"a step holds one token of each of engine.max_parallel_seq={engine.max_parallel_seq} "
            "sequences at least; raise the one or lower the other",
        )


def _check_update(composed: Composed[PolicyConfig]) -> None:
    learner, kl = composed.config.learner, composed.config.algorithm.kl
    if learner.train == "lora" and not composed.config.model.lora.target_modules:
        raise composed.error("model.lora.target_modules", "names no layer to adapt")
    single = learner.gradient_accumulation_steps is None
    single = single and learner.epochs * learner.optimizer_steps == 1
    if kl.coef > 0 and kl.to == "previous" and single:
        raise composed.error(
            "algorithm.kl.to",
            "an update of a single optimizer step has not moved from the previous policy when "
            "its penalty is taken; raise learner.epochs, or use algorithm.kl.to=base",
        )


def check_machine(config: PolicyConfig) -> None:
    """Raise ConfigError where this machine lacks a package, compiler or key that a run needs."""
    check_sinks(config.tracker)
    if config.engine.name == "vllm":
        check_installed()
    if config.learner.compile and config.hardware.ray_address is None:
        from rlforge.learner.layers import check_compiling  # torch: seconds

        device = config.hardware.device
        check_compiling(("cuda" if detect().gpus else "cpu") if device == "auto" else device)
