"""The base of configuration classes: rules in annotations, and validation by pydantic.

A field's annotation says which values it takes, as ``learning_rate: Positive``; rules about several
keys of a class are in its ``clashes()``.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from rlforge.config.complaints import ClashError, InvalidValuesError, Wrong, translated

C = TypeVar("C", bound="Group")

Problem = tuple[str, str]
"""A key, relative to the class, and what is wrong with its value."""


class Group:
    """Base of all configuration classes, which do not change.

    Example:
        >>> from rlforge.config.schema import RunConfig
        >>> RunConfig().tracker.sinks.append({"name": "other"})
        Traceback (most recent call last):
        TypeError: a configuration does not change: make another with dataclasses.replace
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "allow_inf_nan": False,
        "coerce_numbers_to_str": True,  # YAML reads the 3 of name=3 as a number
        "revalidate_instances": "always",  # dataclasses.replace checks nothing
    }

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        # Here, as all of pydantic's: actors are given configurations, and do without it.
        from pydantic import WrapValidator

        return WrapValidator(cls._checked).__get_pydantic_core_schema__(source, handler)

    @classmethod
    def _checked(cls, value: Any, handler: Callable[[Any], Any], info: Any) -> Any:
        kind = cls.variant(value)
        # ``handler`` makes this class alone, without the fields of a derived one.
        if kind is not cls:
            return adapter(kind).validate_python(value, context=info.context)
        made = handler(value)
        # Past ``__setattr__``, which sets a field once.
        vars(made).update((name, _frozen(inside)) for name, inside in vars(made).items())
        if info.context is not _EACH_ALONE and (found := list(made.clashes())):
            raise ClashError([Wrong(key, value_at(made, key), why) for key, why in found])
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        # A dataclass sets each field once, while it is made.
        if name in vars(self) or name not in hints(type(self)):
            raise TypeError(_UNCHANGED)
        object.__setattr__(self, name, _frozen(value))

    def __delattr__(self, name: str) -> None:
        raise TypeError(_UNCHANGED)

    def problems(self) -> list[Problem]:
        """Impossible values, and why; without any, the ``clashes``."""
        try:
            validated(type(self), self)
        except InvalidValuesError as error:
            return [(one.key, one.reason) for one in error.wrong]
        return []

    def clashes(self) -> Iterator[Problem]:
        """Keys that contradict other keys; asked once each value alone is possible."""
        return iter(())

    @classmethod
    def variant(cls, value: Any) -> type[Any]:
        """The class, this or a derived one, that ``value`` is of."""
        return type(value) if isinstance(value, cls) else cls


_EACH_ALONE = {"clashes": False}
"""Context of a validation without ``clashes``."""

_UNCHANGED = "a configuration does not change: make another with dataclasses.replace"


def _refuse(*arguments: Any, **named: Any) -> typing.NoReturn:
    raise TypeError(_UNCHANGED)


class _List(list[Any]):
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    # To unpickle a list is to append to it.
    def __reduce__(self) -> Any:
        return type(self), (list(self),)


class _Mapping(dict[Any, Any]):
    update = setdefault = pop = popitem = clear = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    # To unpickle a mapping is to set its items.
    def __reduce__(self) -> Any:
        return type(self), (dict(self),)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return _List(map(_frozen, value))
    if isinstance(value, dict):
        return _Mapping({key: _frozen(inside) for key, inside in value.items()})
    return value


# ---------------------------------------------------------------- rules of single values


@dataclass(frozen=True)
class Rule:
    """A condition on a value, and what it ``must`` be."""

    holds: Callable[[Any], object]
    must: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import AfterValidator

        return AfterValidator(self._checked).__get_pydantic_core_schema__(source, handler)

    def _checked(self, value: Any) -> Any:
        try:
            holds = self.holds(value)
        # A condition may be a parser, which refuses by raising.
        except ValueError:
            holds = False
        if not holds:
            raise ValueError(f"must {self.must}")
        return value


def pattern(regex: str, must: str) -> Rule:
    """A rule for texts that match ``regex`` as a whole."""
    return Rule(re.compile(regex).fullmatch, must)


@dataclass(frozen=True)
class LeftOut:
    """Choices that users try and that are left out on purpose, and what there is in their place."""

    names: str
    must: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import BeforeValidator

        # Else the type would answer first, with its choices and without this reason.
        return BeforeValidator(self._checked).__get_pydantic_core_schema__(source, handler)

    def _checked(self, value: Any) -> Any:
        if value in self.names.split():
            raise ValueError(f"must {self.must}")
        return value

    def __str__(self) -> str:
        return f"Not {', '.join(f'``{name}``' for name in self.names.split())}: must {self.must}."


@dataclass(frozen=True)
class OneOf:
    """Alternatives of different types, which ``must`` names."""

    must: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import WrapValidator

        return WrapValidator(self._checked).__get_pydantic_core_schema__(source, handler)

    def _checked(self, value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        # pydantic complains about the type of each alternative, one by one.
        except ValueError:
            raise ValueError(f"must be {self.must}") from None


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, no texts and truths. open: ends that are outside.

    Example:
        >>> str(Range(0, 1, open=")")), str(Range(0, open="("))
        ('in [0, 1)', '> 0')
    """

    low: float
    high: float = math.inf
    open: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        ends = {"gt" if "(" in self.open else "ge": self.low}
        ends["lt" if ")" in self.open else "le"] = self.high
        # JSON schemas are made of these ends, and JSON has no infinity.
        finite = {end: number for end, number in ends.items() if math.isfinite(number)}
        # Not strict, pydantic would take the text "3" and the truth ``true`` for numbers.
        return {**handler(source), **finite, "strict": True}

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"> {self.low}" if "(" in self.open else f"≥ {self.low}"
        left, right = "(" if "(" in self.open else "[", ")" if ")" in self.open else "]"
        return f"in {left}{self.low}, {self.high}{right}"


@dataclass(frozen=True)
class Length:
    """Lists and mappings of ``least`` to ``most`` entries; None: exactly ``least``."""

    least: int
    most: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        most = self.least if self.most is None else self.most
        length = {"min_length": self.least, "max_length": most}
        finite = {end: number for end, number in length.items() if math.isfinite(number)}
        return {**handler(source), **finite}

    def __str__(self) -> str:
        if self.most is None:
            return f"{self.least} entries"
        if math.isinf(self.most):
            return f"at least {self.least} entr{'y' if self.least == 1 else 'ies'}"
        return f"{self.least} to {self.most} entries"


def is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # To read a port that is no number up to 65535 raises.
        whole = parts.scheme in ("http", "https") and parts.port != 0 and bool(parts.hostname)
    except ValueError:
        return False
    return whole and not re.search(r"\s", text)


ADDRESS = Rule(is_address, "be an http:// or https:// address")
DISTINCT = Rule(lambda entries: len(set(entries)) == len(entries), "not name an entry twice")

Number = Annotated[float, Range(-math.inf)]
Count = Annotated[int, Range(1)]
"""An annotation: an int of 1 or more.

Example:
    >>> @dataclass
    ... class Config(Group):
    ...     setting: Count = 8
    >>> Config(setting=0).problems()
    [('setting', 'must be 1 or more')]
"""
Whole = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, open="(")]
"""An annotation: a float above 0.

Example:
    >>> @dataclass
    ... class Config(Group):
    ...     setting: Positive = 0.1
    >>> Config(setting=0.0).problems()
    [('setting', 'must be above 0')]
"""
NotNegative = Annotated[float, Range(0)]
"""An annotation: a float of 0 or more.

Example:
    >>> @dataclass
    ... class Config(Group):
    ...     setting: NotNegative = 0.0
    >>> Config(setting=-0.1).problems()
    [('setting', 'must be 0 or more')]
"""
Beta = Annotated[float, Range(0, 1, open=")")]
Share = Annotated[float, Range(0, 1)]
"""An annotation: a float in [0, 1].

Example:
    >>> @dataclass
    ... class Config(Group):
    ...     setting: Share = 0.5
    >>> Config(setting=1.5).problems()
    [('setting', 'must be 1 or less')]
"""
Part = Annotated[float, Range(0, 1, open="(")]
Probability = Annotated[float, Range(0, 1, open="()")]
"""An annotation: a float in (0, 1).

Example:
    >>> @dataclass
    ... class Config(Group):
    ...     setting: Probability = 0.5
    >>> Config(setting=1.0).problems()
    [('setting', 'must be below 1')]
"""
Text = Annotated[str, Rule(str.strip, "not be empty")]
Url = Annotated[str, ADDRESS]
# ``.`` and ``..`` would put runs into the folder itself, or the one above.
# What cannot be printed makes lines of a terminal, or text that is no UTF-8.
FolderName = Annotated[
    str,
    pattern(r"(?!\.{1,2}$)(?!\s)[^/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]+", "be the name of a folder"),
]


def hints(cls: type) -> Mapping[str, Any]:
    """Resolved annotations of a class's fields, with their rules."""
    # To resolve annotations is slow, and ``__setattr__`` asks for each field.
    if cls not in _HINTS:
        resolved = typing.get_type_hints(cls, include_extras=True)
        fields = dataclasses.fields(typing.cast("Any", cls))
        _HINTS[cls] = {field.name: resolved[field.name] for field in fields}
    return _HINTS[cls]


_HINTS: dict[type, Mapping[str, Any]] = {}
_ADAPTERS: dict[type, Any] = {}


def is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type inside an annotation without ``| None``, and its rules; unions stay whole."""
    rules: tuple[Any, ...] = ()
    while True:
        if typing.get_origin(hint) is Annotated:
            hint, *own = typing.get_args(hint)
            rules = (*own, *rules)
        elif is_union(hint):
            kinds = [one for one in typing.get_args(hint) if one is not type(None)]
            if len(kinds) > 1:
                return hint, rules
            (hint,) = kinds
        else:
            return hint, rules


# ---------------------------------------------------------------- from plain values, and back


def adapter(cls: type) -> Any:
    from pydantic import TypeAdapter

    # To make a validator takes far longer than to use it.
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def read(cls: type[C], values: object) -> C:
    """A ``cls`` as ``validated`` makes it, without a look at ``clashes``."""
    return _made(cls, values, _EACH_ALONE)


def validated(cls: type[C], values: object) -> C:
    """A ``cls`` from nested mappings and lists; InvalidValuesError has all that is wrong.

    Example:
        >>> from rlforge.config.training import GrpoConfig
        >>> validated(GrpoConfig, {"group_size": 1, "clip_lo": 0.1})
        Traceback (most recent call last):
        rlforge.config.complaints.InvalidValuesError: group_size=1: must be 2 or more
        clip_lo=0.1: no such key
    """
    return _made(cls, values)


def _made(cls: type[C], values: object, context: Mapping[str, bool] | None = None) -> C:
    from pydantic import ValidationError

    wrong = [*missing(values)]
    try:
        made: C = adapter(cls).validate_python(values, context=context)
    except ValidationError as error:
        # The translation has all of pydantic's error, with keys as users write them.
        found = translated(error.errors(), values)
        wrong += [one for one in found if one.key not in {other.key for other in wrong}]
        raise InvalidValuesError([*wrong, *_beside(cls, values, wrong)]) from None
    if wrong:
        raise InvalidValuesError(wrong)
    return made


def _beside(cls: type[Any], values: object, wrong: typing.Sequence[Wrong]) -> Iterator[Wrong]:
    """Clashes of the keys that are right by themselves; defaults stand in for the ``wrong``."""
    from pydantic import ValidationError

    rest = as_values(values)
    for one in wrong:
        rest = _without(rest, one.key.split("."))
    try:
        adapter(cls).validate_python(rest)
    except ValidationError as error:
        # A clash that names a wrong key may be one with its default alone.
        names = "|".join(re.escape(one.key.rpartition(".")[2]) for one in wrong)
        known = {one.key for one in wrong}
        for found in translated(error.errors(), rest):
            if (
                found.clash
                and found.key not in known
                and not re.search(rf"\b({names})\b", str(found))
            ):
                yield found


def _without(values: Any, path: typing.Sequence[str]) -> Any:
    """``values`` without the key at ``path``, or the list that holds it."""
    name, *inside = path
    if not isinstance(values, dict) or name not in values:
        return values
    rest = {key: one for key, one in values.items() if key != name}
    if inside and isinstance(values[name], dict):
        rest[name] = _without(values[name], inside)
    return rest


def missing(values: object, key: str = "") -> Iterator[Wrong]:
    """The values that OmegaConf takes for missing ones."""
    inside = enumerate(values) if isinstance(values, list) else ()
    for name, one in values.items() if isinstance(values, Mapping) else inside:
        yield from missing(one, f"{key}.{name}".lstrip("."))
    if values == "???":
        yield Wrong(key, values, "is the mark of a value that is missing; give one")


def value_problem(hint: Any, value: object) -> str | None:
    """The reason why an annotation refuses a value, or None."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    # A user's dataclass may have annotations that pydantic does not know.
    settings = ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True)
    try:
        # YAML has typed the value: "3" in quotes is meant as a text.
        TypeAdapter(hint, config=settings).validate_python(value, strict=True)
    except ValidationError as error:
        return next(translated(error.errors(), value)).reason
    return None


def value_at(config: Any, key: str) -> Any:
    for part in key.split(".") if key else ():
        if isinstance(config, list):
            config = config[int(part)]
        else:
            config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


def as_values(value: Any) -> Any:
    """A configuration as plain mappings and lists."""
    if isinstance(value, Group):
        return {name: as_values(inside) for name, inside in vars(value).items()}
    if isinstance(value, list):
        return [as_values(entry) for entry in value]
    if isinstance(value, dict):
        return {key: as_values(entry) for key, entry in value.items()}
    return value


def with_values(config: C, values: Mapping[str, Any]) -> C:
    """A copy of ``config`` with nested ``values``; raises as ``read``."""
    return read(type(config), _merged(as_values(config), values))


def _merged(base: Any, values: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(values, Mapping)):
        return values
    return {**base, **{key: _merged(base.get(key), value) for key, value in values.items()}}


def changed(config: C, assignments: typing.Sequence[str]) -> C:
    """A copy of ``config`` after ``KEY=VALUE`` assignments; raises as ``read``."""
    from omegaconf import OmegaConf  # here: the classes alone need no OmegaConf

    node = OmegaConf.create(as_values(config))
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        OmegaConf.update(node, key, OmegaConf.from_dotlist([f"value={value}"]).value)
    return read(type(config), OmegaConf.to_container(node))
