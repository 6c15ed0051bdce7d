"""unstable-rl without vLLM: its modules one by one."""

from __future__ import annotations

import importlib.util
import sys


def register_package() -> None:
    """Make ``unstable`` importable without running its ``__init__``, which imports vLLM.

    Raises ModuleNotFoundError where it is not installed.
    """
    spec = importlib.util.find_spec("unstable")
    if spec is None:
        raise ModuleNotFoundError("no package unstable", name="unstable")
    sys.modules["unstable"] = importlib.util.module_from_spec(spec)
