"""From YAML groups and overrides to one typed configuration, or to one readable error.

Hydra composes; this module names the files, translates Hydra's complaints into a sentence with key,
value, file and mend, and remembers where each value came from so that later checks can say it too.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlforge.config import schema
from rlforge.config.continuous import GAME_GROUPS, ContinuousConfig
from rlforge.errors import ConfigError, nearest

ALGORITHMS = {
    "reinforce": schema.ReinforceConfig,
    "grpo": schema.GrpoConfig,
    "window_grpo": schema.WindowGrpoConfig,
    "a2c": schema.A2cConfig,
    "ppo": schema.PpoConfig,
}


def conf_dir() -> Path:
    """The YAML groups that ship with rlforge: inside the package, or beside its sources."""
    packaged = Path(__file__).resolve().parents[1] / "conf"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "conf"


def register_schemas() -> None:
    """Tell Hydra the types behind the YAML; harmless when repeated."""
    store = ConfigStore.instance()
    store.store(name="run_schema", node=schema.RunConfig)
    for name, node in ALGORITHMS.items():
        store.store(group="schemas/algorithm", name=name, node=node)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composed:
    """A typed configuration and where its values came from.

    overrides: as typed on the command line. choices: group -> chosen option. primary: the YAML
    file in ``conf/`` that all else was composed onto.
    """

    config: schema.RunConfig
    overrides: tuple[str, ...]
    choices: dict[str, str]
    config_dirs: tuple[Path, ...]
    primary: str = "config"

    def origin(self, key: str) -> str:
        """Where ``key`` (dotted) got its value: the command line, a YAML file, or the default."""
        for override in parse_overrides(self.overrides):
            name = override.get_key_element().lstrip("+~").split("@")[0]
            if key == name or key.startswith(f"{name}."):
                return f"command line, {override.input_line}"
        head, *rest = key.split(".")
        experiment, option = self.choices.get("experiment"), self.choices.get(head)
        places = [(f"experiment/{experiment}.yaml", key.split("."))] if experiment else []
        profile = self.choices.get("hardware")  # sets keys of other groups, too, for its card
        places += [(f"hardware/{profile}.yaml", key.split("."))] if profile else []
        places += [(f"{head}/{option}.yaml", rest)] if option else []
        places += [(f"{self.primary}.yaml", key.split("."))]
        for name, path in places:
            for folder in self.config_dirs:
                if (folder / name).is_file() and _holds(folder / name, path):
                    return f"conf/{name}" if folder == conf_dir() else str(folder / name)
        return "default"

    def error(self, key: str, problem: str) -> ConfigError:
        """A ``ConfigError`` about ``key``: its value, where it was set, and what is wrong."""
        current: Any = self.config
        for part in key.split("."):
            current = current[int(part)] if part.isdigit() else getattr(current, part)
        return ConfigError(f"{key}={_show(current)} ({self.origin(key)}): {problem}")


def compose(
    overrides: Sequence[str],
    config_dir: Path | None = None,
    *,
    root: type[schema.RunConfig] = schema.RunConfig,
    primary: str = "config",
) -> Composed:
    """Compose and type-check; ``config_dir`` holds the user's own groups and experiments.

    root: class of the whole configuration. primary: the YAML file that composition starts from;
    any but ``config`` names ``PRIMARY_schema`` as the type behind it.
    Raises ConfigError: one message that names key, value, file and mend.
    """
    register_schemas()
    if primary != "config":
        ConfigStore.instance().store(name=f"{primary}_schema", node=root)
    dirs = group_dirs(config_dir)
    _check_overrides(overrides, root)
    search = [f"hydra.searchpath=[file://{config_dir.resolve()}]"] if config_dir else []
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3", job_name="rlforge"):
            composed = hydra_compose(
                primary, overrides=[*overrides, *search], return_hydra_config=True
            )
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise _explain(error, overrides, dirs, root) from None
    finally:
        GlobalHydra.instance().clear()
    return dataclasses.replace(from_hydra(composed, overrides, dirs, root), primary=primary)


def group_dirs(config_dir: Path | None) -> tuple[Path, ...]:
    """Folders with groups, the user's own last; ConfigError when that is not there."""
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir {config_dir}: no such directory")
    return (conf_dir(), *([config_dir.resolve()] if config_dir else []))


def from_hydra(
    composed: DictConfig,
    overrides: Sequence[str],
    dirs: Sequence[Path],
    root: type[schema.RunConfig] = schema.RunConfig,
) -> Composed:
    """The typed configuration inside what Hydra composed (with its ``hydra`` node)."""
    choices = {
        group: option
        for group, option in composed.hydra.runtime.choices.items()
        if option is not None and not str(group).startswith("hydra/")
    }
    values = OmegaConf.masked_copy(composed, [field.name for field in dataclasses.fields(root)])
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(root), values))
    except OmegaConfBaseException as error:
        raise _explain(error, overrides, tuple(dirs), root) from None
    assert isinstance(config, root)
    return Composed(
        config=config, overrides=tuple(overrides), choices=choices, config_dirs=tuple(dirs)
    )


def to_yaml(config: schema.RunConfig) -> str:
    """The resolved configuration as YAML; secrets live in the environment, so it holds none.

    Groups that a continuous run has no use for are left out of its own.
    """
    node = OmegaConf.structured(config)
    if isinstance(config, ContinuousConfig):
        node = OmegaConf.masked_copy(node, [key for key in node if key not in GAME_GROUPS])
    return str(OmegaConf.to_yaml(node))


def from_yaml(path: Path, root: type[schema.RunConfig] = schema.RunConfig) -> schema.RunConfig:
    """Read a run directory's ``config.yaml`` back as ``root``.

    What only a continuous run has is left out of any other ``root``. Raises ConfigError when it is
    missing or damaged.
    """
    register_schemas()
    try:
        loaded = OmegaConf.load(path)
        if not isinstance(loaded, DictConfig):
            raise ConfigError(f"{path}: not a mapping of configuration keys")
        own = {field.name for field in dataclasses.fields(root)}
        others = {field.name for field in dataclasses.fields(ContinuousConfig)} - own
        kept = [str(key) for key in loaded if str(key) not in others]
        loaded = OmegaConf.masked_copy(loaded, kept)
        base = OmegaConf.structured(root)
        name = OmegaConf.select(loaded, "algorithm.name", default="reinforce")
        if name not in ALGORITHMS:
            raise ConfigError(f"{path}: algorithm.name={name}{nearest(name, ALGORITHMS)}")
        base.algorithm = OmegaConf.structured(ALGORITHMS[name])
        config = OmegaConf.to_object(OmegaConf.merge(base, loaded))
    except FileNotFoundError:
        raise ConfigError(f"{path}: not found; is this a run directory?") from None
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{path}: {_first_line(error)}") from None
    assert isinstance(config, root)
    return config


def all_keys(node: Any = schema.RunConfig, prefix: str = "") -> list[str]:
    """Every dotted key of the configuration, for suggestions."""
    return [
        key
        for field in dataclasses.fields(node)
        for key in _keys_of(field, f"{prefix}{field.name}")
    ]


def _keys_of(field: dataclasses.Field[Any], name: str) -> list[str]:
    if name == "algorithm":
        return [name, *(key for cls in ALGORITHMS.values() for key in all_keys(cls, "algorithm."))]
    nested = nested_class(field)
    return [name, *(all_keys(nested, f"{name}.") if nested else [])]


def nested_class(field: dataclasses.Field[Any]) -> type | None:
    """The configuration class behind a field, if it holds one."""
    factory: Any = field.default_factory
    return factory if isinstance(factory, type) and dataclasses.is_dataclass(factory) else None


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """As Hydra reads them; ConfigError for the first that it cannot."""
    try:
        parsed: list[Override] = OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise ConfigError(_unreadable(error.override or "")) from None
    return parsed


def _unreadable(override: str) -> str:
    return f"cannot read override {override!r}: write key=value, for example seed=1"


def _check_overrides(overrides: Sequence[str], root: type) -> None:
    """Refuse what Hydra would read in a way that nobody means, or explain in its own terms.

    ``+key=value`` may add a group choice (``+experiment=``), never a key the schema lacks.
    """
    for override in parse_overrides(overrides):
        name, line = override.get_key_element(), override.input_line or ""
        if not name:
            raise ConfigError(_unreadable(line))
        if override.is_sweep_override():
            raise ConfigError(
                f"{line} (command line): several values are a sweep; start it with "
                f"rlforge train -m, or write a list as '{name}=[…]'"
            )
        if name.startswith("+") and not (conf_dir() / name.lstrip("+").split("@")[0]).is_dir():
            plain = name.lstrip("+")
            if plain.split(".")[0] != "hydra":
                known = all_keys(root)
                mend = f"; write {plain}=… without +" if plain in known else nearest(plain, known)
                raise ConfigError(f"{line} (command line): no such key{mend}")


def _explain(
    error: Exception, overrides: Sequence[str], dirs: Sequence[Path], root: type
) -> ConfigError:
    """Hydra's complaint in one or two lines: key, value, file, mend."""
    text = str(error)
    where = _place(text, dirs)
    if isinstance(error, MissingConfigException) and (
        missing := re.search(r"Could not find '([^']+)'", text)
    ):
        return _missing_option(missing.group(1), text)
    if isinstance(error, YAMLError):
        return ConfigError(f"YAML does not parse: {' '.join(text.split())}")
    if match := re.search(r"Could not override '([^']+)'", text):
        key = match.group(1)
        if (conf_dir() / key).is_dir():
            return ConfigError(f"{key}=… (command line): write +{key}=… to add it")
        cause = error.__cause__
        if cause is not None and "not in" in str(cause):
            return _unknown_key(str(cause), key, "command line", root)
        return ConfigError(f"{key} (command line): no such key{nearest(key, all_keys(root))}")
    if match := re.search(r"Error merging override (.+)", text):
        cause_text = _first_line(error.__cause__ or error)
        return ConfigError(f"{match.group(1)} (command line): {cause_text}")
    if "not in '" in text:
        return _unknown_key(text, "", where, root)
    key_match = re.search(r"full_key: (\S+)", text)
    reason = next((line for line in text.splitlines() if "alue" in line and "rror" not in line), "")
    key = f"{key_match.group(1)} " if key_match else ""
    return ConfigError(f"{key}({where}): {reason or _first_line(error)}")


def _unknown_key(text: str, parent: str, where: str, root: type) -> ConfigError:
    full = re.search(r"full_key: (\S+)", text)
    owner = re.search(r"not in '(\w+)'", text)
    key = full.group(1) if full else parent
    if parent and full and not key.startswith(parent):
        key = f"{parent}[].{key}"
    known = all_keys(root)
    kind = ""
    if owner and hasattr(schema, owner.group(1)):
        cls = getattr(schema, owner.group(1))
        head = key.rpartition(".")[0]
        known = [f"{head}.{name}" if head else name for name in all_keys(cls)]
        kind = f" in {cls.__name__}" if issubclass(cls, schema.AlgorithmConfig) else ""
    return ConfigError(f"{key} ({where}): no such key{kind}{nearest(key, known)}")


def _missing_option(name: str, text: str) -> ConfigError:
    group, _, option = name.rpartition("/")
    listed = text.split(f"Available options in '{group}':")[-1].split("Config search path")[0]
    options = [line.strip() for line in listed.splitlines() if line.strip()]
    if not group or not options:
        return ConfigError(f"{name}: no such config group{nearest(name, _groups())}")
    return ConfigError(
        f"{group}={option}: no such option{nearest(option, options)} "
        f"(there are {', '.join(options)})"
    )


def _groups() -> list[str]:
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


def _place(text: str, dirs: Sequence[Path]) -> str:
    match = re.search(r"In '([^']+)':", text)
    if not match:
        return "command line"
    for folder in reversed(dirs):
        path = folder / f"{match.group(1)}.yaml"
        if path.is_file():
            return f"conf/{match.group(1)}.yaml" if folder == conf_dir() else str(path)
    return match.group(1)


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


def _show(value: Any) -> str:
    return str(value) if not dataclasses.is_dataclass(value) else type(value).__name__


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


warnings.filterwarnings("ignore", message="provider=hydra.searchpath", category=UserWarning)
