"""Values (frozen dataclasses) as plain data and back, read off the types of their fields."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
#: json: for ``json.dumps``. table: rows of arrow tables. camel: such rows with names in camelCase.
_Form = Literal["json", "table", "camel"]


def to_json(content: Any) -> Any:
    """A value, or a list or tuple of values, as ``json.dumps`` takes it.

    A field with the metadata ``{"columns": {PART: COLUMN}}``, a dataclass of texts, stands as these
    fields of the object around it.

    Example:
        >>> from rlforge.types import PolicyRef
        >>> to_json(PolicyRef(uid="step-3", kind="checkpoint", version=3))
        {'uid': 'step-3', 'kind': 'checkpoint', 'path_or_name': None, 'version': 3, 'name': ''}
    """
    return _converter("json").unstructure(content)


def from_json(cls: type[T], data: Any) -> T:
    """The inverse; fields that the data lacks take their defaults; ValueError says all mistakes.

    Example:
        >>> from rlforge.types import PolicyRef
        >>> from_json(list[PolicyRef], [{"uid": "base", "kind": "checkpoint"}])[0].version
        0
    """
    return _read("json", cls, data)


class Codec(Generic[T]):
    """Turns values of the dataclass ``cls`` into rows of an arrow table, and back.

    Fields may be str, bool, int, float, ``Literal`` of strings, ``X | None``, tuples of one type,
    dataclasses, mappings from int to float, and mappings from str to anything, which are JSON text
    there. camel_case: ``agent_id`` is stored as ``agentId``.
    """

    def __init__(self, cls: type[T], *, camel_case: bool = False) -> None:
        self._cls, self._camel_case = cls, camel_case
        self._form: _Form = "camel" if camel_case else "table"

    def encode(self, content: T) -> dict[str, Any]:
        """A value as a dict, its fields in order."""
        row: dict[str, Any] = _converter(self._form).unstructure(content, self._cls)
        return row

    def decode(self, row: Mapping[str, Any]) -> T:
        """The inverse; defaults and errors as in ``from_json``."""
        return _read(self._form, self._cls, row)

    @cached_property
    def arrow_type(self) -> Any:
        """The struct of a value in an arrow table; TypeError for a field that none can hold."""
        return self._arrow(self._cls)

    def _arrow(self, hint: Any) -> Any:
        # pyarrow is imported where it is used: it takes a quarter second that few commands need.
        import pyarrow as pa

        # Floats keep 64 bits, so that log-probs are read back exactly.
        plain = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
        origin, args = get_origin(hint), get_args(hint)
        if hint in plain:
            return plain[hint]
        if _is_word(hint) or _is_object(hint):
            return pa.string()
        if origin in (Union, types.UnionType) and args[1:] == (type(None),):
            return self._arrow(args[0])
        if origin is tuple:
            # Whole numbers in tuples are token ids, for which 32 bits are enough.
            return pa.list_(pa.int32() if args[0] is int else self._arrow(args[0]))
        if hint in _BY_NUMBER:
            return pa.map_(pa.int64(), pa.float64())
        if not dataclasses.is_dataclass(hint):
            raise TypeError(f"fields of type {hint} cannot be stored")
        hints, columns = get_type_hints(hint), []
        for field in dataclasses.fields(hint):
            if parts := field.metadata.get("columns"):
                columns += [(column, pa.string()) for column in parts.values()]
            else:
                name = _camel(field.name) if self._camel_case else field.name
                columns.append((name, self._arrow(hints[field.name])))
        return pa.struct(columns)


def _read(form: _Form, cls: type[T], data: Any) -> T:
    # Imported here, as pyarrow above, because many commands need neither.
    from cattrs import BaseValidationError, transform_error

    try:
        made: T = _converter(form).structure(data, cls)
    except BaseValidationError as error:
        raise ValueError("; ".join(transform_error(error))) from None
    return made


#: Token ids and log-probs are long: numbers are passed on without a hook for each.
_NUMBERS = (tuple[int, ...], tuple[float, ...], tuple[float, float])
_BY_NUMBER = (Mapping[int, float],)


@cache
def _converter(form: _Form) -> Any:
    import cattrs
    from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

    made = cattrs.Converter()

    def stored(name: str) -> str:
        return _camel(name) if form == "camel" else name

    def names(cls: Any) -> dict[str, Any]:
        return {f.name: override(rename=stored(f.name)) for f in dataclasses.fields(cls)}

    def encoder(cls: Any) -> Callable[[Any], dict[str, Any]]:
        encode, parts = make_dict_unstructure_fn(cls, made, **names(cls)), _parts(cls)

        def flat(content: Any) -> dict[str, Any]:
            row = encode(content)
            for name, columns in parts.items():
                part = row.pop(name)
                row |= {column: part[each] for each, column in columns.items()}
            return row

        return flat if parts else encode

    def decoder(cls: Any) -> Callable[[Mapping[str, Any], Any], Any]:
        decode, parts = make_dict_structure_fn(cls, made, **names(cls)), _parts(cls)
        hints, missing = get_type_hints(cls), dataclasses.MISSING
        takes_null = {
            stored(field.name)
            for field in dataclasses.fields(cls)
            if field.default is field.default_factory is missing
            or type(None) in get_args(hints[field.name])
        }

        def whole(data: Mapping[str, Any], _: Any) -> Any:
            row = {
                name: each for name, each in data.items() if each is not None or name in takes_null
            }
            for name, columns in parts.items():
                if row.keys() >= {*columns.values()}:
                    row[name] = {part: row[column] for part, column in columns.items()}
            return decode(row, cls)

        return whole

    made.register_unstructure_hook_factory(dataclasses.is_dataclass, encoder)
    made.register_structure_hook_factory(dataclasses.is_dataclass, decoder)
    made.register_unstructure_hook_func(_NUMBERS.__contains__, lambda content: content)
    if form != "json":
        # Arrow has checked the types of the columns.
        made.register_structure_hook(float, lambda content, _: content)
        made.register_structure_hook_func(_is_word, lambda content, _: content)
        made.register_structure_hook_func(_NUMBERS.__contains__, lambda content, _: tuple(content))
        made.register_unstructure_hook(str, writable)
        made.register_unstructure_hook_func(_is_object, _to_json_text)
        made.register_structure_hook_func(_is_object, lambda text, _: json.loads(text))
        made.register_unstructure_hook_func(
            _BY_NUMBER.__contains__, lambda content: [*content.items()]
        )
        made.register_structure_hook_func(_BY_NUMBER.__contains__, lambda pairs, _: dict(pairs))
    else:
        made.register_unstructure_hook_func(_is_object, dict)
        made.register_unstructure_hook_func(
            _BY_NUMBER.__contains__,
            lambda content: {str(key): each for key, each in content.items()},
        )
        _check_types(made)
    return made


def _check_types(made: Any) -> None:
    """Let the converter of JSON refuse what a file of a run can only hold when it is damaged."""

    def number_by_number(content: Any, _: Any) -> dict[int, Any]:
        pairs = _plain((dict,), content).items()
        return {int(key): made.structure(each, float) for key, each in pairs}

    def by_text(content: Any, hint: Any) -> dict[str, Any]:
        pairs, kind = _plain((dict,), content).items(), get_args(hint)[1]
        return {key: made.structure(each, kind) for key, each in pairs}

    def number(content: Any, _: Any) -> Any:
        # JSON has null for a float that is not finite.
        return math.nan if content is None else _plain((int, float), content)

    made.register_structure_hook(float, number)
    for cls, taken in ((int, (int,)), (bool, (bool,)), (str, (str,))):
        made.register_structure_hook(cls, partial(_plain, taken))
    # Words that a later version adds to a literal are kept.
    made.register_structure_hook_func(_is_word, partial(_plain, (str,)))
    made.register_structure_hook_func(_NUMBERS.__contains__, _numbers)
    made.register_structure_hook_func(_BY_NUMBER.__contains__, number_by_number)
    made.register_structure_hook_func(_is_object, by_text)


def _plain(taken: tuple[type, ...], content: Any, _: Any = None) -> Any:
    if not isinstance(content, taken):
        raise TypeError(f"it is {content!r:.60}")
    return content


def _numbers(content: Any, _: Any) -> tuple[Any, ...]:
    # A look at each number would take longer than the rest.
    kinds = set(map(type, _plain((list, tuple), content)))
    if not all(issubclass(kind, int | float | None) for kind in kinds):
        raise TypeError(f"it is {content!r:.60}")
    return tuple(math.nan if one is None else one for one in content)


def _is_word(hint: Any) -> bool:
    return get_origin(hint) is Literal


def _is_object(hint: Any) -> bool:
    args = get_args(hint)
    return get_origin(hint) is Mapping and args[0] is str and not dataclasses.is_dataclass(args[1])


def _parts(cls: Any) -> dict[str, Mapping[str, str]]:
    fields = dataclasses.fields(cls)
    return {each.name: each.metadata["columns"] for each in fields if "columns" in each.metadata}


def json_ready(data: Any) -> Any:
    """``data`` as strict JSON holds it: values are objects, tuples and sets lists, NaN is null.

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
    if dataclasses.is_dataclass(data):
        names = [field.name for field in dataclasses.fields(data)]
        return {name: json_ready(getattr(data, name)) for name in names}
    if isinstance(data, Path):
        return str(data)
    if hasattr(data, "item"):
        # Most numpy scalars are none of the types above.
        return json_ready(data.item())
    raise TypeError(f"cannot write a {type(data).__name__} as JSON: {data!r}")


def writable(text: str) -> str:
    """``text`` with ``?`` for lone surrogates, which files cannot hold."""
    # A model or a remote player can send lone surrogates.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


#: Raises where JSON has no such value.
_strict = json.JSONEncoder(allow_nan=False).encode


def _to_json_text(content: Mapping[str, Any]) -> str:
    try:
        return _strict(content)
    except (TypeError, ValueError):
        return _strict(json_ready(content))


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


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
        except (ValueError, RecursionError):
            # The brace stands in prose, and begins no object.
            end, wrong = start + 1, wrong + 1
        else:
            yield found
        start = text.find("{", end)
