"""From YAML groups and overrides to one typed configuration, or to one readable error."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlforge.config.complaints import InvalidValuesError, Wrong
from rlforge.config.explain import NoOptionError, explained, missing_option, unresolved
from rlforge.config.keys import conf_dir, group_dirs, not_there, option_file, own_values
from rlforge.config.overrides import (
    as_hydra_takes,
    independent,
    key_of,
    override_problems,
    parse_overrides,
    search_path,
)
from rlforge.config.plugins import ALGORITHMS
from rlforge.config.rules import as_values, changed, missing, read, value_at
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.config.stamp import check_stamp, stamped
from rlforge.config.training import algorithm_config
from rlforge.errors import ConfigError, DamagedError, first_line, raise_all, refusals

C = TypeVar("C", bound=PolicyConfig)
C_co = TypeVar("C_co", bound=PolicyConfig, covariant=True)


def register_schemas(root: type[PolicyConfig]) -> None:
    """Give Hydra the defaults of ``root`` as plain YAML."""
    # ``kind`` is a variable of the class, which ``as_values`` leaves out.
    defaults = {**as_values(root()), "kind": root.kind}
    del defaults["algorithm"]  # its keys depend on its name
    ConfigStore.instance().store(name="schema", node=OmegaConf.create(defaults))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composed(Generic[C_co]):
    """A typed configuration and where its values came from.

    Attributes:
        overrides: Words of the command line.
        choices: Group -> chosen option.
        config_dirs: Folders with the YAML files.
        rest: Origin of values that neither sets.
        elsewhere: Origins of keys whose values another key holds, as an entry of ``policies``.
    """

    config: C_co
    overrides: tuple[str, ...] = ()
    choices: dict[str, str] = dataclasses.field(default_factory=dict)
    config_dirs: tuple[Path, ...] = ()
    rest: str = "default"
    elsewhere: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def origin(self, key: str) -> str:
        """Where a dotted key got its value."""
        # An entry of ``policies`` counts more than what is said for all policies.
        for own, place in self.elsewhere.items():
            if f"{key}.".startswith(f"{own}."):
                return place
        # The dots keep ``pool.mode`` from being a part of a key ``pool.mode_of``.
        typed = [
            o
            for o in parse_overrides(self.overrides)
            if f"{key}.".startswith(f"{key_of(o)}.") or key_of(o).startswith(f"{key}.")
        ]
        if typed:
            # A single value counts more than the option of a whole group.
            last = max(enumerate(typed), key=lambda one: (len(key_of(one[1])), one[0]))[1]
            return f"command line, {last.input_line}"
        head, *rest = key.split(".")
        # A profile sets keys of other groups, too, for its card, and a model for its prompts.
        wide = [group for group in ("experiment", "hardware", "model") if group in self.choices]
        places = [(f"{group}/{self.choices[group]}.yaml", key.split(".")) for group in wide]
        places += [(f"{head}/{self.choices[head]}.yaml", rest)] if head in self.choices else []
        places += [(f"{self.config.primary}.yaml", key.split("."))]
        for name, path in places:
            for folder in self.config_dirs:
                if (folder / name).is_file() and _holds(folder / name, path):
                    return f"conf/{name}" if folder == conf_dir() else str(folder / name)
        return self.rest

    def said(self, key: str) -> str:
        """A key with its value, and where that was set."""
        return f"{key}={value_at(self.config, key)} ({self.origin(key)})"

    def error(self, key: str, problem: str) -> ConfigError:
        """A ``ConfigError`` about the value of ``key``, with where it was set."""
        return self.refusal(Wrong(key, value_at(self.config, key), problem))

    def refusal(self, wrong: Wrong) -> ConfigError:
        """A ``ConfigError`` about a wrong value."""
        key, given, origin = wrong.key, wrong.given, self.origin(wrong.key)
        if wrong.unknown:
            return ConfigError(f"{key} ({origin}): no such key{not_there(key, self.config)}")
        # All values of a group would hide the message.
        shown = type(given).__name__ if dataclasses.is_dataclass(given) else given
        return ConfigError(f"{key}={shown} ({origin}): {wrong.reason}")

    def changed(self, assignments: Sequence[str]) -> Composed[C_co]:
        """A copy with ``KEY=VALUE`` on top; ConfigError for impossible values."""
        try:
            return dataclasses.replace(self, config=changed(self.config, assignments))
        except InvalidValuesError as error:
            raise_all(map(self.refusal, error.wrong))
            raise  # unreachable: there is a problem

    def trial(self, key: str, call: Callable[[], object], mend: str = "") -> Iterator[ConfigError]:
        """Yield an ``error`` about ``key`` where ``call`` raises a ConfigError. mend: its end."""
        for error in refusals(call):
            yield self.error(key, f"{error}{mend}")


@overload
def compose(overrides: Sequence[str], config_dir: Path | None = None) -> Composed[RunConfig]: ...


@overload
def compose(
    overrides: Sequence[str], config_dir: Path | None = None, *, root: type[C]
) -> Composed[C]: ...


def compose(
    overrides: Sequence[str],
    config_dir: Path | None = None,
    *,
    root: type[PolicyConfig] = RunConfig,
) -> Composed[Any]:
    """Compose and check the types of a ``root``; ``config_dir`` holds a user's groups.

    Raises ConfigError with a line for each wrong override: key, value, file and mend.

    Example:
        >>> composed = compose(["+experiment=simpletak_mirror", "seed=3"])
        >>> composed.config.seed, composed.origin("seed"), composed.origin("learner.batch_size")
        (3, 'command line, seed=3', 'conf/learner/tiny_ppo.yaml')
    """
    rest, refused = [*overrides], list[object]()
    # Hydra would misread these, or explain them in its own terms.
    for line in overrides:
        if wrong := list(override_problems([line], root)):
            refused += wrong
            rest = independent(rest, line)
    while True:
        try:
            composed = _composed(rest, config_dir, root)
        except ConfigError as error:
            refused.append(error)
            # Hydra stops at the first option that it does not find: the rest is judged without it.
            named = error.line_of(rest) if isinstance(error, NoOptionError) else None
            if named is not None:
                rest = independent(rest, named)
                continue
        else:
            if not refused:
                return composed
            refused += [composed.error(*problem) for problem in composed.config.problems()]
        raise_all(refused)


def _composed(overrides: Sequence[str], config_dir: Path | None, root: type[C]) -> Composed[C]:
    register_schemas(root)
    dirs = group_dirs(config_dir)
    raise_all(_not_read(config_dir) if config_dir else ())
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3", job_name="rlforge"):
            composed = _composed_by_hydra(
                root.primary, [*as_hydra_takes(overrides), *search_path(config_dir)]
            )
    except (
        *(HydraException, OmegaConfBaseException, YAMLError),
        # Hydra lets these through, of files that are no text, or whose defaults are malformed.
        *(ValueError, TypeError, RecursionError),
    ) as error:
        raise explained(error, dirs, as_values(root())) from None
    finally:
        GlobalHydra.instance().clear()
    return from_hydra(composed, overrides, dirs, root)


def _composed_by_hydra(primary: str, overrides: Sequence[str]) -> DictConfig:
    """Compose by Hydra, with the algorithms of plug-ins."""
    offered: set[str] = set()
    while True:
        try:
            found: DictConfig = hydra_compose(
                primary, overrides=list(overrides), return_hydra_config=True
            )
            return found
        except MissingConfigException as error:
            group, _, option = missing_option(error).rpartition("/")
            # An option that is still missing after it was offered would be offered for ever.
            if group.rpartition("/")[2] != "algorithm" or option in offered:
                raise
            if ":" not in option and option not in ALGORITHMS.names():
                raise
            # A plug-in's algorithm has no file: it becomes an option when it is named.
            offered.add(option)
            ConfigStore.instance().store(group="algorithm", name=option, node={"name": option})


def from_hydra(
    composed: DictConfig, overrides: Sequence[str], dirs: Sequence[Path], root: type[C]
) -> Composed[C]:
    """The typed configuration of what Hydra composed, with its ``hydra`` node."""
    # Hydra forgets which file or override set a value, and errors must say it.
    choices = {
        group: option
        for group, option in composed.hydra.runtime.choices.items()
        # Hydra's own groups set no key of a configuration.
        if option is not None and not str(group).startswith("hydra/")
    }
    # Messages about unknown keys name keys of the algorithm that is chosen.
    defaults = root()
    with contextlib.suppress(ConfigError, OmegaConfBaseException):  # said when it is validated
        algorithm = algorithm_config(str(composed.algorithm.name))()
        defaults = dataclasses.replace(defaults, algorithm=algorithm)
    found = Composed(
        config=defaults, overrides=tuple(overrides), choices=choices, config_dirs=tuple(dirs)
    )
    # References in the ``hydra`` node resolve only while Hydra itself runs a job.
    keys: list[Any] = [key for key in composed if key != "hydra"]
    if "experiment" in keys:
        raise_all(_without_package(option_file(f"experiment/{choices.get('experiment')}", dirs)))
    raise_all(map(found.refusal, _not_given(found)))
    try:
        values = OmegaConf.to_container(OmegaConf.masked_copy(composed, keys), resolve=True)
        config = read(root, own_values(root, cast("dict[str, Any]", values)))
    except OmegaConfBaseException as error:
        key = str(error.full_key)
        raise ConfigError(f"{key} ({found.origin(key)}): {unresolved(error)}") from None
    except InvalidValuesError as error:
        raise_all(map(found.refusal, error.wrong))
        raise  # unreachable: there is a problem
    return dataclasses.replace(found, config=config)


def _not_read(config_dir: Path) -> Iterator[str]:
    """Yield a message for each file of the user that Hydra passes over for one of rlforge's."""
    for path in conf_dir().rglob("*.yaml"):
        own = config_dir / path.relative_to(conf_dir())
        if own.is_file() and own.read_bytes() != path.read_bytes():
            why = "rlforge has a file of this name, which is read in its place"
            yield f"{own}: {why}; rename yours"


def _not_given(found: Composed[Any]) -> Iterator[Wrong]:
    """Yield the values that own files mark as missing, and nothing else sets."""
    for group, option in found.choices.items():
        file = option_file(f"{group}/{option}", found.config_dirs[1:])
        if file is not None:
            content = OmegaConf.to_container(load_mapping(file), resolve=False)
            # Hydra keeps the value of before, as if the file did not have the key.
            for one in missing(content, "" if group == "experiment" else group):
                if found.origin(one.key) in (str(file), f"command line, {group}={option}"):
                    yield one


def _without_package(experiment: Path | None) -> Iterator[str]:
    """Yield a message for an experiment's file whose keys Hydra puts below ``experiment``."""
    if experiment is None:
        return
    text = experiment.read_text(encoding="utf-8")
    if not text.strip():
        yield f"{experiment}: is empty; write keys of a run below the line '# @package _global_'"
    elif "@package _global_" not in text:
        yield f"{experiment}: its first line must be '# @package _global_', else it sets no keys"


def to_yaml(config: PolicyConfig) -> str:
    """The resolved configuration as YAML."""
    # No secrets: these live in the environment alone.
    content = {"kind": config.kind, **as_values(config)}
    return str(OmegaConf.to_yaml(OmegaConf.create(content)))


def run_yaml(config: PolicyConfig, about: str = "") -> str:
    """A run's ``config.yaml``, with its digest in the first line. about: a comment below."""
    comment = f"# {about}\n" if about else ""
    return stamped(f"{comment}{to_yaml(config)}")


@overload
def from_yaml(path: Path, *, gone: bool = False) -> RunConfig: ...


@overload
def from_yaml(path: Path, root: type[C], *, gone: bool = False) -> C: ...


def from_yaml(path: Path, root: type[Any] = RunConfig, *, gone: bool = False) -> Any:
    """Read a run's ``config.yaml``; DamagedError where it is not whole, ConfigError for its values.

    gone: leave unknown keys out.
    """
    try:
        values = OmegaConf.to_container(run_mapping(path), resolve=True)
        own = own_values(root, cast("dict[str, Any]", values))
        return _read_known(root, own) if gone else read(root, own)
    except InvalidValuesError as error:
        mend = (
            "this key is gone, or never was one; delete it there (CHANGELOG.md says which keys are "
            "constants now)"
        )
        raise_all(
            f"{path}: {one.key}: {mend}" if one.unknown else f"{path}: {one}" for one in error.wrong
        )
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {first_line(error)}") from None


def _read_known(root: type[C], values: dict[str, Any]) -> C:
    try:
        return read(root, values)
    except InvalidValuesError as error:
        if not all(one.unknown for one in error.wrong):
            raise
        for one in error.wrong:
            group, _, name = one.key.rpartition(".")
            del value_at(values, group)[name]
        return read(root, values)


def run_mapping(path: Path) -> DictConfig:
    """The keys of a run's ``config.yaml``; DamagedError for none, ConfigError without the file."""
    if path.is_dir():
        raise DamagedError(f"{path}: is a folder; restore the file from a copy of the run")
    # Keys that a cut file lacks would get their defaults: another experiment would go on.
    check_stamp(path)
    try:
        found = load_mapping(path)
    except ConfigError as error:
        # A crash or a full disk leaves such a file, no user; another folder may be meant.
        if path.exists():
            raise DamagedError(str(error)) from None
        raise
    if not found:
        raise DamagedError(f"{path}: is empty; restore it from a copy of the run")
    return found


def load_mapping(path: Path) -> DictConfig:
    """The keys of a YAML file; ConfigError where it is missing or damaged."""
    try:
        loaded = OmegaConf.load(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: not found; is this a run directory?") from None
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError, OSError) as error:
        # OmegaConf has OSErrors of its own, without a number; those of the system say enough.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        # The first line of a YAMLError does not say which line of the file is damaged.
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path}: not a mapping of configuration keys")
    return loaded


def _holds(path: Path, keys: Sequence[str]) -> bool:
    # Unresolved, because a file may refer to keys of another.
    node: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    for key in keys:
        if isinstance(node, list) and key.isdecimal():
            node = node[int(key)] if int(key) < len(node) else None
        elif isinstance(node, dict) and key in (named := {str(name): name for name in node}):
            node = node[named[key]]
        else:
            return False
    return True


warnings.filterwarnings("ignore", message="provider=hydra.searchpath", category=UserWarning)
