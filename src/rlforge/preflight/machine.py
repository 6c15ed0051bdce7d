"""The machine that a run starts on, where it may be planned on another one."""

from __future__ import annotations

import dataclasses
import math
from typing import TypeVar

from rlforge.config.schema import PolicyConfig
from rlforge.config.sft import SftConfig
from rlforge.errors import ConfigError
from rlforge.system.hardware import detect, resolve_device

C = TypeVar("C", bound=PolicyConfig)


def started(config: C) -> C:
    """The configuration that the actors start from: supervised fine-tuning has no engine."""
    if not isinstance(config, SftConfig):
        return config
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
