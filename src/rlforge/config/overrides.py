"""Overrides of the command line: ``key=value``, in the grammar of Hydra."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from numbers import Integral
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException

from rlforge.config.keys import alike, all_keys, all_roots, conf_dir, foreign_keys, kinds_with
from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError, check_type, nearest


def key_of(override: Override) -> str:
    # Marks (+, ~), a package (@) and a subgroup (/) are no part of a key.
    return str(override.get_key_element()).lstrip("+~/").split("@")[0].split("/")[0]


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides as Hydra does, bare names as experiments; ConfigError for unreadable ones.

    Example:
        >>> [override.input_line for override in parse_overrides(["kuhn_grpo", "seed=3"])]
        ['+experiment=kuhn_grpo', 'seed=3']
    """
    for each in overrides:
        check_type(each, str, what="an override is a text, as 'learner.batch_size=64'")
    keys = {field.name for root in all_roots() for field in dataclasses.fields(root)}
    # A bare key is one whose value was forgotten, and no experiment.
    return [
        _parsed(f"+experiment={o}" if re.fullmatch(r"[^\W\d_][\w-]*", o) and o not in keys else o)
        for o in overrides
    ]


@cache
def _parsed(line: str) -> Override:
    if (parsed := _read(line)) is None:
        raise ConfigError(_unreadable(line))
    return parsed


def _read(line: str) -> Override | None:
    parser = OverridesParser.create()
    key, sign, text = line.partition("=")
    forms = [line]
    if _NAMED.fullmatch(key):
        forms = [_with_names(line)]
    elif text[:1] in ("[", "{"):
        forms.append(_with_names(line))
    # Hydra refuses letters beyond ASCII and most signs in a bare value: one of these is a text. A
    # list, a mapping or a quoted text may only be unfinished.
    elif sign and text[:1] not in ("'", '"'):
        forms.append(f"{key}={in_grammar(text, refers=True)}")
    for form in forms:
        with contextlib.suppress(OverrideParseException):
            (parsed,) = parser.parse_overrides([form])
            return parsed
    return None


_NAMED = re.compile(r"(\+*(?:signals|market\.traders))(?:\.(.+))?")
"""A key of a mapping whose names hold colons: ``package.module:Thing``, ``openai:MODEL``."""

_NAMES = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')(\s*:)?|([^\W\d][\w.]*:[^\W\d][\w./-]*)(\s*:)"""
)
"""A quoted text, which a colon makes a key, or a name with a colon as a key."""


def _with_names(line: str) -> str:
    """A line whose mappings have the names of their keys as Hydra reads them.

    Example:
        >>> _with_names("signals.mine.checks:FEW=0.1")
        'signals={mine.checks\\\\:FEW: 0.1}'
    """
    key, sign, text = line.partition("=")
    named = _NAMED.fullmatch(key)
    if sign and named and ":" in (name := named[2] or ""):
        # A shell may have left the quotes around the name.
        key, text = named[1], f"{{'{name.strip(chr(34) + chr(39))}': {text}}}"

    def escaped(found: re.Match[str]) -> str:
        quoted, colon, thing, behind = found.groups()
        if (quoted and not colon) or (thing and not named):
            return found[0]
        name = re.sub(r"[\\()\[\]{}:=, \t]", r"\\\g<0>", quoted[1:-1] if quoted else thing)
        return name + (colon or behind)

    return f"{key}{sign}{_NAMES.sub(escaped, text)}"


MAPPINGS = (
    *("prompts", "policies", "signals", "market.news", "market.traders"),
    *(f"{each}.chat_template_args" for each in ("model", "pool.hf", "traders.hf")),
)
"""Keys of mappings whose names are the user's."""


def as_hydra_takes(overrides: Sequence[str]) -> list[str]:
    """Overrides with ``++`` where they set keys.

    Example:
        >>> as_hydra_takes(["env=kuhn", "seed=3", "prompts.terse.system='Be brief.'"])
        ['env=kuhn', '++seed=3', "++prompts.terse.system='Be brief.'"]
    """
    return [
        # Hydra would stop at the first unknown key; with ++ pydantic judges all together.
        line if is_group(one) or one.is_delete() else f"++{line.lstrip('+')}"
        for one in parse_overrides(overrides)
        for line in [one.input_line or ""]
    ]


def is_group(override: Override) -> bool:
    """Whether an override chooses an option of a group, or of Hydra's own."""
    key = str(override.get_key_element()).lstrip("+~").split("@")[0]
    return (conf_dir() / key).is_dir() or "/" in key


def independent(overrides: Sequence[str], refused: str) -> list[str]:
    """The overrides that can be judged without a ``refused`` one."""
    (wrong,) = parse_overrides([refused])
    # Keys of another algorithm, or of games that are not there, would be refused as consequences.
    above = {key_of(wrong)} if is_group(wrong) else set()
    above |= {"algorithm", *_OF_EXPERIMENTS} if "experiment" in above else set()
    heads = (key_of(one).split(".")[0] for one in parse_overrides(overrides))
    rest = zip(overrides, heads, strict=True)
    return [line for line, head in rest if line != refused and head not in above]


_OF_EXPERIMENTS = ("env", "eval", "policies", "prompts", "rewards")
"""Groups whose keys depend on what an experiment lists."""


def search_path(config_dir: Path | None) -> list[str]:
    """The override that lets Hydra find the groups of a folder, if there is one."""
    if config_dir is None:
        return []
    # Hydra resolves no references here: an escaped one would be another path.
    return [f"hydra.searchpath=[{in_grammar(f'file://{config_dir.resolve()}', refers=True)}]"]


def assignment(key: str, given: object) -> str:
    """``KEY=VALUE`` as a word of a command line that is printed.

    Example:
        >>> assignment("name", "a, b")
        'name="a, b"'
    """
    # A shell's quotes, which are single ones, stand around the whole.
    return f"{key}={in_grammar(given, quote=chr(34))}"


def assignments(values: Mapping[str, object]) -> str:
    """Overrides as they are pasted into a shell, behind a command.

    Example:
        >>> print(assignments({"engine.max_tokens": 16, "name": "a, b"}))
        engine.max_tokens=16 'name="a, b"'
    """
    return shlex.join(assignment(key, given) for key, given in values.items())


def in_grammar(given: object, quote: str = "'", *, refers: bool = False) -> str:
    """A value as it is written behind ``key=``.

    Args:
        quote: The sign around texts.
        refers: A ``${KEY}`` in a text stands for the value of that key.

    Example:
        >>> in_grammar({"final": [{"name": "scale", "alpha": 2.0}], "why": "it's new", "n": None})
        "{final: [{name: scale, alpha: 2.0}], why: 'it\\\\'s new', n: null}"
    """
    if given is None:
        return "null"
    # Before the integers, which truths are in Python.
    if isinstance(given, bool):
        return str(given).lower()
    if isinstance(given, list | tuple):
        return f"[{', '.join(in_grammar(one, quote, refers=refers) for one in given)}]"
    if isinstance(given, Mapping):
        parts = (f"{key}: {in_grammar(one, quote, refers=refers)}" for key, one in given.items())
        return f"{{{', '.join(parts)}}}"
    if isinstance(given, float):
        return float.__repr__(given)  # also of numpy's
    if isinstance(given, Integral):  # numpy's, too
        return str(int(given))
    text = str(given)
    # Hydra would not read these as texts.
    reserved = text.lower() in ("null", "true", "false", "nan", "inf")
    if re.fullmatch(r"[A-Za-z_][\w./:-]*", text, re.ASCII) and not reserved:
        return text
    if not refers:
        text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    # Only in front of a quote Hydra takes a backslash for an escape.
    escaped = re.sub(rf"(\\*){quote}", rf"\1\1\\{quote}", text)
    # A backslash would escape the closing quote.
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return quote + escaped + "\\" * trailing + quote


def _unreadable(override: str) -> str:
    key, sign, text = override.partition("=")
    mend = "write key=value, for example seed=1"
    if key.strip() and key != key.strip():
        mend = f"write it without spaces, {shlex.quote(f'{key.strip()}={text.strip()}')}"
    elif key and text[:1] in ("[", "{", '"', "'"):
        quoted = assignment(key, text)
        if text[0] in "[{":  # the texts inside of it, not the whole
            quoted = key + "=" + re.sub(r"[\w.-]+\([^()]*\)", r'"\g<0>"', text)
        mend = f"such a text needs quotes of its own, {shlex.quote(quoted)}"
        if _read(quoted) is None:
            mend = "write a list as [a, b], a mapping as {key: value}, and each text in quotes"
    elif key.lstrip("+~").startswith("signals.") and not sign:
        off = f"{key.lstrip('+~')}=null"
        mend = f"null switches a signal off, {shlex.quote(off)}"
    elif key and sign:
        mend = f"keys are of letters a to z, digits, _ and dots{alike(key, all_keys())}"
    return f"cannot read override {override!r}: {mend}"


def override_problems(overrides: Sequence[str], root: type[PolicyConfig]) -> Iterator[str]:
    """Yield messages about overrides that Hydra is not given."""
    for override in parse_overrides(overrides):
        name, line = override.get_key_element(), override.input_line or ""
        if not name:
            yield _unreadable(line)
            continue
        if foreign_keys([key_of(override)], root):
            mend = kinds_with(key_of(override), "kind={}")
            yield f"{line} (command line): {root.about} has no such key{mend}"
        if override.is_delete() and key_of(override).rpartition(".")[0] not in MAPPINGS:
            yield f"{line} (command line): nothing can be left out; choose another"
        if key_of(override) == "algorithm.name":
            known = [path.stem for path in (conf_dir() / "algorithm").glob("*.yaml")]
            mend = f"write algorithm={override.value()}{nearest(str(override.value()), known)}"
            yield f"{line} (command line): needs settings of its own; {mend}"
        if key_of(override) in MAPPINGS and override.value() == {}:
            yield (
                f"{line} (command line): adds nothing to the names that are there; "
                f"~{key_of(override)}.NAME leaves one out"
            )
        if key_of(override).split(".")[0] == "hydra":
            yield (
                f"{line} (command line): Hydra's own keys are for sweeps (rlforge train -m); the "
                "run directory is run_dir=…"
            )
        of_group = (conf_dir() / key_of(override)).is_dir()
        given = override.value()
        options = given if isinstance(given, list) else [given]
        if override.is_sweep_override():
            mend = "name one option"
            if not of_group:
                text = shlex.quote(assignment(name, line.partition("=")[2]))
                mend = f"write a list as '{name}=[…]', a text as {text}"
            yield (
                f"{line} (command line): several values are a sweep; start it with "
                f"rlforge train -m, or {mend}"
            )
        elif of_group and not all(isinstance(one, str) for one in options):
            yield f"{line} (command line): give the name of an option of this group"
        if line.startswith("++") and of_group:
            yield f"{line} (command line): write +{key_of(override)}=…"
        if name.startswith("+") and not (conf_dir() / name.lstrip("+").split("@")[0]).is_dir():
            plain = name.lstrip("+")
            if plain.split(".")[0] != "prompts":
                known = all_keys(root)
                mend = f"; write {plain}=… without +" if plain in known else alike(plain, known)
                yield f"{line} (command line): no such key{mend}"
