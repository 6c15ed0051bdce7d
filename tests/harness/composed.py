"""Configurations of which Hydra composes the groups once; values are set on copies of them."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from rlforge.config.compose import Composed, compose
from rlforge.config.overrides import override_problems
from rlforge.config.roots import compose_any, compose_run
from rlforge.config.rules import Group, changed
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.config.sft import SftConfig
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.config.serving import ServingConfig
from rlforge.errors import ConfigError

#: Command -> the class of its configurations.
ROOTS: dict[str, type[PolicyConfig]] = {"train": RunConfig, "sft": SftConfig}
ROOTS |= {"continuous": ContinuousConfig, "serve": ServingConfig}


def _by_hydra(lines: tuple[str, ...], root: type[PolicyConfig] | None) -> Composed[Any]:
    if root is None:
        return compose_any(lines)
    return compose(lines, root=root) if root is ServingConfig else compose_run(lines, None, root)


_groups = functools.cache(_by_hydra)


#: Other lines choose groups, leave something out, or add nothing to a mapping, which is refused.
VALUE = r"\w+\.[\w.]+=|(name|seed)=|(policies|prompts)={[^}]"


def composed(*lines: str, root: type[PolicyConfig] | None = None) -> Composed[Any]:
    """Compose as the command of ``root`` does, or without one as the lines describe.

    Tests only read it. Lines that Hydra would refuse are given to it, for its message.
    """
    values = [line for line in lines if re.match(VALUE, line)]
    base = _groups(tuple(line for line in lines if line not in values), root)
    config = base.config
    if any(override_problems(values, type(config))):
        return _by_hydra(lines, root)
    try:
        for line in values:
            group, _, assignment = line.partition(".")
            if isinstance(old := getattr(config, group, None), Group):
                new = changed(old, [assignment])
                config = dataclasses.replace(config, **{group: new})
            else:
                config = changed(config, [line])
    except (ConfigError, OmegaConfBaseException):
        return _by_hydra(lines, root)
    return dataclasses.replace(base, config=config, overrides=lines)
