"""From YAML groups and overrides to one typed configuration, or to one readable error.

Hydra composes; this module names the files and remembers where each value came from, so that later
checks can say it too.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from rlforge.config.explain import explained, first_line, missing_option
from rlforge.config.keys import all_roots, conf_dir, group_dirs
from rlforge.config.overrides import as_hydra_takes, check_overrides, key_of, parse_overrides
from rlforge.config.plugins import ALGORITHMS
from rlforge.config.rules import as_values, build, plain, plain_fields
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.config.training import ALGORITHM_CONFIGS, algorithm_config
from rlforge.errors import ConfigError, raise_all, refusals

C = TypeVar("C", bound=PolicyConfig)
C_co = TypeVar("C_co", bound=PolicyConfig, covariant=True)


def _schema(root: type[PolicyConfig]) -> type:
    """The type behind the YAML of ``root``: it has the groups and keys of the other roots, too.

    So one option may set keys of several roots (``learner=tiny_ppo``); ``build`` leaves out those
    that ``root`` does not have.
    """
    own = plain_fields(root)
    found = [*own.items(), *(item for one in all_roots() for item in plain_fields(one).items())]
    groups = {name: field for name, field in found if dataclasses.is_dataclass(field[1])}
    # Own keys last: of one kind ``market`` is a group, of another one a key.
    keys = {name: field for name, field in own.items() if not dataclasses.is_dataclass(field[1])}
    fields = dict(found) | groups | keys
    # Experiments say it; ``rlforge.config.roots`` has compared it with ``root``.
    fields["kind"] = ("kind", str, dataclasses.field(default=root.kind))
    return dataclasses.make_dataclass("Configuration", fields.values())


def register_schemas(root: type[PolicyConfig]) -> None:
    """Tell Hydra the types behind the YAML; harmless when repeated."""
    store = ConfigStore.instance()
    if root not in _STORED:  # it takes a quarter of a composition
        store.store(name="schema", node=_schema(root))
        _STORED[root] = store.repo["schema.yaml"]
    store.repo["schema.yaml"] = _STORED[root]
    _register_algorithms()


_STORED: dict[type[PolicyConfig], Any] = {}
"""The schemas as Hydra keeps them."""


@functools.cache
def _register_algorithms() -> None:
    for name, node in ALGORITHM_CONFIGS.items():
        ConfigStore.instance().store(group="schemas/algorithm", name=name, node=plain(node))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composed(Generic[C_co]):
    """A typed configuration and where its values came from.

    overrides: as typed on the command line. choices: group -> chosen option. rest: where values
    are from that neither the command line nor a YAML file of ``config_dirs`` sets. elsewhere: where
    values of keys are from that another key holds, as an entry of ``policies`` does.
    """

    config: C_co
    overrides: tuple[str, ...] = ()
    choices: dict[str, str] = dataclasses.field(default_factory=dict)
    config_dirs: tuple[Path, ...] = ()
    rest: str = "default"
    elsewhere: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def origin(self, key: str) -> str:
        """Where ``key`` (dotted) got its value: the command line, a YAML file, or the default."""
        for own, place in self.elsewhere.items():
            if f"{key}.".startswith(f"{own}."):
                return place
        typed = [
            o for o in parse_overrides(self.overrides) if f"{key}.".startswith(f"{key_of(o)}.")
        ]
        if typed:  # a single value counts more than the option of a whole group
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
        return f"{key}={attrgetter(key)(self.config)} ({self.origin(key)})"

    def error(self, key: str, problem: str) -> ConfigError:
        """A ``ConfigError`` about ``key``: its value, where it was set, and what is wrong."""
        current: Any = self.config
        for part in key.split("."):
            if isinstance(current, list):
                current = current[int(part)]
            else:
                current = current[part] if isinstance(current, dict) else getattr(current, part)
        shown = type(current).__name__ if dataclasses.is_dataclass(current) else current
        return ConfigError(f"{key}={shown} ({self.origin(key)}): {problem}")

    def trial(self, key: str, call: Callable[[], object], mend: str = "") -> Iterator[ConfigError]:
        """An ``error`` about ``key`` where ``call`` raises a ConfigError. mend: the end of it."""
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
    """Compose and type-check a ``root``; ``config_dir`` holds a user's groups and experiments.

    Raises ConfigError: for each override that is wrong a line that names key, value, file and mend.

    Example:
        >>> composed = compose(["+experiment=simpletak_mirror", "seed=3"])
        >>> composed.config.seed, composed.origin("seed"), composed.origin("learner.batch_size")
        (3, 'command line, seed=3', 'conf/learner/tiny_ppo.yaml')
    """
    try:
        return _composed(overrides, config_dir, root)
    except ConfigError as error:
        raise_all([error, *_wrong_alone(overrides, config_dir, root)])
        raise  # unreachable: there is a problem


def _wrong_alone(
    overrides: Sequence[str], config_dir: Path | None, root: type[PolicyConfig]
) -> Iterator[ConfigError]:
    """What is wrong with each option alone, or else with each value beside the options."""
    keys = [override.partition("=")[0].lstrip("+~").split("/")[0] for override in overrides]
    of_groups = [
        "=" not in override or (conf_dir() / key).is_dir()
        for override, key in zip(overrides, keys, strict=True)
    ]
    options = list(itertools.compress(overrides, of_groups))
    wrong = [*refusals(*(partial(_composed, [one], config_dir, root) for one in options))]
    yield from wrong
    for override, of_group in zip(overrides, of_groups, strict=True):
        if not (wrong or of_group):
            yield from refusals(partial(_composed, [*options, override], config_dir, root))


def _composed(overrides: Sequence[str], config_dir: Path | None, root: type[C]) -> Composed[C]:
    register_schemas(root)
    dirs = group_dirs(config_dir)
    check_overrides(overrides, root)
    search = [f"hydra.searchpath=[file://{config_dir.resolve()}]"] if config_dir else []
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3", job_name="rlforge"):
            composed = _composed_by_hydra(root.primary, [*as_hydra_takes(overrides), *search])
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise explained(error, overrides, dirs, root) from None
    finally:
        GlobalHydra.instance().clear()
    return from_hydra(composed, overrides, dirs, root)


def _composed_by_hydra(primary: str, overrides: Sequence[str]) -> DictConfig:
    """What Hydra composes; algorithms of others become options of their group as they are named."""
    offered: set[str] = set()
    while True:
        try:
            found: DictConfig = hydra_compose(
                primary, overrides=list(overrides), return_hydra_config=True
            )
            return found
        except MissingConfigException as error:
            group, _, option = missing_option(error).rpartition("/")
            if group.rpartition("/")[2] != "algorithm" or option in offered:
                raise
            if ":" not in option and option not in ALGORITHMS.names():
                raise
            offered.add(option)
            kind = algorithm_config(option)
            settings = OmegaConf.structured(plain(kind))
            settings.name = option
            ConfigStore.instance().store(group="algorithm", name=option, node=settings)


def from_hydra(
    composed: DictConfig, overrides: Sequence[str], dirs: Sequence[Path], root: type[C]
) -> Composed[C]:
    """The typed configuration inside what Hydra composed (with its ``hydra`` node)."""
    choices = {
        group: option
        for group, option in composed.hydra.runtime.choices.items()
        if option is not None and not str(group).startswith("hydra/")
    }
    try:
        keys = [field.name for field in dataclasses.fields(root)]
        values = OmegaConf.to_container(OmegaConf.masked_copy(composed, keys), resolve=True)
    except OmegaConfBaseException as error:
        raise explained(error, overrides, tuple(dirs), root) from None
    return Composed(
        config=build(root, cast("dict[str, Any]", values)),
        overrides=tuple(overrides),
        choices=choices,
        config_dirs=tuple(dirs),
    )


def to_yaml(config: PolicyConfig) -> str:
    """The resolved configuration as YAML; secrets live in the environment, so it holds none."""
    content = {"kind": config.kind, **as_values(config)}
    return str(OmegaConf.to_yaml(OmegaConf.create(content)))


@overload
def from_yaml(path: Path) -> RunConfig: ...


@overload
def from_yaml(path: Path, root: type[C]) -> C: ...


def from_yaml(path: Path, root: type[Any] = RunConfig) -> Any:
    """Read a run directory's ``config.yaml`` back as ``root``, without what only others have.

    Raises ConfigError when it is missing or damaged.
    """
    try:
        loaded = load_mapping(path)
        name = OmegaConf.select(loaded, "algorithm.name", default="reinforce")
        try:
            base = _defaults(root, algorithm_config(name))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        merged = OmegaConf.merge(base, loaded)
        return build(root, cast("dict[str, Any]", OmegaConf.to_container(merged, resolve=True)))
    except ConfigKeyError as error:
        raise ConfigError(
            f"{path}: {error.full_key}: this key is gone, or never was one; delete it there "
            "(CHANGELOG.md says which keys are constants now)"
        ) from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {first_line(error)}") from None


def _defaults(root: type[PolicyConfig], algorithm: type) -> DictConfig:
    """All keys of ``root`` with the settings of an algorithm; callers only read it."""
    key = root, algorithm
    if key not in _DEFAULTS:
        _DEFAULTS[key] = OmegaConf.structured(_schema(root))
        _DEFAULTS[key].algorithm = OmegaConf.structured(plain(algorithm))
    return _DEFAULTS[key]


_DEFAULTS: dict[tuple[type, type], DictConfig] = {}
"""By root and algorithm: to make one takes half as long as to read a file."""


def load_mapping(path: Path) -> DictConfig:
    """The keys of a YAML file. Raises ConfigError when it is missing or damaged."""
    try:
        loaded = OmegaConf.load(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: not found; is this a run directory?") from None
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{path}: {first_line(error)}") from None
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path}: not a mapping of configuration keys")
    return loaded


def _holds(path: Path, keys: Sequence[str]) -> bool:
    node: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    for key in keys:
        if isinstance(node, list) and key.isdigit():
            node = node[int(key)] if int(key) < len(node) else None
        elif isinstance(node, dict) and key in node:
            node = node[key]
        else:
            return False
    return True


warnings.filterwarnings("ignore", message="provider=hydra.searchpath", category=UserWarning)
