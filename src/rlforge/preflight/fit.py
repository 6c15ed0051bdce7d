"""Whether a run fits the memory of a machine, and what would make it fit."""

from __future__ import annotations

import dataclasses

from rlforge.config.model import ModelConfig
from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.errors import ConfigError, counted
from rlforge.kinds import kind_of
from rlforge.models.catalog import Located, locate
from rlforge.preflight.memory.needs import GIB
from rlforge.preflight.memory.plan import Plan, engine_job, make_plan
from rlforge.preflight.memory.remedies import Option, largest_pass, mend, options
from rlforge.rollout.lineup import as_played_by, other_models
from rlforge.system.hardware import Gpu, ram
from rlforge.types import value


@value
class Memory:
    """The plan of a run and what would change it."""

    device: str  #: ``GPU`` or ``RAM``, whose memory it is
    plan: Plan
    options: tuple[Option, ...]
    largest: int  #: tokens of the longest pass with which it fits
    mend: tuple[str, ...]  #: overrides that make it fit


def check_fit(config: PolicyConfig, hardware: HardwareConfig, found: tuple[Gpu, ...]) -> None:
    """Raise ConfigError where a run, as planned, does not fit the cards ``found``."""
    memory = memory_on(found, config, locate(config.model), hardware)
    if memory is None or memory.plan.excess == 0:
        # Without a plan nothing is known against the run.
        return
    plan = memory.plan
    card = max(plan.cards, key=lambda card: plan.need(card) - card.usable)
    saving = ", ".join(f"{option.key} ({in_gib(option.saves)})" for option in memory.options[:4])
    change = f"these fit: {' '.join(memory.mend)}" if memory.mend else f"largest savings: {saving}"
    ranks = "the learner" if card.learners == 1 else f"{card.learners} learner ranks"
    engines = counted(card.engines, "engine")
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


def holds_model(config: PolicyConfig) -> bool:
    kind = kind_of(config)
    return kind.learns or kind.generates


def in_gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def memory_on(
    found: tuple[Gpu, ...], config: PolicyConfig, located: Located, hardware: HardwareConfig
) -> Memory | None:
    """The plan for a machine with the cards ``found``; None where it cannot or need not be made."""
    shape, capacity = located.shape, _capacity(hardware, found)
    if shape is None or capacity is None or not holds_model(config):
        return None
    # The plan counts ``auto`` as rlforge.models.devices does: bfloat16 where the GPU computes in
    # it.
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


def _capacity(hardware: HardwareConfig, found: tuple[Gpu, ...]) -> int | None:
    if hardware.device != "cuda":
        return ram()
    # A run uses no more of a card than the memory that its profile names.
    sizes = [int(hardware.memory_gb * GIB)] if hardware.memory_gb is not None else []
    # With ``ray_address`` the run uses cards of other machines.
    if hardware.ray_address is None:
        sizes += [gpu.memory for gpu in found]
    return min(sizes, default=None)


def _in_bf16(model: ModelConfig, *, auto: bool) -> bool:
    return model.dtype == "bfloat16" or (model.dtype == "auto" and auto)
