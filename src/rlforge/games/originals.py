"""Prompt templates and extractions of UnstableBaselines, SPIRAL and TextArena, from the packages.

``unstable:NAME`` and ``spiral:NAME`` are what the installed package calls NAME.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rlforge.errors import ConfigError, nearest
from rlforge.games.actions import BOXED, Extraction, Extractor
from rlforge.games.base import View
from rlforge.games.markup import Markup, Message
from rlforge.games.prompts import Template
from rlforge.types import value


@value
class OneTurn(Template):
    """A template of another package: an instruction, and the observation as it is."""

    instruction: str = ""

    def messages(self, view: View, request: str) -> list[Message]:
        system = [{"role": "system", "content": self.instruction}] if self.instruction else []
        return [*system, {"role": "user", "content": view.observation}]

    def reply(self, view: View, request: str) -> str:
        return view.observation if view.news is None else view.news


@value
class TextAndFormat(Extractor):
    """An extraction that always finds an action, and judges the format apart."""

    judge: Callable[[str], tuple[str, Mapping[str, bool]]]

    def extract(self, text: str, legal_actions: Sequence[str] | None = None) -> Extraction:
        action, feedback = self.judge(text)
        return Extraction(action=action, well_formed=all(feedback.values()))


def unstable_template(name: str) -> Template:
    """The template ``unstable:NAME``; ConfigError without the package, or for another name."""
    module = _module("unstable", "utils/templates.py", "unstable-rl", "template", name)
    return _one_turn(_entry(module, "OBSERVATION_FORMATTING", "template", name))


def unstable_extraction(name: str) -> Extractor:
    module = _module("unstable", "utils/templates.py", "unstable-rl", "extraction", name)
    judge = _entry(module, "ACTION_EXTRACTION", "extraction", name)
    return TextAndFormat(
        judge=judge, read=lambda text: judge(text)[0], request="", feedback="", write=BOXED.write
    )


def spiral_template(name: str) -> Template:
    module = _module("spiral", "core/template.py", "spiral-rl", "template", name)
    return _one_turn(_entry(module, "TEMPLATE_FACTORY", "template", name))


def spiral_extraction(name: str) -> Extractor:
    module = _module("spiral", "core/utils.py", "spiral-rl", "extraction", name)
    functions = {_SPIRAL_BOXED: vars(module).get(_SPIRAL_BOXED, BOXED.read)}
    read = _named(functions, "spiral-rl", "extraction", name)
    return Extractor(
        read=lambda text: read(text) or None, request="", feedback=BOXED.feedback, write=BOXED.write
    )


def textarena_template(name: str) -> Template:
    from textarena.agents import basic_agents

    text = _named({"agent": basic_agents.STANDARD_GAME_PROMPT}, "textarena", "template", name)
    return OneTurn(instruction=text, markup=None)


_SPIRAL_BOXED = "extract_boxed_answer"


def _one_turn(write: Callable[[str], str]) -> Template:
    return OneTurn(markup=Markup(user=write("{content}"), assistant="{content}"))


def _entry(module: ModuleType, table: str, noun: str, name: str) -> Any:
    if module is _ABSENT:
        return str if noun == "template" else lambda text: (BOXED.read(text) or text, {})
    return _named(getattr(module, table), module.__name__, noun, name)


def _named(things: Mapping[str, Any], package: str, noun: str, name: str) -> Any:
    if name not in things:
        raise ConfigError(
            f"{package} has no {noun} {name!r}{nearest(name, things)} "
            f"(there are {', '.join(things)})"
        )
    return things[name]


def _module(package: str, file: str, project: str, noun: str, name: str) -> ModuleType:
    """The module in ``file`` of an installed package. noun, name: purpose, for messages."""
    found = importlib.util.find_spec(package)
    places = (found.submodule_search_locations if found else None) or ()
    for place in places:
        if (path := Path(place, file)).is_file():
            # Only this file is executed: the package itself would import engines and trainers.
            return _executed(path, project)
    absent = f"is part of {project}, which is not installed; pip install --no-deps {project}"
    if (noted := _NOTED.get()) is None:
        raise ConfigError(f"it {absent}")
    noted[noun, name] = f"the {noun} {package}:{name} {absent}"
    return _ABSENT


@contextmanager
def absent_noted() -> Iterator[Mapping[Any, str]]:
    """Inside it, a package that is not installed gives a note, no error."""
    noted: dict[Any, str] = {}
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


_NOTED: ContextVar[dict[Any, str] | None] = ContextVar("absent", default=None)
# An absent package has every template and extraction while notes are taken; they act as ``boxed``.
_ABSENT = ModuleType("absent")


@lru_cache(maxsize=16)
def _executed(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TEMPLATES = {
    "unstable": unstable_template,
    "spiral": spiral_template,
    "textarena": textarena_template,
}
EXTRACTIONS = {"unstable": unstable_extraction, "spiral": spiral_extraction}
