"""Complaints of Hydra as one or two lines: key or option, file and mend."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import MissingConfigException
from omegaconf import OmegaConf
from yaml import YAMLError

from rlforge.config.complaints import LIST_NEEDED, MAPPING_NEEDED
from rlforge.config.keys import conf_dir, option_file
from rlforge.config.other_trainers import option_for
from rlforge.config.overrides import is_group, key_of, parse_overrides
from rlforge.errors import ConfigError, first_line, nearest


class NoOptionError(ConfigError):
    """A group has no such option."""

    def __init__(self, message: str, group: str, option: str) -> None:
        super().__init__(message)
        self._named = (group, option)

    def line_of(self, overrides: Sequence[str]) -> str | None:
        """The override that named it; None where a file did."""
        for line in overrides:
            (override,) = parse_overrides([line])
            if is_group(override) and (key_of(override), str(override.value())) == self._named:
                return line
        return None


def missing_option(error: MissingConfigException) -> str:
    """The ``GROUP/OPTION`` that Hydra did not find."""
    found = re.search(r"Could not find '([^']+)'", str(error))
    return found.group(1) if found else ""


def explained(error: Exception, dirs: Sequence[Path], usual: Mapping[str, Any]) -> ConfigError:
    """The ConfigError for an error of Hydra. usual: a configuration, as plain values."""
    text = str(error)
    if isinstance(error, MissingConfigException) and (name := missing_option(error)):
        return _no_option(name, text)
    if isinstance(error, UnicodeDecodeError):
        files = (path for folder in dirs for path in sorted(folder.rglob("*.yaml")))
        # The exception has the bytes, and not the file.
        damaged = next((path for path in files if error.object in path.read_bytes()), "a file")
        return ConfigError(f"{damaged}: {error}; save it as UTF-8")
    if isinstance(error, RecursionError):
        return ConfigError(
            f"{dirs[-1]}: the defaults of an option lead back to it; take that entry out"
        )
    if isinstance(error, ValueError | TypeError):
        place = _place(text, dirs).replace("command line", str(dirs[-1]))
        return ConfigError(
            f"{place}: {first_line(error)}; write defaults: [OPTION, {{GROUP: OPTION}}]"
        )
    if isinstance(error, YAMLError):
        return ConfigError(f"YAML does not parse: {' '.join(text.split())}")
    if match := re.search(r"Multiple values for (\w+)", text):
        key = match.group(1)
        return ConfigError(f"+{key}=… (command line): write {key}=… to choose another option")
    if match := re.search(r"Could not override '([^']+)'", text):
        key = match.group(1)
        return ConfigError(f"{key}=… (command line): write +{key}=… to add it")
    if match := re.search(r"Could not delete from config. '(.+)' does not exist", text):
        return ConfigError(f"~{match.group(1)} (command line): no such name")
    if match := re.search(r"Error resolving interpolation '([^']+)'", text):
        return ConfigError(
            f"{match.group(1)} in place of an option: no group of this name is chosen before; "
            "write the name of an option"
        )
    if match := re.search(r"Error merging override \+*(.+)", text):
        # Hydra's own line repeats the override; its cause says what is wrong.
        reason = first_line(error.__cause__ or error)
        # These are Python's words, which name neither the key nor a mend.
        if "list index out of range" in reason:
            reason = "there is no entry of this number; list all: [{id: ID}, …]"
        # OmegaConf names its own classes, in the same words for a list and for a mapping.
        if reason.startswith("Cannot merge"):
            is_list = match.group(1).partition("=")[2].startswith("[")
            reason = MAPPING_NEEDED if is_list else LIST_NEEDED
        return ConfigError(f"{match.group(1)} (command line): {reason}")
    if "ConfigTypeError raised while composing" in text:
        return ConfigError("\n".join(_shapes(_place(text, dirs), text, dirs, usual)))
    return ConfigError(f"({_place(text, dirs)}): {first_line(error)}")


def _shapes(place: str, text: str, dirs: Sequence[Path], usual: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lists in place of mappings of a file, and mappings in place of lists."""
    # Hydra names the file alone.
    name = (re.findall(r"[Ii]n '([^']+)'", text) or [""])[0]
    file = option_file(name, dirs)
    content = None if file is None else OmegaConf.to_container(OmegaConf.load(file))
    if not isinstance(content, dict):
        yield f"{place}: not a mapping of configuration keys"
        return
    whole = file is not None and "@package _global_" in file.read_text(encoding="utf-8")
    content = content if whole else {name.partition("/")[0]: content}
    for key, given, must in _unlike(content, usual):
        yield f"{key}={given} ({place}): {must}"


def _unlike(
    content: Mapping[Any, Any], usual: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, str]]:
    for name, given in content.items():
        key, other = f"{prefix}{name}", usual.get(name)
        if isinstance(given, dict) and isinstance(other, dict):
            yield from _unlike(given, other, f"{key}.")
        elif isinstance(given, dict) and isinstance(other, list):
            yield key, given, LIST_NEEDED
        elif isinstance(given, list) and isinstance(other, dict):
            yield key, given, MAPPING_NEEDED


def unresolved(error: Exception) -> str:
    """Why a reference to another value has none, and a mend."""
    reason = re.sub(r"^\w+ raised while resolving interpolation: ", "", first_line(error))
    return f"{reason.strip(chr(34))}; refer to a value that is there, as ${{learner.batch_size}}"


def _no_option(name: str, text: str) -> ConfigError:
    group, _, option = name.rpartition("/")
    listed = text.split(f"Available options in '{group}':")[-1].split("Config search path")[0]
    options = [line.strip() for line in listed.splitlines() if line.strip()]
    # Hydra lists no options for a folder that does not exist.
    if not group or not options:
        groups = sorted(path.name for path in conf_dir().iterdir() if path.is_dir())
        return ConfigError(f"{name}: no such config group{nearest(name, groups)}")
    mend = nearest(option, options) or f"; there are {', '.join(options)}"
    if here := option_for(group, option):
        mend = f"; in its place there is {here}" if "=" in here.split()[0] else f": {here}"
    return NoOptionError(f"{group}={option}: no such option{mend}", group, option)


def _place(text: str, dirs: Sequence[Path]) -> str:
    match = re.search(r"[Ii]n '([^']+)'", text)
    if not match:
        return "command line"
    if (path := option_file(match.group(1), dirs)) is None:
        return match.group(1)
    return f"conf/{match.group(1)}.yaml" if path.is_relative_to(conf_dir()) else str(path)
