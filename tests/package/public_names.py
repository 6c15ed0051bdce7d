"""The public names of rlforge with their signatures, as ``public_names.txt`` records them.

``python tests/package/public_names.py`` writes that file. It refuses while the section Unreleased
of CHANGELOG.md does not name each change in backticks.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import rlforge

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("public_names.txt")
CHANGELOG = ROOT / "CHANGELOG.md"


def home(name: str) -> Any:
    """The module that defines a public name."""
    found = getattr(rlforge, name)
    if inspect.isclass(found) or inspect.isfunction(found):
        return importlib.import_module(found.__module__)
    stub = Path(inspect.getfile(rlforge)).with_suffix(".pyi").read_text()
    (module,) = re.findall(rf"from (\S+) import {name} as", stub)
    return importlib.import_module(module, "rlforge")


def docstring(name: str) -> str:
    """Of a class or function; of another name the text below its assignment; empty if none."""
    found = getattr(rlforge, name)
    if inspect.isclass(found) or inspect.isfunction(found):
        return inspect.cleandoc(found.__doc__ or "")
    body = ast.parse(inspect.getsource(home(name))).body
    for statement, text in itertools.pairwise(body):
        targets = statement.targets if isinstance(statement, ast.Assign) else ()
        named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        if named and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            return inspect.cleandoc(str(text.value.value))
    return ""


def signatures(name: str) -> list[str]:
    """Lines that describe a public name: of classes also their public attributes and methods."""
    found = getattr(rlforge, name)
    if inspect.isfunction(found):
        return [f"{name}{_signature(found)}"]
    if not inspect.isclass(found):
        return [f"{name} = {found}".replace("typing.", "")]
    bases = ", ".join(base.__name__ for base in found.__bases__ if base is not object)
    members: dict[str, str] = {}
    for cls in reversed(found.__mro__):
        if cls.__module__.startswith("rlforge."):
            members |= _members(cls)
    head = f"class {name}({bases})" if bases else f"class {name}"
    return [head, *(f"    {line}" for line in members.values())]


def _members(cls: type) -> dict[str, str]:
    """Name -> line of what ``cls`` itself defines."""
    lines = {}
    made = dataclasses.is_dataclass(cls) or getattr(cls, "_is_protocol", False)
    if "__init__" in vars(cls) and not made:
        lines["__init__"] = f"__init__{_signature(cls.__init__)}"
    for name, kind in vars(cls).get("__annotations__", {}).items():
        lines[name] = f"{name}: {kind}{_default(cls, name)}"
    for name, member in vars(cls).items():
        if name.startswith("_") or name in lines or inspect.ismemberdescriptor(member):
            continue
        if isinstance(member, property):
            kind = inspect.signature(member.fget).return_annotation
            lines[name] = f"{name}: {kind}  # property"
        elif isinstance(member, classmethod | staticmethod):
            mark = type(member).__name__
            lines[name] = f"{name}{_signature(member.__func__)}  # {mark}"
        elif inspect.isfunction(member):
            mark = "async " if inspect.iscoroutinefunction(member) else ""
            lines[name] = f"{mark}{name}{_signature(member)}"
        elif isinstance(member, bool | int | str):
            lines[name] = f"{name} = {member!r}"
        else:
            lines[name] = f"{name}: {type(member).__name__}"
    return {n: line for n, line in lines.items() if n == "__init__" or not n.startswith("_")}


def _default(cls: type, name: str) -> str:
    fields = vars(cls).get("__dataclass_fields__", {})
    if name not in fields or fields[name].default is dataclasses.MISSING:
        factory = name in fields and fields[name].default_factory is not dataclasses.MISSING
        return " = ..." if factory else ""
    return f" = {fields[name].default!r}"


class _Plain(str):
    """An annotation that is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(function: Any) -> str:
    shown = inspect.signature(function)
    parameters = [
        one.replace(annotation=_Plain(one.annotation)) if one.annotation is not one.empty else one
        for one in shown.parameters.values()
    ]
    returned = shown.return_annotation
    returned = returned if returned is shown.empty else _Plain(returned)
    return str(shown.replace(parameters=parameters, return_annotation=returned))


def recorded_names(text: str) -> dict[str, str]:
    """Name -> its lines, of a recorded text."""
    parts = re.split(r"\n(?=\S)", text.strip())
    found: dict[str, str] = {}
    for part in parts:
        match = re.match(r"(?:class )?(\w+)", part)
        assert match is not None
        found[match.group(1)] = part
    return found


def render() -> str:
    """The text of ``public_names.txt``."""
    return "\n".join(line for name in rlforge.__all__ for line in signatures(name)) + "\n"


def changed(before: str, after: str) -> list[str]:
    """Names that were added, removed or have other signatures."""
    old, new = recorded_names(before), recorded_names(after)
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))


def unnamed(before: str, after: str, changelog: str) -> list[str]:
    """Changed names that the section Unreleased does not name in backticks."""
    section = changelog.split("## [Unreleased]")[1].split("\n## ")[0]
    return [name for name in changed(before, after) if f"`{name}`" not in section]


def main() -> None:
    before = RECORDED.read_text() if RECORDED.exists() else ""
    missing = unnamed(before, render(), CHANGELOG.read_text()) if before else []
    if missing:
        sys.exit(f"CHANGELOG.md, Unreleased, does not name: {', '.join(missing)}")
    RECORDED.write_text(render())


if __name__ == "__main__":
    main()
