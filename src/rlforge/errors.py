"""The exceptions of rlforge; each message says what is wrong, where, and how to mend it."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


class RlforgeError(Exception):
    """Root of all failures with a message for the user and an exit code.

    Example:
        >>> ConfigError("learner.batch_size=0: must be above 0").exit_code
        2
    """

    exit_code = 1


class ConfigError(RlforgeError, ValueError):
    """The configuration or the command line is wrong; nothing was started.

    Example:
        >>> from rlforge import compose
        >>> compose("kuhn_grpo", "learner.batch_size=0")
        Traceback (most recent call last):
        rlforge.errors.ConfigError: ...learner.batch_size=0...must be 1 or more
    """

    exit_code = 2


class GameError(RlforgeError):
    """A game could not be made or played; recorded, counted and replaced by the collector.

    Example:
        >>> def step(action: str) -> None:
        ...     raise GameError("the board of Quoridor is damaged")
    """


class EngineError(RlforgeError):
    """An engine could not answer: a bad request, a policy that does not load, a dead backend.

    Example:
        >>> issubclass(PolicyLoadError, EngineError)
        True
    """


class PromptTooLongError(EngineError):
    """A prompt leaves no room for an answer in the context of the model that is asked.

    A game that has begun is cut where this happens (``context_limit``).
    """


class EngineDeadError(EngineError):
    """The engine cannot answer any request: its process must be started again."""


class PolicyLoadError(EngineError):
    """A policy version cannot be loaded: its files are missing, damaged or of another model."""


class ExtensionError(RlforgeError):
    """The code of a user failed while it was used; the message has its file and line.

    Example:
        >>> issubclass(ExtensionError, RlforgeError)
        True
    """


class DamagedError(RlforgeError):
    """A file that rlforge wrote is cut short, garbled or something else; see ``reading``.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from rlforge.record.files import read_json
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "pool.json"
        ...     _ = file.write_text("{")
        ...     read_json(file)
        Traceback (most recent call last):
        rlforge.errors.DamagedError: ...pool.json is damaged (...
    """


class CheckpointError(RlforgeError):
    """A checkpoint is missing, incomplete, damaged or does not fit the model.

    Example:
        >>> from pathlib import Path
        >>> from rlforge.system.checkpoint import find_checkpoint
        >>> find_checkpoint(Path("checkpoints"), "step-3")
        Traceback (most recent call last):
        rlforge.errors.CheckpointError: checkpoints/step-3: no such checkpoint...
    """


class DeploymentError(RlforgeError):
    """A version cannot be deployed or rolled back; the served version is unchanged.

    Example:
        >>> DeploymentError("step-3: no answer to 8 of 8 probes").exit_code
        1
    """


class StoreError(RlforgeError):
    """A store of decisions is missing, damaged, of another version, or cannot be written.

    Example:
        >>> StoreError("store/: written by version 2, this is version 1").exit_code
        1
    """


class RunError(RlforgeError):
    """A run cannot go on: a component died for good, too many games failed, a lock is held.

    Example:
        >>> RunError("half of the last 100 games failed").exit_code
        1
    """


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural unless it is one.

    Example:
        >>> counted(1, "window"), counted(2, "update"), counted(0, "turn"), counted(12000, "game")
        ('1 window', '2 updates', '0 turns', '12,000 games')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def raise_all(problems: Iterable[object]) -> None:
    """Raise one ConfigError for all problems, if there are any, a line each.

    Example:
        >>> raise_all([])
        >>> raise_all(["seed=-1: must be 0 or more", "name=: must not be empty"])
        Traceback (most recent call last):
        rlforge.errors.ConfigError: seed=-1: must be 0 or more
        name=: must not be empty
    """
    if lines := collected(problems):
        raise ConfigError("\n".join(lines))


def collected(problems: Iterable[object]) -> list[str]:
    """The texts of ``problems``, each once; a ConfigError that is raised on the way ends them.

    Example:
        >>> collected(["seed=-1: must be 0 or more", "seed=-1: must be 0 or more"])
        ['seed=-1: must be 0 or more']
    """
    # Several checks may meet the same fault.
    found: dict[str, None] = {}
    try:
        found.update((str(problem), None) for problem in problems)
    except ConfigError as error:  # after others it is one of their consequences
        found = found or {str(error): None}
    return list(found)


def refusals(*calls: Callable[[], object]) -> Iterator[ConfigError]:
    """The ConfigErrors that ``calls`` raise, each called once.

    Example:
        >>> [str(error) for error in refusals(lambda: raise_all(["seed=-1"]), dict)]
        ['seed=-1']
    """
    for call in calls:
        try:
            call()
        except ConfigError as error:
            yield error


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or the name of its class.

    Example:
        >>> first_line(OSError("no such file\\nat line 3")), first_line(KeyboardInterrupt())
        ('no such file', 'KeyboardInterrupt')
    """
    # KeyboardInterrupt and the like have no message.
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def command_line(*words: object) -> str:
    """A command of rlforge as it is typed into a shell.

    Example:
        >>> from pathlib import Path
        >>> command_line("report", Path("runs/my game"))
        "rlforge report 'runs/my game'"
    """
    return shlex.join(["rlforge", *(_not_an_option(word) for word in words)])


def _not_an_option(word: object) -> str:
    text = str(word)
    return f"./{text}" if isinstance(word, Path) and text.startswith("-") else text


def check_type(given: object, *taken: type, what: str) -> None:
    """Raise TypeError for an argument of other types than ``taken``; what: a sentence on these.

    Example:
        >>> check_type("kuhn", str, what="env is the name of a game")
        >>> check_type({"id": "kuhn"}, str, what="env is the name of a game")
        Traceback (most recent call last):
        TypeError: env is the name of a game; this is a dict: {'id': 'kuhn'}
    """
    if not isinstance(given, taken):
        # The whole of a table or a tensor would hide the sentence.
        raise TypeError(f"{what}; this is a {type(given).__name__}: {given!r:.100}")


def nearest(name: str, names: Iterable[str], count: int = 3) -> str:
    """``; did you mean a, b?`` for the names closest to ``name``, or nothing.

    Example:
        >>> nearest("gpro", ["gspo", "grpo", "reinforce"])
        '; did you mean grpo?'
    """
    close = difflib.get_close_matches(name, sorted(set(names)), n=count, cutoff=0.5)
    likeness = {one: difflib.SequenceMatcher(None, one, name).ratio() for one in close}
    close = [one for one in close if likeness[one] > _AS_CLOSE * max(likeness.values())]
    # Letters in another order are the likeliest slip.
    swapped = [one for one in close if sorted(one) == sorted(name)]
    return f"; did you mean {', '.join(swapped or close)}?" if close else ""


#: A name is not offered together with one that is much closer.
_AS_CLOSE = 0.85
