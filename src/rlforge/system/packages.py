"""Packages that only some configurations need, and some that none needs."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from importlib.metadata import requires

from rlforge.errors import ConfigError


def need_packages(key: str, extra: str, *modules: str) -> None:
    """Raise ConfigError where one of ``modules``, which an extra installs, cannot be imported.

    key: the setting that needs them.

    Example:
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
            f"{key}: {', '.join(missing)} {are} not installed; pip install 'rlforge[{extra}]'"
        )


def extra_of(module: str) -> str | None:
    """The extra of rlforge that brings a module, if one does.

    Example:
        >>> extra_of("sklearn"), extra_of("torch")
        ('continuous', None)
    """
    wanted = {"sklearn": "scikit-learn"}.get(module, module.replace("_", "-"))
    for line in requires("rlforge") or ():
        found = re.match(r"([\w-]+).*; extra == ['\"]([\w-]+)['\"]", line)
        if found is not None and found[1] == wanted and found[2] not in ("dev", "docs"):
            return found[2]
    return None


@contextlib.contextmanager
def statistics_hidden() -> Iterator[None]:
    """In the block, imports find neither scipy nor scikit-learn, unless they are loaded already.

    Other threads must not import them meanwhile.

    Example:
        >>> with statistics_hidden():
        ...     hidden = importlib.util.find_spec("scipy") is None
        >>> hidden or "scipy" in sys.modules or "transformers" in sys.modules
        True
    """
    # TextArena's nltk and transformers import both without need: a second in each process. Once
    # transformers is loaded it may rely on them, so then they are not hidden.
    hidden = () if "transformers" in sys.modules else ("scipy", "sklearn")
    absent = [name for name in hidden if name not in sys.modules]
    # A module that is None in ``sys.modules`` cannot be imported.
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # ``find_spec`` imports the package above a module, which may be missing.
        return False
