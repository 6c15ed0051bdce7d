"""Reinforcement learning of language models in text games.

``train`` starts a run, ``load_run`` reads one, ``play_game`` plays. The other names are what
extensions are written with: https://github.com/rlforge/rlforge/blob/main/docs/extending.md.
``__init__.pyi`` lists them; all other names are private and may change in any release.
"""

import importlib
import re
from pathlib import Path

__version__ = "0.1.0"

# One list of public names serves type checkers, editors and this module.
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
# By its text, because to import these modules takes seconds.
_HOMES = {name: home for home, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.M)}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    # torch and Ray take seconds to import: each name is imported on first use.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name], __name__), name)
    # Further uses of the name do not come here.
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
