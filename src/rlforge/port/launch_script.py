"""Reads a script without executing it: its calls, with the values that are known for sure."""

from __future__ import annotations

import ast
import builtins
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from textwrap import shorten
from typing import Any

from rlforge.errors import ConfigError
from rlforge.port.script_values import (
    REST,
    Call,
    Function,
    Names,
    Unread,
    bound,
    computed,
    doubtful,
    forget,
    given_to,
    unread,
)


def calls_of(script: Path) -> list[Call]:
    """The calls of a script, inner ones before those that they are arguments of.

    Raises ConfigError for a file that cannot be read, or is not Python.

    Example:
        >>> import tempfile
        >>> script = Path(tempfile.mkdtemp(), "run.py")
        >>> _ = script.write_text("from rl import Learner\\nSIZE = 384\\nLearner.remote(2 * SIZE)")
        >>> [(call.path, call.line, call.arguments) for call in calls_of(script)]
        [('rl.Learner', 3, (768,))]
    """
    reader = _Reader()
    try:
        reader.read(ast.parse(script.read_text(encoding="utf-8")))
        # Values that are nested too deeply raise here, where that is explained, not in the caller.
        any(any(unread(call)) for call in reader.calls)
    except OSError as error:
        raise ConfigError(f"{script}: cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise ConfigError(f"{script}{line}: is not Python 3: {error.msg}") from None
    except ValueError as error:
        raise ConfigError(f"{script}: is not Python 3: {error}") from None
    except (RecursionError, MemoryError):  # Python's parser raises both
        raise ConfigError(f"{script}: is nested too deeply, or too long, to be read") from None
    return reader.calls


_BUILTINS: Mapping[str, Callable[..., Any]] = {
    one.__name__: one for one in (dict, list, tuple, int, float, str, bool)
}
#: Modules and functions that leave what they are given as it is.
_HARMLESS = {"unstable", "ray", "json", "yaml", "logging", "pprint", "wandb", *dir(builtins)}


class _Reader:
    """Follows the statements in the order in which they run."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._aliases: dict[str, str] = {}
        self._globals: Names = {"__name__": "__main__"}
        self._own = self._globals
        self._functions: dict[str, Function] = {}  # keys are the sources of their ``Unread``
        self._waiting: list[str] = []  # functions that no statement has called yet
        self._running: list[str] = []
        self._returned: list[Any] = []
        self._doubt = ""
        self._loose = False  # the code that is read may run never, or often
        self._left = 50_000  # statements that may still be read

    def read(self, module: ast.Module) -> None:
        self._block(module.body)
        # Something unknown, such as a command line, may call the functions that no statement calls.
        while self._waiting:
            source = self._waiting[0]
            self._doubt = f"a call of {source}"
            self._run(source, {})

    def _run(self, source: str, given: Names) -> Any:
        """The value that a call returns. given: parameters -> arguments; others are unread."""
        node = self._functions[source]
        self._waiting = [one for one in self._waiting if one != source]
        self._running.append(source)  # recursion is not followed, as it might not end
        outer, self._own = self._own, bound([node.args]) | given
        before, self._returned = self._returned, []
        self._block(node.body)
        found = self._returned or [None]
        self._own, self._returned = outer, before
        self._running.pop()
        return found[0] if len(found) == 1 else Unread(source=f"{node.name}(…)")

    def _perhaps(self, why: str, nodes: Sequence[ast.AST], *, own: bool = False) -> None:
        """Read nodes that may run never, or often. own: the names that they bind do not stay."""
        outer, doubt, loose = self._own, self._doubt, self._loose
        self._own, self._doubt, self._loose = outer | bound(nodes), why, True
        self._block(nodes)
        self._own, self._doubt, self._loose = outer, doubt, loose
        if not own:
            outer |= bound(nodes, f" ({why})")

    def _block(self, nodes: Iterable[ast.AST]) -> bool:
        """Read statements and parts of them; whether one, the last that is read, leaves."""
        for node in nodes:
            if isinstance(node, ast.stmt) and self._do(node):
                return True
            if isinstance(node, ast.expr):
                self._read(node)
            elif not isinstance(node, ast.stmt):
                self._block(ast.iter_child_nodes(node))
        return False

    def _do(self, node: ast.stmt) -> bool:
        self._left -= 1
        if not self._left:  # loops in loops might take for ever
            raise RecursionError
        where = _place(node)
        match node:
            case ast.Import(names=names):
                for one in names:
                    first = one.name.partition(".")[0]
                    self._name(one.asname or first, one.name if one.asname else first)
            case ast.ImportFrom(module=module, names=names):
                for one in names:
                    # A star import does not say which names it brings: scripts that use
                    # it call ``build``.
                    every = one.name == "*" and module == "unstable"
                    name = "build" if every else one.name
                    self._name(one.asname or name, f"{module}.{name}")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self._define(node)
                self._own[name] = Unread(source=f"{name} of line {node.lineno}")
            case ast.ClassDef(name=name, body=body):
                for part in body:
                    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                        self._define(part)
                    else:
                        self._perhaps(where, [part], own=True)
                self._name(name, name)
            case ast.Assign(targets=targets):
                found = self._read(node.value)
                for target in targets:
                    self._bind(target, found)
            case ast.AnnAssign(target=target, value=given):
                if given is not None:
                    self._bind(target, self._read(given))
            case ast.AugAssign(target=target, op=op):
                held, more = self._read(target), self._read(node.value)
                if isinstance(held, list | dict):  # Python changes these in place
                    way = "extend" if isinstance(held, list) else "update"
                    self._method(held, way, [more], {}, node)
                else:
                    self._bind(target, computed(op, held, more, node))
            case ast.Delete(targets=targets):
                for target in targets:
                    self._bind(target, Unread(source=ast.unparse(node)))
            case ast.Global(names=names):  # other functions may set them
                self._globals |= {name: Unread(source=name) for name in names}
            case ast.Return(value=given):
                found = None if given is None else self._read(given)
                self._returned.append(Unread(source=where) if self._loose else found)
                return True
            case ast.Raise() | ast.Break() | ast.Continue():
                return True
            case ast.Expr(value=given):
                found = self._read(given)
                return isinstance(found, Call) and found.path in ("sys.exit", "exit", "quit")
            case ast.If(test=test, body=body, orelse=orelse):
                found = self._read(test)
                if not doubtful(found):
                    return self._block(body if found else orelse)
                self._perhaps(where, body)
                self._perhaps(f"{where}, else", orelse)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                before = dict(self._own)
                ended = self._block([*body, *orelse])
                why = f"an exception in line {node.lineno}"
                # Where the exception came first a name still has the value that it had before.
                for name in bound(body) if handlers else ():
                    if before.get(name, ...) not in (..., self._own.get(name)):
                        self._own[name] = Unread(source=f"{name} ({why})")
                for handler in handlers:
                    self._perhaps(why, handler.body)
                return self._block(finalbody) or (ended and not handlers)
            case ast.With(items=items, body=body):
                for item in items:
                    self._read(item.context_expr)
                self._own |= bound(items)
                return self._block(body)
            case ast.For(target=target, body=body, orelse=orelse):
                items = self._read(node.iter)
                leaving = (ast.Break, ast.Continue, ast.Return)
                leaves = any(isinstance(one, leaving) for one in ast.walk(node))
                if isinstance(items, list | tuple) and not leaves:
                    for item in tuple(items):
                        self._bind(target, item)
                        self._block(body)
                    return self._block(orelse)
                self._perhaps(where, [target, *body, *orelse])
            case _:
                self._perhaps(where, [*ast.iter_child_nodes(node)])
        return False

    def _define(self, node: Function) -> None:
        source = f"{node.name} of line {node.lineno}"
        if self._own is self._globals:
            self._functions[source] = node
            self._waiting.append(source)
        else:  # an inner function sees the names of the outer one, so it is read here
            self._perhaps(f"a call of {source}", [node.args, *node.body], own=True)
            outer = [one for one in ast.walk(node) if isinstance(one, ast.Nonlocal)]
            self._own |= {name: Unread(source=name) for one in outer for name in one.names}

    def _name(self, name: str, path: str) -> None:
        self._aliases[name] = path
        self._own.pop(name, None)
        if self._loose and name in self._globals:
            self._globals[name] = Unread(source=name)

    def _bind(self, target: ast.expr, found: Any) -> None:
        match target:
            case ast.Name(id=name):
                self._own[name] = found
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                known = isinstance(found, list | tuple) and len(found) == len(parts)
                items = found if known else [Unread(source=ast.unparse(one)) for one in parts]
                for one, item in zip(parts, items, strict=True):
                    self._bind(one, item)
            case ast.Starred(value=inner):
                self._bind(inner, Unread(source=ast.unparse(target)))
            case ast.Subscript(value=inner, slice=index):
                held, key = self._read(inner), self._read(index)
                if isinstance(held, list | dict):
                    self._method(held, "__setitem__", [key, found], {}, target)

    def _read(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str()):
                return node.value
            case ast.Name() | ast.Attribute():
                return self._target(node)[1]
            case ast.List(elts=parts):
                return self._items(parts)
            case ast.Tuple(elts=parts):
                return tuple(self._items(parts))
            case ast.Dict(keys=keys, values=parts):
                return self._table(zip(keys, parts, strict=True))
            case ast.Call():
                return self._call(node)
            case ast.Await(value=inner):
                return self._read(inner)
            case ast.NamedExpr(target=target, value=inner):
                self._bind(target, found := self._read(inner))
                return found
            case ast.Subscript(value=inner, slice=index):
                held, key = self._read(inner), self._read(index)
                if not (doubtful(key) or (isinstance(held, dict) and REST in held)):
                    with contextlib.suppress(TypeError, LookupError):
                        return held[key]
            case ast.UnaryOp(op=op, operand=inner):
                found = self._read(inner)
                if isinstance(op, ast.Not) and not doubtful(found):
                    return not found
                if isinstance(op, ast.USub) and isinstance(found, int | float):
                    return -found
            case (
                ast.BinOp(left=left, op=op, right=right)
                | ast.Compare(left=left, ops=[op], comparators=[right])
            ):
                return computed(op, self._read(left), self._read(right), node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                if not doubtful(found := self._read(test)):
                    return self._read(body if found else orelse)
                self._perhaps(_place(node), [body, orelse])
            case ast.JoinedStr(values=parts):
                texts = [self._read(one) for one in parts]
                if all(isinstance(text, str) for text in texts):
                    return "".join(texts)
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=given):
                found, spec = self._read(inner), "" if given is None else self._read(given)
                if isinstance(found, str | int | float) and isinstance(spec, str):
                    with contextlib.suppress(ValueError):
                        return format(found, spec)
            case _:
                # Parameters of a lambda exist inside of it only, so that variables of the same name
                # outside keep their values.
                own = isinstance(node, ast.Lambda)
                self._perhaps(_place(node), [*ast.iter_child_nodes(node)], own=own)
        return Unread(source=ast.unparse(node))

    def _items(self, nodes: Iterable[ast.expr]) -> list[Any]:
        # Behind ``*ITEMS`` that are not known no item has a known place, so the list ends there.
        items: list[Any] = []
        for node in nodes:
            if not isinstance(node, ast.Starred):
                items.append(self._read(node))
            elif isinstance(found := self._read(node.value), list | tuple):
                items += found
            else:
                return [*items, Unread(source=ast.unparse(node))]
        return items

    def _table(self, entries: Iterable[tuple[Any, ast.expr]]) -> Names:
        # A key is a text of a call, an expression of a mapping, or None for ``**``.
        table: Names = {}
        for key, inner in entries:
            name = self._read(key) if isinstance(key, ast.expr) else key
            found = self._read(inner)
            if key is None and isinstance(found, dict):
                table |= found
            elif isinstance(name, str | int | float):
                table[name] = found
            else:
                forget(table, inner)
        return table

    def _target(self, node: ast.expr) -> tuple[str, Any]:
        """Path and value of an expression that is called, or whose method is."""
        found: Any = Unread(source=ast.unparse(node))
        if isinstance(node, ast.Name):
            known = self._own if node.id in self._own else self._globals
            path = f"?.{node.id}"
            if node.id in known:
                found = known[node.id]
            elif node.id in self._aliases or node.id in dir(builtins):
                path = self._aliases.get(node.id, node.id)
        elif isinstance(node, ast.Attribute):
            path = f"{self._target(node.value)[0]}.{node.attr}"
        else:
            path, found = "?.…", self._read(node)
        if isinstance(found, Call):
            path = f"{found.path}()"
        elif isinstance(found, Unread) and found.source.startswith("unstable."):
            path = found.source  # as after ``Learner = unstable.StandardLearner``
        elif path.startswith("unstable.") and "()" not in path:
            found = Unread(source=path)
        return path, found

    def _call(self, node: ast.Call) -> Any:
        function: ast.expr = node.func
        if isinstance(function, ast.Attribute) and function.attr == "remote":
            function = function.value
        made = function.func if isinstance(function, ast.Call) else None
        if isinstance(made, ast.Attribute) and made.attr == "options":
            function = made.value
        method = ""
        if isinstance(function, ast.Attribute):
            method = function.attr
            function = function.value
        path, held = self._target(function)
        path += f".{method}" if method else ""
        arguments = self._items(node.args)
        keywords = self._table((one.arg, one.value) for one in node.keywords)
        if method and isinstance(held, list | dict):
            return self._method(held, method, arguments, keywords, node)
        source = held.source if isinstance(held, Unread) and not method else ""
        if source in self._functions and source not in self._running:
            return self._run(source, given_to(self._functions[source], arguments, keywords))
        if path == "ray.get" and len(arguments) == 1:
            return arguments[0]
        if path in _BUILTINS and (
            path in ("dict", "list", "tuple") or not doubtful(*arguments, *keywords.values())
        ):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                return _BUILTINS[path](*arguments, **keywords)
        passed = (*node.args, *(one.value for one in node.keywords))
        names = [one for one in passed if isinstance(one, ast.Name)]
        changes = [one.id for one in names if isinstance(self._target(one)[1], list | dict)]
        call = Call(
            path=path,
            line=node.lineno,
            # Copies, because a later change of a list must not change this call.
            arguments=deepcopy(tuple(arguments)),
            keywords=deepcopy(keywords),
            doubt=self._doubt,
            changes=() if path.partition(".")[0] in _HARMLESS else tuple(changes),
        )
        self.calls.append(call)
        return call

    def _method(
        self, held: Any, name: str, arguments: list[Any], keywords: Names, node: ast.AST
    ) -> Any:
        # Where the effect is not sure the object is forgotten: its items may be others now.
        unsure, sets = Unread(source=ast.unparse(node)), name == "__setitem__"
        if sets and self._loose:  # the item may be set or not
            arguments[1] = unsure
        grows = name in ("append", "extend", "update") and not self._loose
        keyed = (sets or name in ("get", "copy")) and not doubtful(*arguments[:1])
        if grows or keyed:
            with contextlib.suppress(AttributeError, TypeError, ValueError, LookupError):
                found = getattr(held, name)(*arguments, **keywords)
                return unsure if name == "get" and REST in held else found
        if name not in ("get", "copy"):
            forget(held, node)
        return unsure


def _place(node: ast.stmt | ast.expr) -> str:
    return f"`{shorten(ast.unparse(node).splitlines()[0], 60).rstrip(':')}` in line {node.lineno}"
