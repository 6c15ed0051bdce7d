"""Values of a script that is read without executing it: Python's own, calls, and unread ones."""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from rlforge.types import value

Names = dict[Any, Any]
Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Key, or keyword, of further items that only running the script would give.
REST = "**"


@value
class Unread:
    """A value that only running the script would give. source: its text."""

    source: str


@value
class Call:
    """A call in a script.

    Attributes:
        path: Dotted, by the names of its module, without Ray's ``options`` and ``remote``:
            ``unstable.Tracker``, or ``unstable.Tracker().log``; behind ``?.`` where the first name
            is unknown.
        arguments, keywords: Literals, further calls and ``Unread``.
        doubt: The condition that it depends on, if any.
        changes: Names of the lists and mappings that it may change.
    """

    path: str
    line: int
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    doubt: str = ""
    changes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.path.removeprefix('?.')}(…)"

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def named(self, order: Iterable[str]) -> dict[str, Any]:
        """All arguments by name; order: the names of those without one."""
        return {**dict(zip(order, self.arguments, strict=False)), **self.keywords}


def unread(found: Any) -> Iterator[Unread]:
    """The parts of a value that only running the script would give."""
    if isinstance(found, Unread):
        yield found
    elif isinstance(found, Call):
        yield from unread([*found.arguments, *found.keywords.values()])
    elif isinstance(found, list | tuple | dict):
        for one in found.values() if isinstance(found, dict) else found:
            yield from unread(one)


_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def forget(held: Any, node: ast.AST) -> None:
    """Make all of a list or a mapping unread, in its place: other names may refer to it, too."""
    rest = Unread(source=ast.unparse(node))
    if isinstance(held, dict):
        held.update(dict.fromkeys([*held, REST], rest))
    else:
        held[:] = [rest]


def doubtful(*found: Any) -> bool:
    """Whether only running the script would give the values, or a part of them."""
    return any(isinstance(one, Call) or any(unread(one)) for one in found)


def computed(op: ast.AST, left: Any, right: Any, node: ast.AST) -> Any:
    """Apply an operator of the expression ``node`` to two values."""
    known = _OPERATORS.get(type(op))
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    joined = type(left) is type(right) and isinstance(left, str | list) and isinstance(op, ast.Add)
    compared = isinstance(op, ast.cmpop) and not doubtful(left, right)
    # Numbers of millions of digits would take minutes.
    large = isinstance(op, ast.Pow | ast.LShift) and numbers and not abs(right) <= 64
    if known and (numbers or joined or compared) and not large:
        with contextlib.suppress(ArithmeticError, TypeError, ValueError):
            found = known(left, right)
            if not numbers or (isinstance(found, int | float) and abs(found) <= 2**64):
                return found
    return Unread(source=ast.unparse(node))


def given_to(node: Function, arguments: Sequence[Any], keywords: Names) -> Names:
    """Parameters with the values that a call gives them."""
    # ``*``, ``**`` and decorators may give other values, so that no parameter is known.
    starred = any(isinstance(one, Unread) and one.source[0] == "*" for one in arguments)
    if starred or REST in keywords or node.decorator_list:
        return {}
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    taken = (*names, *(one.arg for one in node.args.kwonlyargs))
    own = {name: found for name, found in keywords.items() if name in taken}
    defaults = node.args.defaults
    plain = {
        name: one.value if isinstance(one, ast.Constant) else Unread(source=ast.unparse(one))
        for name, one in zip(names[len(names) - len(defaults) :], defaults, strict=True)
    }
    return {**plain, **dict(zip(names, arguments, strict=False)), **own}


def bound(nodes: Iterable[ast.AST], more: str = "") -> Names:
    """The names that nodes bind, unread; more: added to their source."""
    found: Names = {}
    for node in (inner for one in nodes for inner in ast.walk(one)):
        match node:
            case ast.Name(id=str(name), ctx=ast.Store()) | ast.arg(arg=str(name)):
                pass
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                name = node.name
            case ast.MatchAs() | ast.MatchStar() | ast.ExceptHandler() if node.name:
                name = node.name
            case _:
                continue
        found[name] = Unread(source=f"{name}{more}")
    return found
