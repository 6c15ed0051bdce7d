"""A population's life on disk, so that a killed run goes on in the same market.

Pickle writes it, and reads it with only the classes that a market is made of: a file that wants
anything else is refused.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from rlforge.continuous.population import SimulationState
from rlforge.errors import RunError
from rlforge.system.files import atomic_write

#: Beside the classes of these modules, what they keep their state in.
_MODULES = ("rlforge.market.", "rlforge.config.market", "rlforge.continuous.population")
_PLAIN = {
    ("collections", "deque"),
    ("random", "Random"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
}


def save_life(life: SimulationState, path: Path) -> None:
    """Write ``life`` to ``path``, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, pickle.dumps(life, protocol=pickle.HIGHEST_PROTOCOL), durable=True)


def load_simulation_state(path: Path) -> SimulationState:
    """Read it back. Raises RunError when it is missing, damaged, or no population's life."""
    try:
        life = _Reader(io.BytesIO(path.read_bytes())).load()
    except FileNotFoundError:
        raise RunError(f"{path} is missing: the run cannot be resumed") from None
    except Exception as error:  # whatever bytes that are no pickle lead to
        raise RunError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(life, SimulationState):
        raise RunError(f"{path} holds a {type(life).__name__}, not a population's life")
    return life


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        ours = any(module == known or module.startswith(known) for known in _MODULES)
        if (ours and "." not in name) or (module, name) in _PLAIN:
            found = super().find_class(module, name)
            if (module, name) in _PLAIN or isinstance(found, type):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a market")
