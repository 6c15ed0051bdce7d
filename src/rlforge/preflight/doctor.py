"""Look at configuration, machine, packages, model, its weights and memory; nothing starts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rlforge.config.compose import Composed
from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.engines.vllm_settings import VLLM_VERSION, lacking
from rlforge.errors import ConfigError, counted
from rlforge.games.originals import absent_noted
from rlforge.kinds import kind_of
from rlforge.models.catalog import locate
from rlforge.models.fit import adapter_dropout
from rlforge.models.load import check_source, local_copy, unfetched
from rlforge.preflight.finding import Finding
from rlforge.preflight.fit import Memory, holds_model, in_gib, memory_on
from rlforge.preflight.games import game_notes, validate
from rlforge.preflight.limits import limit_notes
from rlforge.preflight.model import (
    check_start,
    model_notes,
    model_problems,
    saved_problems,
    shape_problems,
    weight_problems,
)
from rlforge.preflight.plan import (
    engine_tried,
    for_machine,
    gpu_notes,
    named_engine,
    with_engines_that_start,
    with_start,
)
from rlforge.preflight.policy import with_template
from rlforge.preflight.surroundings import findings as surroundings
from rlforge.rollout.lineup import as_played_by, other_models
from rlforge.system.hardware import Machine, ram, resolve_hardware
from rlforge.system.network import ProxyError
from rlforge.types import value


def _ok(what: str, detail: str) -> Finding:
    return Finding(what=what, state="ok", detail=detail)


def _note(what: str, detail: str) -> Finding:
    return Finding(what=what, state="note", detail=detail)


def _problem(what: str, detail: str) -> Finding:
    return Finding(what=what, state="problem", detail=detail)


@value
class Report:
    """All findings; memory is None where it cannot be planned, and then a finding says why."""

    findings: tuple[Finding, ...]
    memory: Memory | None

    @property
    def healthy(self) -> bool:
        unfit = self.memory is not None and self.memory.plan.excess > 0
        return not unfit and all(finding.state != "problem" for finding in self.findings)

    @property
    def wrong(self) -> bool:
        """Whether the configuration, or its model, would be wrong on every machine."""
        wrong = (one.what for one in self.findings if one.state == "problem")
        return not {"configuration", "model"}.isdisjoint(wrong)


def examine(
    composed: Composed[Any],
    gpus_there: int | None = None,
    gpu_memory_gb: float | None = None,
    check: Callable[..., None] = validate,
) -> Report:
    """Examine a run as far as it can be known here.

    gpus_there, gpu_memory_gb: GPUs of another machine to plan for, see ``for_machine``. check:
    raises ConfigError for a configuration that cannot run; ``keys``: or for what this machine
    lacks.
    """
    composed, plain = with_template(composed)
    whole, machine, guess = for_machine(composed.config, gpus_there, gpu_memory_gb)
    config = with_engines_that_start(whole, machine)
    # Another machine has its own packages, keys and engine, so what is missing here is a note.
    assumed = not machine.here
    findings = [
        *_configuration(composed, check, assumed=assumed),
        *(_note("games", note) for note in game_notes(config)),
        *_machine(config.hardware, machine),
        # Another machine has its own folders and limits.
        *(() if assumed else surroundings(composed.config)),
    ]
    unused = [] if guess is None else [guess]
    hardware, finding = _hardware(config, machine)
    if hardware is not None:
        unused += gpu_notes(whole, config, hardware, machine)
    findings += [_note("hardware", note) for note in unused]
    findings += [finding, *_packages(config, hardware, assumed=assumed)]
    tried = config
    if hardware is not None:
        tried, engine = engine_tried(config, hardware, machine)
        findings += [_ok("engine", engine)] if engine else []
    findings += _model(composed, assumed=assumed)
    findings += _sampling(config)
    if all(one.state != "problem" for one in findings):
        expected = kind_of(config).forecast(config)
        findings += [_ok("collection", expected)] if expected else []
    limits = limit_notes(dataclasses.replace(composed, config=config))
    findings += [_note("limits", note) for note in limits]
    if plain is not None:
        findings.append(_note("prompts", plain))
    if (dropout := adapter_dropout(config)) is not None:
        findings.append(_note("adapter", dropout))
    memory = None
    if hardware is not None and holds_model(config):
        memory, more = _memory(config, tried, hardware, machine)
        findings += more
    return Report(findings=tuple(findings), memory=memory)


# ---------------------------------------------------------------- findings


def _memory(
    config: PolicyConfig, tried: PolicyConfig, hardware: HardwareConfig, machine: Machine
) -> tuple[Memory | None, list[Finding]]:
    """Plan the memory of ``config`` with the engine that is tried first."""
    found, located = list[Finding](), locate(config.model)
    memory = memory_on(machine.cards, tried, located, hardware)
    if memory is None:
        unknown = "no GPU memory to read; give --gpu-memory GB"
        why = unknown if located.shape else "the shape of the model is not known"
        return None, [_note("memory", f"not planned: {why}")]
    if tried.engine.name != config.engine.name and not memory.plan.excess:
        embedded = named_engine(config, "transformers")
        other = memory_on(machine.cards, embedded, located, hardware)
        if other is not None and (missing := other.plan.excess):
            fits = f"; these fit: {' '.join(other.mend)}" if other.mend else ""
            detail = (
                "the embedded engine, which takes over where the trial of vLLM fails, needs "
                f"{in_gib(missing)} too much, and so train refuses{fits}; engine=vllm has no trial"
            )
            found.append(_problem("engine", detail))
    if not machine.here and memory.device == "RAM":
        found.append(_note("memory", "planned in the RAM of this machine"))
    # Parts that leave the card in turns wait in the host's RAM, which may be small.
    size, wanted = ram(), memory.plan.on_host
    detail = f"hardware.alternate moves up to {in_gib(wanted)} to the host"
    if not machine.here and wanted:
        found.append(_note("RAM", detail))
    elif wanted > size:
        found.append(_problem("RAM", f"{detail}, which has {in_gib(size)}"))
    return memory, found


def _configuration(
    composed: Composed[Any], check: Callable[..., None], *, assumed: bool
) -> list[Finding]:
    absent: Mapping[Any, str] = {}
    with contextlib.ExitStack() as stack:
        if assumed:
            # The other machine may have packages of templates that are missing here.
            absent = stack.enter_context(absent_noted())
        try:
            check(composed, keys=not assumed)
        except ConfigError as error:
            return [_problem("configuration", line) for line in str(error).splitlines()]
    return [_ok("configuration", "valid"), *(_note("configuration", t) for t in absent.values())]


def _machine(hardware: HardwareConfig, machine: Machine) -> list[Finding]:
    cores = f"{counted(machine.cpus, 'core')}, {in_gib(ram())} of RAM"
    cards = ", ".join(f"{gpu.name} ({in_gib(gpu.memory)})" for gpu in machine.cards)
    unread = f"{machine.gpus} of unknown memory, which nvidia-ml-py reads (extra: gpu)"
    cards = cards or (unread if machine.gpus else "none that the driver shows")
    if assumed := not machine.here:
        # Only the profile says which GPUs another machine has.
        number, each = hardware.num_gpus, hardware.memory_gb
        many = "as many as the cluster has" if number is None else str(number or "none")
        cards = f"{many}{f' of {each:.1f} GiB' if each and number else ''}, planned"
    return [
        _ok("this machine" if assumed else "machine", cores),
        (_note if assumed else _ok)("GPUs", cards),
    ]


def _hardware(config: PolicyConfig, machine: Machine) -> tuple[HardwareConfig | None, Finding]:
    engines, learners = config.engine.num_engines, config.learner.num_learners
    wanted = config.hardware
    try:
        hardware = resolve_hardware(wanted, machine, engines, learners)
    except ConfigError as error:
        return None, _problem("hardware", str(error))
    if hardware.device != "cuda":
        return hardware, _ok("hardware", f"{wanted.name}: on the CPU")
    detail = (
        f"{wanted.name}: {_gpus_of(learners, 'learner', hardware.learner_gpus)}"
        f"{', ' + _gpus_of(engines, 'engine', hardware.engine_gpus) if engines else ''}"
        f"{', in turns' if hardware.alternate else ''}"
    )
    return hardware, (_ok if machine.here else _note)("hardware", detail)


def _gpus_of(number: int, name: str, each: float) -> str:
    return f"{counted(number, name)} × {each:.3g} GPU"


def _packages(
    config: PolicyConfig, hardware: HardwareConfig | None, *, assumed: bool
) -> list[Finding]:
    wanted = {"torch": "", "transformers": "", "peft": "", "ray": ""}
    if config.model.kind == "smollm2_135m":
        wanted |= dict.fromkeys(("gguf", "accelerate"), "model.kind=smollm2_135m; extra: smollm2")
    if config.tracker.wandb_project:
        wanted["wandb"] = "tracker.wandb_project; extra: wandb"
    if config.tracker.tensorboard:
        wanted["tensorboard"] = "tracker.tensorboard; extra: tensorboard"
    installed, missing = [], []
    for name, reason in wanted.items():
        try:
            installed.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(f"{name} ({reason})" if reason else name)
    findings, lacks = [_ok("packages", ", ".join(installed))], _note if assumed else _problem
    if missing:
        here = " here" if assumed else ""
        findings.append(lacks("packages", f"not installed{here}: {', '.join(missing)}"))
    if config.engine.name == "vllm":
        absent = lacking(None if hardware is None else hardware.device)
        if absent is None:
            findings.append(_ok("packages", f"vLLM {VLLM_VERSION}"))
        else:
            planned = f"vLLM {VLLM_VERSION}, planned: here " if assumed else ""
            findings.append(lacks("packages", f"{planned}{absent}"))
    return findings


def _model(composed: Composed[Any], *, assumed: bool) -> list[Finding]:
    config = composed.config
    try:
        check_source(config.model)
        problems = [*model_problems(config, fetch=not assumed)]
        if local_copy(config.model) is not None:
            check_start(composed)
            started = with_start(config)
            problems += [*saved_problems(started), *weight_problems(started)]
    except ConfigError as error:
        # Another machine may have the model, or reach it.
        if isinstance(error, ProxyError) and not assumed:
            raise
        unknown = [_problem("model", text) for text in shape_problems(config)]
        return [*unknown, (_note if assumed else _problem)("model", str(error))]
    if problems:
        return [_problem("model", text) for text in problems]
    findings = [_ok("model", f"{config.model.label}: {locate(config.model).place}")]
    for uid, other in as_played_by(config, other_models(config)).items():
        located = locate(other.model)
        unplanned = "" if located.shape else "; its memory is not planned: its shape is not known"
        findings.append(_ok("opponent", f"{uid}: {located.place}{unplanned}"))
    notes = [*model_notes(config)]
    if unfetched(config.model):
        notes.append("its weights are on the hub only: training fetches them, and reads them then")
    return [*findings, *(_note("model", note) for note in notes)]


def _sampling(config: PolicyConfig) -> list[Finding]:
    # Filters change what is drawn from, not what is learned, so a note explains the ratio.
    engine = config.engine
    filters = {"top_p": (engine.top_p, 1), "top_k": (engine.top_k, 0), "min_p": (engine.min_p, 0)}
    used = [f"engine.{name}={set_to:g}" for name, (set_to, off) in filters.items() if set_to != off]
    if not used:
        return []
    detail = (
        f"{', '.join(used)}: games are drawn from the likeliest tokens, and the learner's "
        "log-probs are over all of them: the ratio of both is the probability of those that are "
        f"kept{f', {engine.top_p:g} to 1' if len(used) == 1 and engine.top_p < 1 else ''}"
    )
    if config.algorithm.importance_cap is None:
        detail += "; with algorithm.importance_cap=null nothing is weighed by it"
    return [_note("sampling", detail)]
