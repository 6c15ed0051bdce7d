"""What configuration classes share: rules in annotations, and the way from and to plain values.

A field's annotation says which values it takes::

    learning_rate: Positive = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    betas: Annotated[list[Beta], Length(2)] = field(default_factory=lambda: [0.9, 0.999])

``problems()`` reads the annotations of a class and of the classes nested in it; rules about several
keys of one class are in its ``clashes()``. OmegaConf knows neither ``Literal`` nor ``Annotated``:
``plain`` derives the classes that it gets, ``build`` makes the real ones of what it returns.
Alternatives such as ``Text | list[Text]`` are ``Any`` to OmegaConf, and judged here.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from rlforge.errors import nearest, raise_all

C = TypeVar("C", bound="Group")

Problem = tuple[str, str]
"""A key, relative to the class, and what is wrong with its value."""


class Group:
    """Base of all configuration classes; a field is set once, and lists and mappings stay as made.

    Example:
        >>> from rlforge.config.schema import RunConfig
        >>> RunConfig().tracker.sinks.append({"name": "other"})
        Traceback (most recent call last):
        TypeError: a configuration does not change: make another with dataclasses.replace
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            raise TypeError(_UNCHANGED)
        object.__setattr__(self, name, _frozen(value))

    def problems(self) -> Iterator[Problem]:
        """Keys with impossible values, and why: those of annotations, or else the ``clashes``."""
        fine = True
        for name, hint in hints(type(self)).items():
            for key, reason in _judged(hint, getattr(self, name)):
                fine = False
                yield f"{name}{key}", reason
        if fine:
            yield from self.clashes()

    def clashes(self) -> Iterator[Problem]:
        """Keys that contradict other keys of the class; asked once each value alone is possible."""
        return iter(())

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[Any]:
        """The class, this one or one derived from it, that ``values`` are of."""
        return cls


_UNCHANGED = "a configuration does not change: make another with dataclasses.replace"


def _refuse(*arguments: Any, **named: Any) -> typing.NoReturn:
    raise TypeError(_UNCHANGED)


class _List(list[Any]):
    """A list that does not change."""

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> Any:
        return type(self), (list(self),)


class _Mapping(dict[Any, Any]):
    """A mapping that does not change."""

    update = setdefault = pop = popitem = clear = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

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
class Range:
    """Numbers from ``low`` to ``high``; ``open`` names the ends, "(" and ")", that are outside.

    Example:
        >>> Range(0, 1, open=")").problem(1.0)
        'must lie in [0, 1)'
    """

    low: float
    high: float = math.inf
    open: str = ""

    def problem(self, number: float) -> str | None:
        above = number > self.low if "(" in self.open else number >= self.low
        below = number < self.high if ")" in self.open else number <= self.high
        if above and below:
            return None
        if not math.isinf(self.high):
            return f"must lie {self}"
        return f"must be above {self.low}" if "(" in self.open else f"must be {self.low} or more"

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"> {self.low}" if "(" in self.open else f"≥ {self.low}"
        left, right = "(" if "(" in self.open else "[", ")" if ")" in self.open else "]"
        return f"in {left}{self.low}, {self.high}{right}"


@dataclass(frozen=True)
class Length:
    """Lists and mappings of ``least`` to ``most`` entries; of ``least`` where ``most`` is None."""

    least: int
    most: float | None = None

    def problem(self, entries: typing.Sized) -> str | None:
        most = self.least if self.most is None else self.most
        return None if self.least <= len(entries) <= most else f"must have {self}"

    def __str__(self) -> str:
        if self.most is None:
            return f"{self.least} entries"
        if math.isinf(self.most):
            return f"at least {self.least} entr{'y' if self.least == 1 else 'ies'}"
        return f"{self.least} to {self.most} entries"


@dataclass(frozen=True)
class Distinct:
    """Lists in which no entry stands twice."""

    def problem(self, entries: list[Any]) -> str | None:
        return None if len(set(entries)) == len(entries) else "must not name an entry twice"


@dataclass(frozen=True)
class Pattern:
    """Text that matches ``regex`` as a whole; ``must`` says what that comes to."""

    regex: str
    must: str

    def problem(self, text: str) -> str | None:
        return None if re.fullmatch(self.regex, text) else f"must {self.must}"


@dataclass(frozen=True)
class Address:
    """Addresses of HTTP servers."""

    def problem(self, text: str) -> str | None:
        try:
            parts = urlsplit(text)
            # The port is read here: one that is no number up to 65535 raises.
            whole = parts.scheme in ("http", "https") and parts.port != 0 and bool(parts.hostname)
        except ValueError:
            whole = False
        return (
            None
            if whole and not re.search(r"\s", text)
            else "must be an http:// or https:// address"
        )


Count = Annotated[int, Range(1)]
"""An annotation of configuration classes: an int of 1 or more.

Example:
    >>> @dataclass
    ... class Config(Group):
    ...     setting: Count = 8
    >>> list(Config(setting=0).problems())
    [('setting', 'must be 1 or more')]
"""
Whole = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, open="(")]
"""An annotation of configuration classes: a float above 0.

Example:
    >>> @dataclass
    ... class Config(Group):
    ...     setting: Positive = 0.1
    >>> list(Config(setting=0.0).problems())
    [('setting', 'must be above 0')]
"""
NotNegative = Annotated[float, Range(0)]
"""An annotation of configuration classes: a float of 0 or more.

Example:
    >>> @dataclass
    ... class Config(Group):
    ...     setting: NotNegative = 0.0
    >>> list(Config(setting=-0.1).problems())
    [('setting', 'must be 0 or more')]
"""
Beta = Annotated[float, Range(0, 1, open=")")]
Share = Annotated[float, Range(0, 1)]
"""An annotation of configuration classes: a float in [0, 1].

Example:
    >>> @dataclass
    ... class Config(Group):
    ...     setting: Share = 0.5
    >>> list(Config(setting=1.5).problems())
    [('setting', 'must lie in [0, 1]')]
"""
Probability = Annotated[float, Range(0, 1, open="()")]
"""An annotation of configuration classes: a float in (0, 1).

Example:
    >>> @dataclass
    ... class Config(Group):
    ...     setting: Probability = 0.5
    >>> list(Config(setting=1.0).problems())
    [('setting', 'must lie in (0, 1)')]
"""
Text = Annotated[str, Pattern(r"(?s).*\S.*", "not be empty")]
Url = Annotated[str, Address()]
FolderName = Annotated[str, Pattern(r"(?!\.{1,2}$)[^\s/\\][^/\\]*", "be the name of a folder")]


def hints(cls: type) -> Mapping[str, Any]:
    """Annotations of a class's fields, in their order, resolved and with their rules."""
    if cls not in _HINTS:
        resolved = typing.get_type_hints(cls, include_extras=True)
        fields = dataclasses.fields(typing.cast("Any", cls))
        _HINTS[cls] = {field.name: resolved[field.name] for field in fields}
    return _HINTS[cls]


_HINTS: dict[type, Mapping[str, Any]] = {}
"""By class; a composition asks for those of each class many times."""


def is_union(hint: Any) -> bool:
    """Whether an annotation has several alternatives, of which None may be one."""
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type inside an annotation, without ``| None``, and its rules.

    It is the whole annotation where it has several other alternatives.
    """
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


def _judged(hint: Any, value: Any) -> Iterator[Problem]:
    """Problems of one value; keys begin with a dot, or are empty where it is the value itself."""
    kind, rules = parts(hint)
    origin, choices, found = typing.get_origin(kind), typing.get_args(kind), False
    if value is None and (not is_union(kind) or type(None) in choices):  # OmegaConf judged others
        return
    if is_union(kind):
        fit = [one for one in choices if _is_of(value, one)]
        if fit:
            yield from _judged(fit[0], value)
        else:
            yield "", f"must be {' or '.join(map(_in_words, choices))}"
    elif kind is str and not isinstance(value, str):
        found = True
        yield "", "must be a text"
    elif origin is Literal and value not in choices and not _broken(rules, value):
        mend = nearest(str(value), choices)
        yield "", f"no such choice{mend} (there are {', '.join(choices)})"
    elif kind is float and not math.isfinite(value):
        found = True
        yield "", NOT_FINITE
    elif isinstance(value, Group):
        for key, reason in value.problems():
            yield f".{key}", reason
    elif origin in (list, dict):
        named, inner = typing.get_args(kind)[0], typing.get_args(kind)[-1]
        for index, entry in value.items() if origin is dict else enumerate(value):
            problems = [*_judged(inner, entry), *(_judged(named, index) if origin is dict else ())]
            found = found or bool(problems)
            yield from ((f".{index}{key}", reason) for key, reason in problems)
    yield from (("", reason) for reason in ([] if found else _broken(rules, value)))


NOT_FINITE = "must be a finite number"


def _broken(rules: tuple[Any, ...], value: Any) -> list[str]:
    return [reason for rule in rules if (reason := rule.problem(value)) is not None]


_WORDS = {str: "a text", list: "a list", int: "a whole number"}


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a value is one of an alternative's choices, or of its class."""
    kind, _ = parts(hint)
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    return isinstance(value, typing.get_origin(kind) or kind)


def _in_words(hint: Any) -> str:
    kind, _ = parts(hint)
    if typing.get_origin(kind) is Literal:
        return " or ".join(typing.get_args(kind))
    cls = typing.cast("type", typing.get_origin(kind) or kind)
    return _WORDS.get(cls, cls.__name__)


# ---------------------------------------------------------------- to OmegaConf and back


_PLAIN: dict[type, type] = {}


def plain(cls: type) -> type:
    """``cls`` as OmegaConf can check it: choices as text, without rules."""
    if cls not in _PLAIN:
        bases = tuple(plain(base) for base in cls.__bases__ if dataclasses.is_dataclass(base))
        fields = plain_fields(cls).values()
        _PLAIN[cls] = dataclasses.make_dataclass(cls.__name__, fields, bases=bases)
    return _PLAIN[cls]


def plain_fields(cls: type) -> dict[str, tuple[str, Any, Any]]:
    """Name, type and default of each field of ``plain(cls)``."""
    resolved = hints(cls)
    return {
        field.name: (field.name, _plain_hint(resolved[field.name]), _plain_default(field))
        for field in dataclasses.fields(typing.cast("Any", cls))
    }


def _plain_hint(hint: Any) -> Any:
    kind, _ = parts(hint)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if is_union(kind):
        return Any  # OmegaConf's unions take no lists
    if origin is Literal:
        kind = str
    elif origin in (list, dict):
        kind = origin[tuple(_plain_hint(one) for one in inner)]
    elif dataclasses.is_dataclass(kind):
        kind = plain(kind)  # type: ignore[arg-type]
    return kind | None if optional(hint) else kind


def optional(hint: Any) -> bool:
    """Whether an annotation ends in ``| None``."""
    inner = typing.get_args(hint)
    return optional(inner[0]) if typing.get_origin(hint) is Annotated else type(None) in inner


def _plain_default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return dataclasses.field(default=field.default)
    factory = field.default_factory
    assert factory is not dataclasses.MISSING
    return dataclasses.field(default_factory=lambda: _plain_value(factory()))


def as_values(value: Any) -> Any:
    """A configuration, or a value of one, as plain mappings and lists."""
    if isinstance(value, Group):
        return {name: as_values(inside) for name, inside in vars(value).items()}
    if isinstance(value, list):
        return [as_values(entry) for entry in value]
    if isinstance(value, dict):
        return {key: as_values(entry) for key, entry in value.items()}
    return value


def _plain_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain_value(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _plain_value(entry) for key, entry in value.items()}
    if not isinstance(value, Group):
        return value
    return plain(type(value))(**{k: _plain_value(v) for k, v in vars(value).items()})


def build(cls: type[C], values: Mapping[str, Any]) -> C:
    """A ``cls`` from nested mappings and lists; keys that it has not are left out."""
    kind = cls.variant(values)
    made: C = kind(
        **{name: _built(h, values[name]) for name, h in hints(kind).items() if name in values}
    )
    return made


def read(cls: type[C], loaded: Any) -> C:
    """A ``cls`` from loaded YAML, with defaults where it says nothing.

    Raises OmegaConfBaseException for unknown keys and wrong types.
    """
    from omegaconf import OmegaConf  # here: the classes alone need no OmegaConf

    merged = OmegaConf.merge(OmegaConf.structured(plain(cls)), as_values(loaded))
    return build(cls, typing.cast("Mapping[str, Any]", OmegaConf.to_container(merged)))


def with_values(config: C, values: Mapping[str, Any]) -> C:
    """A copy of ``config`` with nested ``values`` in place of its own; raises as ``read`` does."""
    from omegaconf import OmegaConf

    node = OmegaConf.merge(OmegaConf.structured(_plain_value(config)), as_values(values))
    return build(type(config), typing.cast("Mapping[str, Any]", OmegaConf.to_container(node)))


def checked(config: C, where: object) -> C:
    """``config``, read from ``where``; ConfigError for its problems."""
    raise_all(f"{where}: {key}: {problem}" for key, problem in config.problems())
    return config


def changed(config: C, assignments: typing.Sequence[str]) -> C:
    """A copy of ``config`` after ``KEY=VALUE`` assignments; raises as ``read`` does."""
    from omegaconf import OmegaConf

    node = OmegaConf.structured(_plain_value(config))
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        OmegaConf.update(node, key, OmegaConf.from_dotlist([f"value={value}"]).value)
    return build(type(config), typing.cast("Mapping[str, Any]", OmegaConf.to_container(node)))


def _built(hint: Any, value: Any) -> Any:
    kind, _ = parts(hint)
    if isinstance(value, dict) and dataclasses.is_dataclass(kind):
        return build(kind, value)  # type: ignore[type-var,arg-type]
    inner = typing.get_args(kind)[-1:]
    if isinstance(value, dict) and inner:
        return {key: _built(inner[0], entry) for key, entry in value.items()}
    if isinstance(value, list) and inner:
        return [_built(inner[0], entry) for entry in value]
    return value
