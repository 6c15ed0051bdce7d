"""The exceptions of rlforge; each message says what is wrong, where, and how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RlforgeError(Exception):
    """Root of all failures with a message for the user, and the exit code of the command.

    Example:
        >>> ConfigError("learner.batch_size=0: must be above 0").exit_code
        2
    """

    exit_code = 1


class ConfigError(RlforgeError, ValueError):
    """The configuration or the command line is wrong; nothing was started."""

    exit_code = 2


class GameError(RlforgeError):
    """A game could not be made or played; recorded, counted and replaced by the collector."""


class EngineError(RlforgeError):
    """An engine could not answer: a bad request, a policy that does not load, a dead backend."""


class EngineDeadError(EngineError):
    """The engine cannot answer any request: its process must be started again."""


class PolicyLoadError(EngineError):
    """A policy version cannot be loaded: its files are missing, damaged or of another model."""


class CheckpointError(RlforgeError):
    """A checkpoint is missing, incomplete, damaged or does not fit the model."""


class DeploymentError(RlforgeError):
    """A version cannot be deployed or rolled back; the served version is unchanged."""


class StoreError(RlforgeError):
    """A store of decisions is missing, damaged, of another version, or cannot be written."""


class RunError(RlforgeError):
    """A run cannot go on: a component died for good, too many games failed, a lock is held."""


def nearest(name: str, names: Iterable[str], count: int = 3) -> str:
    """``; did you mean a, b?`` for the names closest to ``name``, or an empty string.

    Example:
        >>> nearest("gpro", ["grpo", "reinforce"])
        '; did you mean grpo?'
    """
    close = difflib.get_close_matches(name, sorted(set(names)), n=count, cutoff=0.5)
    return f"; did you mean {', '.join(close)}?" if close else ""
