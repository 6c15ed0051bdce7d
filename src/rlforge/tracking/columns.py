"""Values of ``rlforge.types`` as arrow data and back, read off their field types.

A field that is added to a value is a column of the next file; nothing is listed twice.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rlforge.tracking.files import json_ready


def arrow_type(hint: Any) -> Any:
    """The arrow type of a field annotated ``hint``.

    str, bool, int and float; ``Literal`` of strings; ``X | None``; ``tuple[X, ...]``; values;
    mappings from int; and mappings from str, which hold anything and are stored as JSON text.
    Floats keep 64 bits, so that log-probs are read back exactly as the engine gave them.

    Raises:
        TypeError: anything else.
    """
    import pyarrow as pa

    plain = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    if hint in plain:
        return plain[hint]
    kind, inner = _form(hint)
    if kind == "text":
        return pa.string()
    if kind == "optional":
        return arrow_type(inner)
    if kind == "list":
        return pa.list_(arrow_type(inner))
    if kind == "map":
        return pa.map_(pa.int64(), arrow_type(inner))
    return pa.struct([(name, arrow_type(field)) for name, field in _fields(inner).items()])


def to_plain(content: Any, hint: Any) -> Any:
    """``content``, annotated ``hint``, as lists, dicts and scalars for an arrow table."""
    if hint is str:
        # A remote player can send lone surrogates, which no file can hold.
        return content.encode("utf-8", "replace").decode("utf-8")
    if hint in (bool, int, float) or content is None:
        return content
    kind, inner = _form(hint)
    if kind == "text":
        return json.dumps(json_ready(content)) if isinstance(content, Mapping) else content
    if kind == "optional":
        return to_plain(content, inner)
    if kind == "list":
        # Token ids and log-probs are long: numbers are passed on without a look at each.
        if inner in (int, float):
            return list(content)
        return [to_plain(item, inner) for item in content]
    if kind == "map":
        return [(key, to_plain(item, inner)) for key, item in content.items()]
    return {name: to_plain(getattr(content, name), field) for name, field in _fields(inner).items()}


def from_plain(data: Any, hint: Any) -> Any:
    """The inverse of ``to_plain``. Fields that an older file lacks take their defaults."""
    if hint in (str, bool, int, float) or data is None:
        return data
    kind, inner = _form(hint)
    if kind == "text":
        return json.loads(data) if get_origin(hint) is not Literal else data
    if kind == "optional":
        return from_plain(data, inner)
    if kind == "list":
        if inner in (int, float):
            return tuple(data)
        return tuple(from_plain(item, inner) for item in data)
    if kind == "map":
        return {key: from_plain(item, inner) for key, item in data}
    fields = _fields(inner)
    return inner(**{name: from_plain(data[name], fields[name]) for name in fields if name in data})


@cache
def _fields(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@cache
def _form(hint: Any) -> tuple[str, Any]:
    """What kind of annotation ``hint`` is, and what is inside it."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "text", None
    if origin in (Union, types.UnionType) and len(args) == 2 and args[1] is type(None):
        return "optional", args[0]
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return "list", args[0]
    if origin is Mapping and args[0] is int:
        return "map", args[1]
    if origin is Mapping and args[0] is str:
        return "text", None
    if dataclasses.is_dataclass(hint):
        return "value", hint
    raise TypeError(f"no arrow column for fields of type {hint}")
