"""Packages that only some configurations need."""

from __future__ import annotations

import importlib.util

from rlforge.errors import ConfigError


def need_packages(key: str, extra: str, *modules: str) -> None:
    """Raise ConfigError where one of ``modules`` cannot be imported.

    key: the setting that needs them. extra: of rlforge, that installs them.

    Example:
        >>> need_packages("tracker.wandb_project", "wandb", "json")
        >>> need_packages("tracker.wandb_project", "wandb", "no_such_module")
        Traceback (most recent call last):
        ...
        rlforge.errors.ConfigError: tracker.wandb_project: no_such_module is not installed; pip \
install 'rlforge[wandb]'
    """
    missing = [module for module in modules if not _found(module)]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise ConfigError(
            f"{key}: {' and '.join(missing)} {are} not installed; pip install 'rlforge[{extra}]'"
        )


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it
        return False
