"""Overrides of the command line: ``key=value``, in the grammar of Hydra."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException

from rlforge.config.keys import alike, all_keys, all_roots, conf_dir, foreign_keys, kinds_with
from rlforge.config.rules import plain_fields
from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError, check_type


def key_of(override: Override) -> str:
    """The key or group that an override sets."""
    return str(override.get_key_element()).lstrip("+~/").split("@")[0].split("/")[0]


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """As Hydra reads them; ConfigError for the first that it cannot.

    A bare name that is no key is the experiment of that name.

    Example:
        >>> [override.input_line for override in parse_overrides(["kuhn_grpo", "seed=3"])]
        ['+experiment=kuhn_grpo', 'seed=3']
    """
    for each in overrides:
        check_type(each, str, what="an override is a text, as 'learner.batch_size=64'")
    keys = {name for root in all_roots() for name in plain_fields(root)}
    lines = [
        f"+experiment={o}" if re.fullmatch(r"[A-Za-z][\w-]*", o) and o not in keys else o
        for o in overrides
    ]
    try:
        parsed: list[Override] = OverridesParser.create().parse_overrides(lines)
    except OverrideParseException as error:
        raise ConfigError(_unreadable(error.override or "")) from None
    return parsed


MAPPINGS = (
    *("prompts", "policies", "market.news", "market.traders"),
    *("model.chat_template_args", "pool.hf.chat_template_args"),
)
"""Keys whose values are mappings with names of the user's."""


def as_hydra_takes(overrides: Sequence[str]) -> list[str]:
    """Overrides in which entries of ``MAPPINGS`` are whole mappings: Hydra adds no new ones.

    Example:
        >>> as_hydra_takes(["seed=3", "prompts.terse.system='Be brief.'", "market.news.herald=0.8"])
        ['seed=3', "++prompts={terse: {system: 'Be brief.'}}", '++market.news={herald: 0.8}']
    """
    lines = []
    for override in parse_overrides(overrides):
        key = override.get_key_element().lstrip("+")
        line = override.input_line or ""
        head = next((name for name in MAPPINGS if f"{key}.".startswith(f"{name}.")), None)
        if head is not None and not override.is_delete():
            path = key.removeprefix(head).split(".")[1:]
            texts = [line.partition("=")[2] or "''"]
            if override.is_discrete_sweep():
                texts = list(override.sweep_string_iterator())
            for part in reversed(path):
                texts = [f"{{{part}: {text}}}" for text in texts]
            line = f"++{head}={','.join(texts)}"
        lines.append(line)
    return lines


def in_grammar(given: object, quote: str = "'") -> str:
    """A value as it is written behind ``key=`` on the command line. quote: around texts.

    Example:
        >>> in_grammar({"final": [{"name": "scale", "alpha": 2.0}], "why": "it's new", "n": None})
        "{final: [{name: scale, alpha: 2.0}], why: 'it\\\\'s new', n: null}"
    """
    if given is None:
        return "null"
    if isinstance(given, bool):
        return str(given).lower()
    if isinstance(given, list | tuple):
        return f"[{', '.join(in_grammar(one, quote) for one in given)}]"
    if isinstance(given, Mapping):
        parts = (f"{key}: {in_grammar(one, quote)}" for key, one in given.items())
        return f"{{{', '.join(parts)}}}"
    if isinstance(given, float):
        return float.__repr__(given)  # also of numpy's
    if isinstance(given, int):
        return repr(given)
    text = str(given)
    reserved = text.lower() in ("null", "true", "false", "nan", "inf")
    if re.fullmatch(r"[A-Za-z_][\w./:-]*", text, re.ASCII) and not reserved:
        return text
    escaped = re.sub(rf"(\\*){quote}", rf"\1\1\\{quote}", text)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return quote + escaped + "\\" * trailing + quote


def _unreadable(override: str) -> str:
    key, _, text = override.partition("=")
    mend = "write key=value, for example seed=1"
    if key != key.rstrip() or text != text.strip():
        mend = f"write it without spaces, {key.strip()}={text.strip()}"
    elif key and re.search(r"[^\w.+-]", text) and '"' not in text:
        quoted = f'"{text}"'
        if text[:1] in "[{":  # the texts inside of it, not the whole
            quoted = re.sub(r"[\w.-]+\([^()]*\)", r'"\g<0>"', text)
        mend = f"such a text needs quotes of its own, '{key}={quoted}'"
    return f"cannot read override {override!r}: {mend}"


def check_overrides(overrides: Sequence[str], root: type[PolicyConfig]) -> None:
    """Refuse overrides that Hydra would misread or explain in its own terms.

    ``+key=value`` may add a group choice (``+experiment=``), never a key the schema lacks.
    """
    for override in parse_overrides(overrides):
        name, line = override.get_key_element(), override.input_line or ""
        if not name:
            raise ConfigError(_unreadable(line))
        if foreign_keys([key_of(override)], root):
            mend = kinds_with(key_of(override), "kind={}")
            raise ConfigError(f"{line} (command line): {root.about} has no such key{mend}")
        if override.is_delete() and key_of(override).rpartition(".")[0] not in MAPPINGS:
            raise ConfigError(f"{line} (command line): nothing can be left out; choose another")
        if key_of(override) in MAPPINGS and override.value() == {}:
            raise ConfigError(
                f"{line} (command line): adds nothing to the names that are there; "
                f"~{key_of(override)}.NAME leaves one out"
            )
        if key_of(override).split(".")[0] == "hydra":
            raise ConfigError(
                f"{line} (command line): Hydra's own keys are for sweeps (rlforge train -m); the "
                "run directory is run_dir=…"
            )
        if override.is_sweep_override():
            raise ConfigError(
                f"{line} (command line): several values are a sweep; start it with "
                f"rlforge train -m, or write a list as '{name}=[…]'"
            )
        is_group = (conf_dir() / key_of(override)).is_dir()
        if is_group and not isinstance(override.value(), str | list):
            raise ConfigError(f"{line} (command line): give the name of an option of this group")
        if line.startswith("++") and is_group:
            raise ConfigError(f"{line} (command line): write +{key_of(override)}=…")
        if name.startswith("+") and not (conf_dir() / name.lstrip("+").split("@")[0]).is_dir():
            plain = name.lstrip("+")
            if plain.split(".")[0] != "prompts":
                known = all_keys(root)
                mend = f"; write {plain}=… without +" if plain in known else alike(plain, known)
                raise ConfigError(f"{line} (command line): no such key{mend}")
