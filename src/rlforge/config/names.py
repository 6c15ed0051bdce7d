"""Names in a configuration that stand for code, whether rlforge's or a user's.

A Thing of a ``Kind`` is chosen by the name that it has in rlforge (``pool.mode=lagged``), by the
name of an entry point of the group ``rlforge.KIND`` in an installed package, or as
``package.module:Thing``, from the environment or the current directory.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import threading
import traceback
from asyncio import CancelledError
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rlforge.config.unstable_names import spelled_here
from rlforge.errors import ConfigError, RlforgeError, nearest
from rlforge.types import value


@value
class Row:
    """A thing that can be chosen, its origin, and why choosing it fails; empty: it does not."""

    kind: str
    name: str
    target: str
    origin: str
    problem: str = ""


class Kind:
    """Things of one kind: rlforge's, and how others are found.

    Args:
        name: Ends the name of the group of entry points.
        noun, key: Name of such a thing and the key that chooses it, for messages.
        contract: Requirement on a thing, in words.
        built_in: Targets of rlforge's things by name.
        needs: Attributes that a Thing must have.
        called, awaited: Whether it must be callable, and async.
        families: Where functions are that find things called ``FAMILY:NAME``, by family.
        forms: How such names are written.
        chosen: By a configuration, and not used as soon as it is offered.

    Example:
        >>> from rlforge.config.plugins import MODES
        >>> MODES.find("mirror").__name__
        'mirror'
        >>> MODES.problem("miror")
        'no such choice; did you mean mirror? ...
    """

    def __init__(
        self,
        name: str,
        noun: str,
        key: str,
        contract: str,
        built_in: Mapping[str, str],
        *,
        needs: Sequence[str] = (),
        called: bool = True,
        awaited: bool = False,
        families: str = "",
        forms: Sequence[str] = (),
        chosen: bool = True,
    ) -> None:
        self.name, self.noun, self.key, self.contract = name, noun, key, contract
        self._built_in, self._needs, self._called = built_in, needs, called
        self._awaited, self._families, self._chosen = awaited, families, chosen
        self.forms, self._found = tuple(forms), dict[str, Any]()

    def names(self) -> list[str]:
        """All short names, rlforge's first; nothing is imported."""
        return [*self._built_in, *(name for name in self._offered() if name not in self._built_in)]

    @property
    def own(self) -> list[str]:
        return [*self._built_in]

    def find(self, name: str) -> Any:
        """The thing called ``name``; ConfigError where there is none that is usable."""
        try:
            if name not in self._found:
                self._found[name] = self._load(name)
        except _UnusableError as problem:
            raise ConfigError(f"{self.noun} {name!r}: {problem}") from problem.__cause__
        return self._found[name]

    def problem(self, name: str) -> str | None:
        """The reason why ``name`` cannot be chosen, or None."""
        # rlforge's own are sound, and to import them may take seconds.
        if name in self._built_in:
            return None
        try:
            self._load(name)
        except _UnusableError as problem:
            return str(problem)
        return None

    @contextlib.contextmanager
    def trial(self, name: str, kind: type[RlforgeError] = ConfigError) -> Iterator[None]:
        """A block that uses ``name``: errors in the code of an extension become ``kind``."""
        try:
            yield
        # Code of a user may raise SystemExit, too, which would end a run without a word.
        except BaseException as error:
            # An error in rlforge's own things is a fault, whose traceback is needed.
            own = isinstance(error, Exception) and self.has_own(name)
            if own or isinstance(error, RlforgeError) or from_outside(error):
                raise
            raise kind(f"{self.noun} {name!r} fails: {described(error)}") from error

    def has_own(self, name: str) -> bool:
        families = {form.partition(":")[0] for form in self.forms}
        return name in self._built_in or (":" in name and name.partition(":")[0] in families)

    def rows(self) -> Iterator[Row]:
        """Everything with a short name, and what is wrong with it."""
        for name, target in self._built_in.items():
            yield Row(kind=self.name, name=name, target=target, origin="rlforge")
        for form in self.forms:
            yield Row(kind=self.name, name=form, target=self._families, origin="rlforge")
        for name, points in self._offered().items():
            for point in points:
                problem = self.problem(name) or ""
                if name in self._built_in:
                    mend = f"choose it as {point.value}" if self._chosen else "uninstall it"
                    problem = f"hidden: {name} is rlforge's; {mend}"
                yield Row(
                    kind=self.name,
                    name=name,
                    target=point.value,
                    origin=_package(point),
                    problem=problem,
                )

    def _offered(self) -> Mapping[str, Sequence[EntryPoint]]:
        return entry_points_of(f"rlforge.{self.name}")

    def _load(self, name: str) -> Any:
        if name in self._built_in:
            return _import(self._built_in[name])
        family, _, member = name.partition(":")
        if member and self._families and family in (finders := _import(self._families)):
            try:
                return finders[family](member)
            except ConfigError as error:
                # A ConfigError would pass ``find``, which puts the name in front.
                raise _UnusableError(str(error)) from None
        if ":" not in name:
            points = self._offered().get(name, ())
            if not points:
                close = nearest(spelled_here(name), self.names())
                raise _UnusableError(
                    f"no such choice{close} (there are {', '.join(self.names())}; or name your own "
                    "as package.module:Thing)"
                )
            # Packages that offer the same object do not contradict each other.
            if len({point.value for point in points}) > 1:
                choices = " and ".join(f"{_package(point)} ({point.value})" for point in points)
                mend = "choose by what is in brackets" if self._chosen else "uninstall one of them"
                raise _UnusableError(f"two packages offer it: {choices}; {mend}")
            name = points[0].value
        # By name in every process, so that it works in all actors and in resumed runs.
        thing = _import(name)
        missing = [method for method in self._needs if not hasattr(thing, method)]
        lacks = f" (it has no {', '.join(missing)})" if missing else ""
        if missing or (self._called and not callable(thing)):
            raise _UnusableError(f"{_place(thing, name)} is not {self.contract}{lacks}")
        # An object with an async ``__call__`` is itself no coroutine function.
        calls = (thing, type(thing).__call__)
        if self._awaited and not any(map(inspect.iscoroutinefunction, calls)):
            raise _UnusableError(f"{_place(thing, name)} is not {self.contract} (no async def)")
        return thing


class _UnusableError(Exception):
    """The reason why a name cannot be chosen, without the name."""


@cache
def entry_points_of(group: str) -> Mapping[str, Sequence[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    # Sorted, because the order of the folders differs between machines.
    for point in sorted(entry_points(group=group), key=_package):
        found.setdefault(point.name, []).append(point)
    return found


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "?"


def _import(target: str) -> Any:
    """The object at ``package.module:Thing``, or the module where there is no Thing."""
    module_name, colon, attribute = target.partition(":")
    name, here = module_name.strip(), "the working directory, which is gone"
    with contextlib.suppress(FileNotFoundError):
        here = os.getcwd()
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)  # behind the environment: a file here hides no installed package
            importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Any other missing module is one that the extension itself imports.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _UnusableError(
                f"there is no module {error.name}: it is neither installed nor a file in {here}"
            ) from None
        raise _UnusableError(f"importing {name} fails: {described(error)}") from error
    # The top of a module may raise anything, SystemExit included.
    except BaseException as error:
        if from_outside(error):
            raise
        raise _UnusableError(f"importing {name} fails: {described(error)}") from error
    thing: Any = module
    for part in attribute.strip().split(".") if colon else ():
        if not hasattr(thing, part):
            close = nearest(part, [name for name in dir(thing) if not name.startswith("_")])
            raise _UnusableError(
                f"{module.__file__} has no {attribute or 'name after the colon'}{close}"
            )
        thing = getattr(thing, part)
    return thing


def from_outside(error: BaseException) -> bool:
    """Whether an exception is a cancellation or Ctrl-C, and not of the code that it ends."""
    # Ctrl-C reaches the main thread alone: elsewhere the code itself has raised it.
    main = threading.current_thread() is threading.main_thread()
    return isinstance(error, CancelledError) or (main and isinstance(error, KeyboardInterrupt))


def described(error: BaseException) -> str:
    """An error in the code of an extension, with its file and line, in one line."""
    # A message of several lines would break the lines that it stands in.
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, SyntaxError):
        return text  # it has them
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({last.filename}, line {last.lineno})"


def _place(thing: Any, name: str) -> str:
    module = sys.modules.get(getattr(thing, "__module__", None) or name.partition(":")[0])
    return f"{name.partition(':')[2]} of {getattr(module, '__file__', name)}"
