"""Looks at configuration, machine, packages, model, its weights and memory; starts nothing."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, TypeVar

from rlforge.config.compose import Composed
from rlforge.config.schema import HardwareConfig, ModelConfig, PolicyConfig, RunConfig
from rlforge.engines.vllm_settings import VLLM_VERSION, check_installed, obstacle
from rlforge.errors import ConfigError
from rlforge.games.originals import absent_noted
from rlforge.models.catalog import Located, locate
from rlforge.models.fit import adapter_dropout
from rlforge.models.load import check_source, local_copy, unfetched
from rlforge.preflight.games import game_notes, validate
from rlforge.preflight.limits import limit_notes
from rlforge.preflight.machine import planned, started
from rlforge.preflight.memory.plan import GIB, Plan, engine_job, make_plan
from rlforge.preflight.memory.remedies import Option, largest_pass, mend, options
from rlforge.preflight.model import (
    model_notes,
    model_problems,
    saved_problems,
    shape_problems,
    weight_problems,
    with_start,
)
from rlforge.preflight.policy import with_template
from rlforge.rollout.expected import forecast
from rlforge.rollout.lineup import as_played_by, other_models
from rlforge.system.hardware import Gpu, detect, gpus, ram, resolve_hardware
from rlforge.system.network import ProxyError
from rlforge.types import value

C = TypeVar("C", bound=PolicyConfig)

State = Literal["ok", "note", "problem"]


@value
class Finding:
    """One thing that was looked at."""

    what: str
    state: State
    detail: str


@value
class Memory:
    """The plan of a run and what would change it. device: ``GPU`` or ``RAM``, whose memory it is.

    largest: tokens of the longest pass with which it fits. mend: overrides that make it fit.
    """

    device: str
    plan: Plan
    options: tuple[Option, ...]
    largest: int
    mend: tuple[str, ...]


@value
class Report:
    """All findings; memory is None where it cannot be planned, and then a finding says why."""

    findings: tuple[Finding, ...]
    memory: Memory | None

    @property
    def healthy(self) -> bool:
        """Nothing that is known stands in the way."""
        unfit = self.memory is not None and self.memory.plan.excess > 0
        return not unfit and all(finding.state != "problem" for finding in self.findings)

    @property
    def wrong(self) -> bool:
        """The configuration, or the model that it names, is wrong; it would be on every machine."""
        wrong = (one.what for one in self.findings if one.state == "problem")
        return not {"configuration", "model"}.isdisjoint(wrong)


def examine(
    composed: Composed[Any],
    gpus_there: int | None = None,
    gpu_memory_gb: float | None = None,
    check: Callable[[Composed[Any]], None] = validate,
) -> Report:
    """Everything about a run that can be known here.

    gpus_there, gpu_memory_gb: plan for a machine of so many GPUs, of so many GiB each, as
    ``planned`` does and raises. check: raises ConfigError for a configuration that cannot run.
    """
    composed, plain = with_template(composed)
    config, guess = planned(started(composed.config), gpus_there, gpu_memory_gb)
    found, assumed = gpus(), guess is not None or (gpus_there, gpu_memory_gb) != (None, None)
    findings = [
        *_configuration(composed, check, assumed=assumed),
        *(Finding(what="games", state="note", detail=note) for note in game_notes(config)),
        *_machine(found),
    ]
    if guess is not None:
        findings.append(Finding(what="hardware", state="note", detail=guess))
    hardware, finding = _hardware(config, assumed=assumed)
    findings += [finding, *_packages(config, hardware), *_model(composed, assumed=assumed)]
    located = locate(config.model)  # with its shape, now that its configuration is here
    findings += _sampling(config)
    if isinstance(config, RunConfig) and all(one.state != "problem" for one in findings):
        findings.append(Finding(what="collection", state="ok", detail=forecast(config)))
    limits = limit_notes(dataclasses.replace(composed, config=config))
    findings += [Finding(what="limits", state="note", detail=note) for note in limits]
    if plain is not None:
        findings.append(Finding(what="prompts", state="note", detail=plain))
    if (dropout := adapter_dropout(config)) is not None:
        findings.append(Finding(what="adapter", state="note", detail=dropout))
    memory = None
    if hardware is not None:
        cards = () if assumed else found
        capacity = _capacity(hardware, cards)
        if located.shape is None:
            findings.append(_unplanned("the shape of the model is not known"))
        elif capacity is None:
            findings.append(_unplanned("no GPU memory to read; give --gpu-memory GB"))
        else:
            memory = _memory(config, located, hardware, capacity, cards)
            # What leaves the card in turns has its place on the host.
            size, wanted = ram(), memory.plan.on_host
            detail = f"hardware.alternate moves up to {in_gib(wanted)} to the host"
            if assumed and wanted:
                findings.append(Finding(what="RAM", state="note", detail=detail))
            elif size is not None and wanted > size:
                detail += f", which has {in_gib(size)}"
                findings.append(Finding(what="RAM", state="problem", detail=detail))
    return Report(findings=tuple(findings), memory=memory)


def check_fit(config: PolicyConfig, *, here: bool = True) -> None:
    """Raise ConfigError where a run does not fit the memory of this machine, or that it names.

    here: by the cards of this machine, too. Says nothing where the shape of the model or the memory
    of the card cannot be known.
    """
    memory = memory_on(gpus() if here else (), config, locate(config.model))
    if memory is None or memory.plan.excess == 0:
        return
    plan = memory.plan
    card = max(plan.cards, key=lambda card: plan.need(card) - card.usable)
    saving = ", ".join(f"{option.key} ({in_gib(option.saves)})" for option in memory.options[:4])
    change = f"these fit: {' '.join(memory.mend)}" if memory.mend else f"largest savings: {saving}"
    ranks = "the learner" if card.learners == 1 else f"{card.learners} learner ranks"
    engines = f"{card.engines} engine{'s' if card.engines > 1 else ''}"
    parts = ((card.learners, ranks), (card.engines, engines))
    who = " and ".join(text for number, text in parts if number)
    turns = " in turns" if plan.alternate else ""
    room = f"{memory.device} of {in_gib(card.capacity)} ({in_gib(card.usable)} usable)"
    raise ConfigError(
        f"{config.model.label} does not fit {room} with "
        f"hardware={config.hardware.name}: {who} need{turns} "
        f"{in_gib(plan.need(card))}, {in_gib(plan.excess)} too much; {change}; "
        "rlforge doctor shows each part"
    )


def memory_on(found: tuple[Gpu, ...], config: PolicyConfig, located: Located) -> Memory | None:
    """The plan for a machine with the cards ``found``; None where it cannot be made."""
    hardware = resolve_hardware(
        config.hardware, detect(), config.engine.num_engines, config.learner.num_learners
    )
    capacity = _capacity(hardware, found)
    if located.shape is None or capacity is None:
        return None
    return _memory(config, located, hardware, capacity, found)


def in_gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _capacity(hardware: HardwareConfig, found: tuple[Gpu, ...]) -> int | None:
    """Bytes of the smallest card, or of the machine for a run on the CPU.

    A profile that names its GPUs' memory uses no more of larger ones; smaller ones have what they
    have. found: empty where others than this machine's are meant.
    """
    if hardware.device != "cuda":
        return ram()
    sizes = [int(hardware.memory_gb * GIB)] if hardware.memory_gb is not None else []
    if hardware.ray_address is None:  # else cards of other machines
        sizes += [gpu.memory for gpu in found]
    return min(sizes, default=None)


def _in_bf16(model: ModelConfig, *, auto: bool) -> bool:
    """Whether a model is loaded in bfloat16. auto: what ``auto`` chooses."""
    return model.dtype == "bfloat16" or (model.dtype == "auto" and auto)


def _memory(
    config: PolicyConfig,
    located: Located,
    hardware: HardwareConfig,
    capacity: int,
    found: tuple[Gpu, ...],
) -> Memory:
    shape = located.shape
    assert shape is not None
    # As rlforge.models.devices decides it: bfloat16 where the GPU computes in it.
    modern = all(gpu.capability >= 8 for gpu in found)
    auto = hardware.device == "cuda" and modern
    bf16 = _in_bf16(config.model, auto=auto)

    def replan(changed: PolicyConfig) -> Plan:
        others = [
            dataclasses.replace(
                engine_job(own, known, hardware.device, bf16=_in_bf16(own.model, auto=auto)),
                versions=0,
            )
            for own in as_played_by(changed, other_models(changed)).values()
            if (known := locate(own.model).shape) is not None
        ]
        return make_plan(changed, shape, hardware, capacity, bf16=bf16, others=others)

    plan = replan(config)
    return Memory(
        device="GPU" if hardware.device == "cuda" else "RAM",
        plan=plan,
        options=options(config, replan),
        largest=largest_pass(config, lambda changed: not replan(changed).excess),
        mend=mend(config, replan) if plan.excess else (),
    )


# ---------------------------------------------------------------- findings


def _unplanned(why: str) -> Finding:
    return Finding(what="memory", state="note", detail=f"not planned: {why}")


def _configuration(
    composed: Composed[Any], check: Callable[[Composed[Any]], None], *, assumed: bool
) -> list[Finding]:
    """assumed: for another machine, where packages of templates may be that are not here."""
    absent: Mapping[str, str] = {}
    with contextlib.ExitStack() as stack:
        if assumed:
            absent = stack.enter_context(absent_noted())
        try:
            check(composed)
        except ConfigError as error:
            return [_problem("configuration", line) for line in str(error).splitlines()]
    return [
        Finding(what="configuration", state="ok", detail="valid"),
        *(Finding(what="configuration", state="note", detail=mend) for mend in absent.values()),
    ]


def _machine(found: tuple[Gpu, ...]) -> list[Finding]:
    size = ram()
    shown = "unknown" if size is None else in_gib(size)
    cores = f"{detect().cpus} cores, {shown} of RAM"
    cards = ", ".join(f"{gpu.name} ({in_gib(gpu.memory)})" for gpu in found)
    return [
        Finding(what="machine", state="ok", detail=cores),
        Finding(what="GPUs", state="ok", detail=cards or "none that nvidia-smi shows"),
    ]


def _hardware(config: PolicyConfig, *, assumed: bool) -> tuple[HardwareConfig | None, Finding]:
    """The resolved profile; assumed: not for this machine."""
    engines, learners = config.engine.num_engines, config.learner.num_learners
    wanted = config.hardware
    try:
        hardware = resolve_hardware(wanted, detect(), engines, learners)
    except ConfigError as error:
        return None, Finding(what="hardware", state="problem", detail=str(error))
    if hardware.device != "cuda":
        return hardware, Finding(what="hardware", state="ok", detail=f"{wanted.name}: on the CPU")
    detail = (
        f"{wanted.name}: {_gpus_of(learners, 'learner', hardware.learner_gpus)}"
        f"{', ' + _gpus_of(engines, 'engine', hardware.engine_gpus) if engines else ''}"
        f"{', in turns' if hardware.alternate else ''}"
    )
    state: State = "note" if assumed else "ok"
    return hardware, Finding(what="hardware", state=state, detail=detail)


def _gpus_of(number: int, name: str, each: float) -> str:
    return f"{number} {name}{'s' if number > 1 else ''} × {each:.3g} GPU"


def _packages(config: PolicyConfig, hardware: HardwareConfig | None) -> list[Finding]:
    """Packages that the configuration needs beyond those that it is composed by."""
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
    findings = [Finding(what="packages", state="ok", detail=", ".join(installed))]
    if missing:
        detail = f"not installed: {', '.join(missing)}"
        findings.append(Finding(what="packages", state="problem", detail=detail))
    if config.engine.name == "auto" and hardware is not None:
        chosen = f"vLLM {VLLM_VERSION} if it passes a trial at the start, else transformers"
        if (obstructed := obstacle(config, hardware.device)) is not None:
            chosen = f"transformers, not vLLM: {obstructed}"
        findings.append(Finding(what="engine", state="ok", detail=chosen))
    if config.engine.name == "vllm":
        try:
            check_installed(None if hardware is None else hardware.device)
            findings.append(Finding(what="packages", state="ok", detail=f"vLLM {VLLM_VERSION}"))
        except ConfigError as error:
            findings.append(Finding(what="packages", state="problem", detail=str(error)))
    return findings


def _model(composed: Composed[Any], *, assumed: bool) -> list[Finding]:
    """assumed: the run is for another machine, on which the model may be."""
    config = composed.config
    try:
        check_source(config.model)
        problems = [*model_problems(config, fetch=not assumed)]
        if local_copy(config.model) is not None:
            config = with_start(composed)
            problems += [*saved_problems(config), *weight_problems(config)]
    except ConfigError as error:
        if isinstance(error, ProxyError) and not assumed:
            raise
        unknown = [_problem("model", text) for text in shape_problems(config)]
        state: State = "note" if assumed else "problem"
        return [*unknown, Finding(what="model", state=state, detail=str(error))]
    if problems:
        return [_problem("model", text) for text in problems]
    detail = f"{config.model.label}: {locate(config.model).place}"
    findings = [Finding(what="model", state="ok", detail=detail)]
    for uid, other in as_played_by(config, other_models(config)).items():
        located = locate(other.model)
        unplanned = "" if located.shape else "; its memory is not planned: its shape is not known"
        detail = f"{uid}: {located.place}{unplanned}"
        findings.append(Finding(what="opponent", state="ok", detail=detail))
    notes = [*model_notes(config)]
    if unfetched(config.model):
        notes.append("its weights are on the hub only: training fetches them, and reads them then")
    return [*findings, *(Finding(what="model", state="note", detail=note) for note in notes)]


def _problem(what: str, detail: str) -> Finding:
    return Finding(what=what, state="problem", detail=detail)


def _sampling(config: PolicyConfig) -> list[Finding]:
    """Where what is drawn from is not what is learned."""
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
    return [Finding(what="sampling", state="note", detail=detail)]
