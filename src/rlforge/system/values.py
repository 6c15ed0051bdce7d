"""Values (frozen dataclasses) as plain data and back, read off the types of their fields.

A field that is added to a class is stored from then on; no field is listed a second time. The
functions of a class are put together once, so that a conversion looks at no annotation.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_Convert = Callable[[Any], Any]
#: table: rows of arrow tables, see ``Codec.arrow_type``. json: what ``json.dumps`` takes.
Form = Literal["table", "json"]


class Codec(Generic[T]):
    """Turns values of the dataclass ``cls`` into dicts of plain data, and back.

    Fields may be str, bool, int, float, ``Literal`` of strings, ``X | None``, tuples of one type,
    dataclasses, mappings from int, and mappings from str to anything; TypeError is raised for
    others. In a table a mapping from str is JSON text, a mapping from int is a list of pairs, and
    lone surrogates, which files cannot hold, are replaced. A dataclass of texts whose field has the
    metadata ``{"columns": {PART: COLUMN}}`` is stored as these columns of the class around it.
    camel_case: ``agent_id`` is stored as ``agentId``.

    Example:
        >>> from rlforge.types import PolicyRef
        >>> policies = Codec(PolicyRef, form="json")
        >>> policies.encode(PolicyRef(uid="step-3", kind="checkpoint", version=3))
        {'uid': 'step-3', 'kind': 'checkpoint', 'path_or_name': None, 'version': 3, 'name': ''}
        >>> policies.decode({"uid": "base", "kind": "checkpoint"}).version
        0
    """

    def __init__(self, cls: type[T], *, form: Form = "table", camel_case: bool = False) -> None:
        self._cls, self._form, self._camel_case = cls, form, camel_case
        encode, decode = self._functions(cls)
        #: A value as a dict, its fields in order.
        self.encode = cast("Callable[[T], dict[str, Any]]", encode)
        #: The inverse. Fields that the data lacks, or that are null there, take their defaults.
        self.decode = cast("Callable[[Mapping[str, Any]], T]", decode)

    @cached_property
    def arrow_type(self) -> Any:
        """The struct of a value in an arrow table.

        Floats keep 64 bits, so that log-probs are read back exactly; ``tuple[int, ...]``, which is
        token ids, takes 32.
        """
        return self._arrow(self._cls)

    def _arrow(self, hint: Any) -> Any:
        # pyarrow is imported where it is used: it takes a quarter second that few commands need.
        import pyarrow as pa

        plain = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
        if hint in plain:
            return plain[hint]
        kind, inner = _kind(hint)
        match kind:
            case "literal" | "object":
                return pa.string()
            case "optional":
                return self._arrow(inner)
            case "tuple":
                return pa.list_(pa.int32() if inner is int else self._arrow(inner))
            case "mapping":
                return pa.map_(pa.int64(), self._arrow(inner))
        fields = self._fields(inner).items()
        return pa.struct([(column, self._arrow(field)) for column, (_, field, _) in fields])

    def _fields(self, cls: Any) -> dict[str, tuple[str, Any, bool]]:
        """Attribute, type, and whether there is a default, by stored name."""
        hints, missing = get_type_hints(cls), dataclasses.MISSING
        found: dict[str, tuple[str, Any, bool]] = {}
        for field in dataclasses.fields(cls):
            name, hint = field.name, hints[field.name]
            optional = field.default is not missing or field.default_factory is not missing
            if (columns := field.metadata.get("columns")) is None:
                found[_camel(name) if self._camel_case else name] = name, hint, optional
                continue
            parts = get_type_hints(hint)
            for part, column in columns.items():
                found[column] = f"{name}.{part}", parts[part], optional
        return found

    def _functions(self, hint: Any) -> tuple[_Convert | None, _Convert | None]:
        """How contents of type ``hint`` are encoded and decoded; None: they stay as they are."""
        if hint in (bool, int, float):
            return None, None
        if hint is str:
            return (writable if self._form == "table" else None), None
        kind, inner = _kind(hint)
        match kind:
            case "literal":
                return None, None
            case "object":
                return (_to_json_text, json.loads) if self._form == "table" else (dict, None)
            case "value":
                return self._encoder(inner), self._decoder(inner)
        encode, decode = self._functions(inner)
        if kind == "optional":
            return encode and _unless_none(encode), decode and _unless_none(decode)
        if kind == "tuple":
            # Token ids and log-probs are long: numbers are passed on without a look at each.
            return encode and _each(encode, list), tuple if decode is None else _each(decode, tuple)
        keep = _same if encode is None else encode
        back = _same if decode is None else decode
        if self._form == "table":
            return (
                lambda content: [(key, keep(item)) for key, item in content.items()],
                lambda pairs: {key: back(item) for key, item in pairs},
            )
        return (
            lambda content: {str(key): keep(item) for key, item in content.items()},
            lambda data: {int(key): back(item) for key, item in data.items()},
        )

    def _encoder(self, cls: Any) -> _Convert:
        fields = self._fields(cls)
        columns = tuple(fields)
        read = _reader([name for name, _, _ in fields.values()])
        found = {column: self._functions(hint)[0] for column, (_, hint, _) in fields.items()}
        changed = [(column, encode) for column, encode in found.items() if encode is not None]

        def encode(content: Any) -> dict[str, Any]:
            row = dict(zip(columns, read(content), strict=True))
            for column, convert in changed:
                row[column] = convert(row[column])
            return row

        return encode

    def _decoder(self, cls: Any) -> _Convert:
        plan = [
            (column, name, self._functions(hint)[1], optional)
            for column, (name, hint, optional) in self._fields(cls).items()
            if "." not in name
        ]
        hints = get_type_hints(cls)
        in_parts = [
            (field.name, hints[field.name], field.metadata["columns"])
            for field in dataclasses.fields(cls)
            if "columns" in field.metadata
        ]

        def decode(data: Mapping[str, Any]) -> Any:
            contents = {}
            for column, name, convert, optional in plan:
                item = data.get(column) if optional else data[column]
                if item is not None:
                    contents[name] = item if convert is None else convert(item)
                elif not optional:
                    contents[name] = None
            for name, made, columns in in_parts:
                parts = {part: data.get(column) for part, column in columns.items()}
                if None not in parts.values():
                    contents[name] = made(**parts)
            return cls(**contents)

        return decode


def json_ready(data: Any) -> Any:
    """``data`` as strict JSON can hold it: NaN and infinities are null, tuples and sets lists.

    Example:
        >>> json_ready({"loss": float("nan"), 3: (1, 2)})
        {'loss': None, '3': [1, 2]}
    """
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): json_ready(item) for key, item in data.items()}
    if isinstance(data, list | tuple | set | frozenset):
        return [json_ready(item) for item in data]
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, Path):
        return str(data)
    if hasattr(data, "item"):  # a numpy scalar
        return json_ready(data.item())
    raise TypeError(f"cannot write a {type(data).__name__} as JSON: {data!r}")


def writable(text: str) -> str:
    """``text`` with ``?`` for lone surrogates, which a model or remote player can send."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


#: Raises where JSON has no such value.
_strict = json.JSONEncoder(allow_nan=False).encode


def _to_json_text(content: Mapping[str, Any]) -> str:
    try:
        return _strict(content)
    except (TypeError, ValueError):
        return _strict(json_ready(content))


def _same(content: Any) -> Any:
    return content


def _unless_none(convert: _Convert) -> _Convert:
    return lambda content: None if content is None else convert(content)


def _each(convert: _Convert, collect: _Convert) -> _Convert:
    return lambda items: collect(map(convert, items))


def _reader(names: list[str]) -> _Convert:
    if len(names) == 1:
        return lambda content: (getattr(content, names[0]),)
    return attrgetter(*names)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _kind(hint: Any) -> tuple[str, Any]:
    """What kind of annotation ``hint`` is, and the type inside it."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "literal", None
    if origin in (Union, types.UnionType) and len(args) == 2 and args[1] is type(None):
        return "optional", args[0]
    if origin is tuple and len({*args} - {Ellipsis}) == 1:
        return "tuple", args[0]
    if origin is Mapping and args[0] is int:
        return "mapping", args[1]
    if origin is Mapping and args[0] is str:
        return "object", None
    if dataclasses.is_dataclass(hint):
        return "value", hint
    raise TypeError(f"fields of type {hint} cannot be stored")


#: Most braces in a text that begin no JSON object.
_MOST_BRACES = 100


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, outermost ones only, from the left; other text is ignored.

    Example:
        >>> list(json_objects('First {"a": 1}, then {see above} {"b": {"c": 2}}.'))
        [{'a': 1}, {'b': {'c': 2}}]
    """
    decoder = json.JSONDecoder()
    start, wrong = text.find("{"), 0
    while start >= 0 and wrong < _MOST_BRACES:
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):  # a brace in prose
            end, wrong = start + 1, wrong + 1
        else:
            yield found
        start = text.find("{", end)
