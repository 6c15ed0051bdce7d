"""The machine that a run starts on, where it may be planned on another one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TypeVar

from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError
from rlforge.kinds import kind_of
from rlforge.preflight.memory.cards import place
from rlforge.system.hardware import detect, resolve_device, resolve_hardware

C = TypeVar("C", bound=PolicyConfig)


def started(config: C) -> C:
    """The configuration that the actors start from.

    Supervised fine-tuning has no engine. Where the machine divides its GPUs, engines beyond
    ``engine.min_engines`` start only if a GPU is left for each.
    """
    if kind_of(config).generates:
        engine, hardware = config.engine, config.hardware
        least = engine.min_engines
        fixed = hardware.learner_gpus or hardware.engine_gpus or hardware.ray_address is not None
        if least is None or fixed:
            return config
        left = 0 if hardware.alternate else _gpus_there(config) - config.learner.num_learners
        number = max(least, min(engine.num_engines, left))
        return dataclasses.replace(config, engine=dataclasses.replace(engine, num_engines=number))
    return dataclasses.replace(
        config,
        engine=dataclasses.replace(config.engine, name="transformers", num_engines=0),
        hardware=dataclasses.replace(config.hardware, alternate=False),
    )


def planned(
    config: C, gpus: int | None = None, memory_gb: float | None = None
) -> tuple[C, str | None]:
    """``config`` for the machine that it is planned for, and a note where that is a guess.

    gpus, memory_gb: GPUs of that machine and GiB of each, as ``hardware`` then says; without both
    it is this machine, or, where a profile wants a GPU and this one has none, one with as many as
    its actors ask for, which the note says. Raises ConfigError for GPUs on a CPU run.
    """
    hardware, here = config.hardware, detect().gpus
    if memory_gb is not None and not math.isfinite(memory_gb):
        raise ConfigError(f"--gpu-memory {memory_gb}: must be a finite number of GiB")
    option = "--gpus" if gpus else "--gpu-memory" if memory_gb is not None else None
    if option and hardware.device == "cpu":
        raise ConfigError(f"{option}: hardware.device=cpu uses none; choose another profile")
    if gpus == 0 and memory_gb is not None:
        raise ConfigError("--gpu-memory: a machine of --gpus 0 has none; leave one of them out")
    actors = started(config)
    asked = actors.learner.num_learners * hardware.learner_gpus
    asked = max(1, math.ceil(asked + actors.engine.num_engines * hardware.engine_gpus))
    note = None
    if gpus is None and memory_gb is not None:
        gpus = hardware.num_gpus or max(here, asked)
    elif gpus is None and hardware.num_gpus is None and hardware.ray_address is None:
        try:
            resolve_device(hardware, here)
        except ConfigError as error:
            gpus = asked
            note = (
                f"{str(error).partition(';')[0]}, so that train refuses here; planned for {gpus} "
                "(--gpus N --gpu-memory GB: for others)"
            )
    changes: dict[str, float | None] = {"num_gpus": gpus, "memory_gb": memory_gb}
    changes = {key: number for key, number in changes.items() if number is not None}
    hardware = dataclasses.replace(hardware, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(config, hardware=hardware), note


def _gpus_there(config: PolicyConfig) -> int:
    """GPUs of the machine that ``config`` is for, as ``planned``."""
    hardware = config.hardware
    if hardware.device == "cpu":
        return 0
    return detect().gpus if hardware.num_gpus is None else hardware.num_gpus


def gpu_notes(config: PolicyConfig) -> Iterator[str]:
    """Engines that do not start for want of GPUs, and GPUs that nothing uses.

    config: as ``planned``, not yet ``started``. Raises ConfigError as ``resolve_hardware`` does.
    """
    live, there = started(config), _gpus_there(config)
    engines, learners = live.engine.num_engines, live.learner.num_learners
    if 0 < engines < config.engine.num_engines:
        wanted = config.engine.num_engines
        yield (
            f"engine.num_engines={wanted}: {engines} start{'' if engines > 1 else 's'}, as "
            f"{wanted + learners} GPUs are for all of them and {there or 'none'} "
            f"{'is' if there == 1 else 'are'} there (engine.min_engines={live.engine.min_engines})"
        )
    hardware = resolve_hardware(live.hardware, detect(), engines, learners)
    if hardware.device != "cuda" or hardware.num_gpus is None:  # of a cluster, where none is idle
        return
    used = sum(card.count for card in place(hardware, learners, engines, capacity=0))
    if used < there:
        keys = f"engine.num_engines={engines}, " if engines else ""
        turns = ", hardware.alternate=true" if hardware.alternate else ""
        yield (
            f"{there - used} of {there} GPUs {'is' if there - used == 1 else 'are'} not used: "
            f"{keys}learner.num_learners={learners}{turns}"
        )
