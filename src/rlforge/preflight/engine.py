"""The engine that a run starts on this machine, and its share of the card."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TypeVar

from rlforge.config.schema import PolicyConfig
from rlforge.engines.registry import check_playable
from rlforge.engines.vllm_settings import VLLM_VERSION, lacking, obstacle
from rlforge.errors import refusals
from rlforge.models.catalog import locate
from rlforge.preflight.fit import in_gib, memory_on
from rlforge.preflight.model import saved_policies
from rlforge.system.hardware import Gpu, detect, gpus, resolve_hardware

C = TypeVar("C", bound=PolicyConfig)


def divided(config: C) -> C:
    """``config`` with the share of its card that each engine takes, where the plan decides it.

    Where the shape of the model or the memory of the card cannot be known, it stays as it is.
    """
    vllm = config.engine.vllm
    if config.engine.name != "vllm" or vllm.gpu_memory_utilization is not None:
        return config
    memory = memory_on(gpus(), config, locate(config.model))
    if memory is None or memory.plan.share is None:
        return config
    # vLLM counts by the card itself, of which the profile may use a part.
    planned = memory.plan.cards[0].capacity
    here = config.hardware.ray_address is None
    whole = min((gpu.memory for gpu in gpus() if here), default=planned)
    share = memory.plan.share * planned / whole
    vllm = dataclasses.replace(vllm, gpu_memory_utilization=share)
    return dataclasses.replace(config, engine=dataclasses.replace(config.engine, vllm=vllm))


def with_engine_chosen(config: C) -> tuple[C, str | None]:
    """``divided``, with the engine that ``engine.name=auto`` starts on this machine, and a note.

    The name stays ``auto`` where the engines themselves try vLLM, with the trial of
    ``rlforge.learner.engine_trial``; where they cannot, and the note says why, it is
    ``transformers``. Plans of memory count ``auto`` as that: it takes over where the trial fails.
    """
    tried, which = engine_tried(config, gpus(), here=True)
    if which is None or tried.engine.name != "vllm":
        return divided(tried), None if which is None else f"engine: {which}"
    return named_engine(divided(tried), "auto"), None


def engine_tried(config: C, found: tuple[Gpu, ...], *, here: bool) -> tuple[C, str | None]:
    """``config`` with the engine that ``engine.name=auto`` tries first, and which one that is.

    None: another name was chosen. found: the cards of this machine; here: it is for this machine,
    else for another one, where vLLM is where the engines need GPUs.
    """
    if config.engine.name != "auto":
        return config, None
    wanted = named_engine(config, "vllm")
    if (reason := _not_vllm(wanted, found, here=here)) is not None:
        return named_engine(config, "transformers"), f"transformers, not vLLM: {reason}"
    trial = f"vLLM {VLLM_VERSION} if it passes a trial at the start, else transformers"
    absent = None if here else lacking("cuda")
    return wanted, trial if absent is None else f"{trial}, planned: here {absent}"


def named_engine(config: C, name: str) -> C:
    """``config`` with another ``engine.name``."""
    return dataclasses.replace(config, engine=dataclasses.replace(config.engine, name=name))


def _not_vllm(config: PolicyConfig, found: tuple[Gpu, ...], *, here: bool = True) -> str | None:
    """Why a run does not try vLLM, which ``config`` names; None: it does.

    found, here: as of ``engine_tried``.
    """
    machine = detect()
    hardware = resolve_hardware(
        config.hardware, machine, config.engine.num_engines, config.learner.num_learners
    )
    if (reason := obstacle(config, hardware.device, here=here)) is not None:
        return reason
    for policies in saved_policies(config).values() if here else ():
        for problem in refusals(partial(check_playable, policies, config)):
            return str(problem)
    memory = memory_on(found, config, locate(config.model))
    if memory is not None and memory.plan.excess > 0:
        return f"with it the run needs {in_gib(memory.plan.excess)} more memory than there is"
    return None
