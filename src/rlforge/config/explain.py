"""Complaints of Hydra and OmegaConf as one or two lines: key, value, file and mend."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import MissingConfigException
from yaml import YAMLError

from rlforge.config.keys import alike, all_keys, conf_dir
from rlforge.config.overrides import as_hydra_takes
from rlforge.config.rules import Group
from rlforge.config.training import ALGORITHM_CONFIGS, AlgorithmConfig
from rlforge.errors import ConfigError, nearest


def missing_option(error: MissingConfigException) -> str:
    """The group and option that Hydra did not find, ``GROUP/OPTION``."""
    found = re.search(r"Could not find '([^']+)'", str(error))
    return found.group(1) if found else ""


def explained(
    error: Exception, overrides: Sequence[str], dirs: Sequence[Path], root: type
) -> ConfigError:
    """Hydra's complaint in one or two lines: key, value, file, mend."""
    text = str(error)
    where = _place(text, dirs)
    if isinstance(error, MissingConfigException) and (name := missing_option(error)):
        return _no_option(name, text)
    if isinstance(error, YAMLError):
        return ConfigError(f"YAML does not parse: {' '.join(text.split())}")
    if match := re.search(r"Multiple values for (\w+)", text):
        key = match.group(1)
        return ConfigError(f"+{key}=… (command line): write {key}=… to choose another option")
    if match := re.search(r"Could not override '([^']+)'", text):
        key = match.group(1)
        if (conf_dir() / key).is_dir():
            return ConfigError(f"{key}=… (command line): write +{key}=… to add it")
        cause = error.__cause__
        if cause is not None and "not in" in str(cause):
            return _unknown_key(str(cause), key, "command line", root)
        return ConfigError(f"{key} (command line): no such key{alike(key, all_keys(root))}")
    if match := re.search(r"Could not delete from config. '(.+)' does not exist", text):
        return ConfigError(f"~{match.group(1)} (command line): no such name")
    if match := re.search(r"Error merging override (.+)", text):
        cause = error.__cause__ or error
        if "not in '" in str(cause):
            return _unknown_key(str(cause), "", "command line", root)
        typed = dict(zip(as_hydra_takes(overrides), overrides, strict=True))
        line = typed.get(match.group(1), match.group(1))
        return ConfigError(f"{line} (command line): {_of_a_value(cause)}")
    if "not in '" in text:
        return _unknown_key(text, "", where, root)
    key_match = re.search(r"full_key: (\S+)", text)
    reason = next((line for line in text.splitlines() if "alue" in line and "rror" not in line), "")
    key = f"{key_match.group(1)} " if key_match else ""
    return ConfigError(f"{key}({where}): {reason or first_line(error)}")


def _of_a_value(error: BaseException) -> str:
    """What OmegaConf says of a value that does not fit its key."""
    text = first_line(error)
    if "is not Optional" in text:
        return "cannot be null"
    if "is not a ListConfig, list or tuple" in text:
        return "must be a list, in brackets: [ONE, TWO]"
    if "to Dict[" in text or "merge DictConfig with ListConfig" in text:
        return "must be a mapping: {name: NAME}"
    if re.search(r"dict is not a subclass of \w+. value: \{\}", text):
        return "there is no entry of this number; list all: [{id: ID}, …]"
    return text


def _unknown_key(text: str, parent: str, where: str, root: type) -> ConfigError:
    full = re.search(r"full_key: (\S+)", text)
    owner = re.search(r"not in '(\w+)'", text)
    key = full.group(1) if full else parent
    if parent.startswith(f"{key}."):  # the group is unknown
        key = parent
    elif parent and full:  # entries of lists are in brackets there
        key = re.sub(r"\[(\d+)\]", r".\1", key)
        key = key if key.startswith(parent) else f"{parent}[].{key}"
    known, kind = all_keys(root), ""
    if owner and (cls := _class_called(owner.group(1))):
        head = key.rpartition(".")[0]
        own = [f"{head}.{name}" if head else name for name in all_keys(cls)]
        known += own  # entries of lists have keys that are in none of the root's
        if issubclass(cls, AlgorithmConfig):
            known = own
            kind = f" in {cls.__name__}"
            others = [
                name
                for name, one in ALGORITHM_CONFIGS.items()
                if key in all_keys(one, "algorithm.")
            ]
            if others:
                end = "has it" if len(others) == 1 else "have it"
                kind += f"; algorithm={' and '.join(others)} {end}"
                return ConfigError(f"{key} ({where}): no such key{kind}")
    return ConfigError(f"{key} ({where}): no such key{kind}{alike(key, known)}")


def _class_called(name: str) -> type[Group] | None:
    """A class of the configuration by its name, which OmegaConf's errors have."""
    classes = Group.__subclasses__()
    for cls in classes:
        classes += cls.__subclasses__()
    return next((cls for cls in reversed(classes) if cls.__name__ == name), None)


def _no_option(name: str, text: str) -> ConfigError:
    group, _, option = name.rpartition("/")
    listed = text.split(f"Available options in '{group}':")[-1].split("Config search path")[0]
    options = [line.strip() for line in listed.splitlines() if line.strip()]
    if not group or not options:
        groups = sorted(path.name for path in conf_dir().iterdir() if path.is_dir())
        return ConfigError(f"{name}: no such config group{nearest(name, groups)}")
    mend = nearest(option, options) or f"; there are {', '.join(options)}"
    return ConfigError(f"{group}={option}: no such option{mend}")


def _place(text: str, dirs: Sequence[Path]) -> str:
    match = re.search(r"In '([^']+)':", text)
    if not match:
        return "command line"
    for folder in reversed(dirs):
        path = folder / f"{match.group(1)}.yaml"
        if path.is_file():
            return f"conf/{match.group(1)}.yaml" if folder == conf_dir() else str(path)
    return match.group(1)


def first_line(error: BaseException) -> str:
    """Of an error's text, or the name of its class."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
