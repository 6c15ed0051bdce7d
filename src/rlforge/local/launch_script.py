"""Reads a script without executing it: its calls, and their arguments where they are literals."""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from rlforge.errors import ConfigError
from rlforge.types import value


@value
class Unread:
    """An expression that only running the script would give. source: its text."""

    source: str


@value
class Call:
    """A call. path: dotted, as ``unstable.Tracker`` whatever it was imported as, without Ray's
    ``options`` and ``remote``.

    name: the last part of it. arguments, keywords: literals, further calls and ``Unread``.
    """

    path: str
    line: int
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def named(self, order: Iterable[str]) -> dict[str, Any]:
        """All arguments by name; order: the names of those without one."""
        return {**dict(zip(order, self.arguments, strict=False)), **self.keywords}


def calls_of(script: Path) -> list[Call]:
    """The calls of a script, inner ones before those that they are arguments of.

    Names stand for what was assigned to them before, at any level; of branches all are read.
    Raises ConfigError for a file that cannot be read, or is not Python.

    Example:
        >>> import tempfile
        >>> script = Path(tempfile.mkdtemp(), "run.py")
        >>> _ = script.write_text("SIZE = 384\\nlearner = Learner.remote(batch_size=2 * SIZE)")
        >>> calls_of(script)
        [Call(path='Learner', line=2, arguments=(), keywords={'batch_size': 768})]
    """
    reader = _Reader()
    try:
        reader.visit(ast.parse(script.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{script}: cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise ConfigError(f"{script}{line}: is not Python 3: {error.msg}") from None
    except ValueError as error:
        raise ConfigError(f"{script}: is not Python 3: {error}") from None
    except (RecursionError, MemoryError):  # Python's parser has both
        raise ConfigError(f"{script}: is nested too deeply to be read") from None
    return reader.calls


_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class _Reader(ast.NodeVisitor):
    """Walks the statements in their order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._known: dict[str, Any] = {}
        self._aliases: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        self._aliases |= {one.asname: one.name for one in node.names if one.asname}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for one in node.names:
            self._aliases[one.asname or one.name] = f"{node.module}.{one.name}"

    def visit_Assign(self, node: ast.Assign) -> None:
        found = self._read(node.value)
        for target in node.targets:
            self._bind(target, found)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, self._read(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._read(node.value)
        self._bind(node.target, Unread(source=ast.unparse(node)))

    def visit_For(self, node: ast.For) -> None:
        self._read(node.iter)
        self._bind(node.target, Unread(source=ast.unparse(node.target)))
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            self._read(node)
        else:
            super().generic_visit(node)

    def _bind(self, target: ast.expr, found: Any) -> None:
        if isinstance(target, ast.Name):
            self._known[target.id] = found
        elif isinstance(target, ast.Tuple | ast.List):
            items = found if isinstance(found, list | tuple) else ()
            same = len(items) == len(target.elts)
            for place, one in enumerate(target.elts):
                self._bind(one, items[place] if same else Unread(source=ast.unparse(one)))
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            table, key = self._known.get(target.value.id), self._read(target.slice)
            if isinstance(table, dict) and isinstance(key, str):  # cfg["temperature"] = 1.0
                self._known[target.value.id] = {**table, key: found}

    def _read(self, node: ast.expr) -> Any:
        """The value of an expression, or ``Unread``; its calls are noted."""
        reads = getattr(self, f"_read_{type(node).__name__}", None)
        if reads is None:
            for inner in ast.iter_child_nodes(node):
                self.visit(inner)
            return Unread(source=ast.unparse(node))
        return reads(node)

    def _read_Constant(self, node: ast.Constant) -> Any:  # noqa: N802
        return node.value

    def _read_Name(self, node: ast.Name) -> Any:  # noqa: N802
        return self._known.get(node.id, Unread(source=node.id))

    def _read_List(self, node: ast.List) -> Any:  # noqa: N802
        return self._items(node.elts)

    def _read_Tuple(self, node: ast.Tuple) -> Any:  # noqa: N802
        return tuple(self._items(node.elts))

    def _items(self, nodes: Iterable[ast.expr]) -> list[Any]:
        """The values of the items of a list; ``*ITEMS`` are put in their place."""
        items: list[Any] = []
        for node in nodes:
            found = self._read(node.value if isinstance(node, ast.Starred) else node)
            spread = isinstance(node, ast.Starred) and isinstance(found, list | tuple)
            items += found if spread else [found]
        return items

    def _read_Dict(self, node: ast.Dict) -> Any:  # noqa: N802
        table: dict[Any, Any] = {}
        for key, inner in zip(node.keys, node.values, strict=True):
            found = self._read(inner)
            name = None if key is None else self._read(key)
            if key is None and isinstance(found, dict):
                table |= found
            elif isinstance(name, str):
                table[name] = found
            else:
                return Unread(source=ast.unparse(node))
        return table

    def _read_Subscript(self, node: ast.Subscript) -> Any:  # noqa: N802
        table, key = self._read(node.value), self._read(node.slice)
        try:
            return table[key]
        except (TypeError, LookupError):
            return Unread(source=ast.unparse(node))

    def _read_Await(self, node: ast.Await) -> Any:  # noqa: N802
        return self._read(node.value)

    def _read_UnaryOp(self, node: ast.UnaryOp) -> Any:  # noqa: N802
        found = self._read(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(found, int | float):
            return -found
        return Unread(source=ast.unparse(node))

    def _read_BinOp(self, node: ast.BinOp) -> Any:  # noqa: N802
        left, right = self._read(node.left), self._read(node.right)
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        joined = type(left) is type(right) and isinstance(left, str | list)
        known = _OPERATORS.get(type(node.op))
        if known and (numbers or (joined and isinstance(node.op, ast.Add))):
            with contextlib.suppress(ArithmeticError):
                return known(left, right)
        return Unread(source=ast.unparse(node))

    def _read_JoinedStr(self, node: ast.JoinedStr) -> Any:  # noqa: N802
        parts = [
            self._read(one.value) if isinstance(one, ast.FormattedValue) else self._read(one)
            for one in node.values
        ]
        plain = all(isinstance(part, str | int | float) for part in parts)
        return "".join(map(str, parts)) if plain else Unread(source=ast.unparse(node))

    def _read_Call(self, node: ast.Call) -> Any:  # noqa: N802
        function: ast.expr = node.func
        if isinstance(function, ast.Attribute) and function.attr == "remote":
            function = function.value
        made = function.func if isinstance(function, ast.Call) else None
        if isinstance(made, ast.Attribute) and made.attr == "options":
            function = made.value
        if not isinstance(function, ast.Name | ast.Attribute):
            self._read(function)
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
            self._read(function.value)  # build(…).start(…)
        arguments = tuple(self._items(node.args))
        keywords = {}
        for one in node.keywords:
            found = self._read(one.value)
            if one.arg is not None:
                keywords[one.arg] = found
            elif isinstance(found, dict):
                keywords |= found
        first, dot, rest = ast.unparse(function).partition(".")
        path = f"{self._aliases.get(first, first)}{dot}{rest}"
        call = Call(path=path, line=node.lineno, arguments=arguments, keywords=keywords)
        self.calls.append(call)
        if call.path == "dict" and not arguments:
            return dict(keywords)
        if call.name == "get" and len(arguments) == 1:  # ray.get(…)
            return arguments[0]
        return call
