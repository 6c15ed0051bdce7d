"""From YAML groups and overrides to one typed configuration, or to one readable error.

Hydra composes; this module names the files, translates Hydra's complaints into a sentence with key,
value, file and mend, and remembers where each value came from so that later checks can say it too.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

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
from rlforge.config.continuous import ContinuousConfig
from rlforge.config.plugins import ALGORITHMS
from rlforge.config.rules import build, plain, plain_fields
from rlforge.config.schema import AlgorithmConfig, PolicyConfig, RunConfig
from rlforge.config.serving import ServingConfig
from rlforge.config.sft import SftConfig
from rlforge.config.training import ALGORITHM_CONFIGS, algorithm_config
from rlforge.errors import ConfigError, nearest

C = TypeVar("C", bound=PolicyConfig)
C_co = TypeVar("C_co", bound=PolicyConfig, covariant=True)

ROOTS: tuple[type[PolicyConfig], ...] = (ServingConfig, ContinuousConfig, SftConfig, RunConfig)
"""The classes of whole configurations."""


_OFFERED: dict[str, type[AlgorithmConfig]] = {}
"""Settings of users' algorithms, by the name of the class, which Hydra's errors have."""


def conf_dir() -> Path:
    """The YAML groups that ship with rlforge: in the package, or next to its sources."""
    packaged = Path(__file__).resolve().parents[1] / "conf"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "conf"


def _schema(root: type[PolicyConfig]) -> type:
    """The type behind the YAML of ``root``: it has the groups and keys of the other roots, too.

    So one option may set keys of several roots (``learner=tiny_ppo``); ``build`` leaves out those
    that ``root`` does not have.
    """
    fields = {name: field for one in ROOTS for name, field in plain_fields(one).items()}
    own = plain_fields(root)
    fields |= {name: own[name] for name in ("name", "seed", "run_dir")}
    return dataclasses.make_dataclass("Configuration", fields.values())


def register_schemas(root: type[PolicyConfig]) -> None:
    """Tell Hydra the types behind the YAML; harmless when repeated."""
    store = ConfigStore.instance()
    store.store(name="schema", node=_schema(root))
    for name, node in ALGORITHM_CONFIGS.items():
        store.store(group="schemas/algorithm", name=name, node=plain(node))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composed(Generic[C_co]):
    """A typed configuration and where its values came from.

    overrides: as typed on the command line. choices: group -> chosen option. rest: where values
    are from that neither the command line nor a YAML file of ``config_dirs`` sets.
    """

    config: C_co
    overrides: tuple[str, ...] = ()
    choices: dict[str, str] = dataclasses.field(default_factory=dict)
    config_dirs: tuple[Path, ...] = ()
    rest: str = "default"

    def origin(self, key: str) -> str:
        """Where ``key`` (dotted) got its value: the command line, a YAML file, or the default."""
        typed = [
            o for o in parse_overrides(self.overrides) if f"{key}.".startswith(f"{key_of(o)}.")
        ]
        if typed:  # a single value counts more than the option of a whole group
            last = max(enumerate(typed), key=lambda one: (len(key_of(one[1])), one[0]))[1]
            return f"command line, {last.input_line}"
        head, *rest = key.split(".")
        experiment, option = self.choices.get("experiment"), self.choices.get(head)
        places = [(f"experiment/{experiment}.yaml", key.split("."))] if experiment else []
        profile = self.choices.get("hardware")  # sets keys of other groups, too, for its card
        places += [(f"hardware/{profile}.yaml", key.split("."))] if profile else []
        places += [(f"{head}/{option}.yaml", rest)] if option else []
        places += [(f"{self.config.primary}.yaml", key.split("."))]
        for name, path in places:
            for folder in self.config_dirs:
                if (folder / name).is_file() and _holds(folder / name, path):
                    return f"conf/{name}" if folder == conf_dir() else str(folder / name)
        return self.rest

    def error(self, key: str, problem: str) -> ConfigError:
        """A ``ConfigError`` about ``key``: its value, where it was set, and what is wrong."""
        current: Any = self.config
        for part in key.split("."):
            if isinstance(current, list):
                current = current[int(part)]
            else:
                current = current[part] if isinstance(current, dict) else getattr(current, part)
        return ConfigError(f"{key}={_show(current)} ({self.origin(key)}): {problem}")


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

    Raises ConfigError: one message that names key, value, file and mend.

    Example:
        >>> composed = compose(["+experiment=simpletak_mirror", "seed=3"])
        >>> composed.config.seed, composed.origin("seed"), composed.origin("learner.batch_size")
        (3, 'command line, seed=3', 'conf/learner/tiny_ppo.yaml')
    """
    register_schemas(root)
    dirs = group_dirs(config_dir)
    _check_overrides(overrides, root)
    search = [f"hydra.searchpath=[file://{config_dir.resolve()}]"] if config_dir else []
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3", job_name="rlforge"):
            composed = _composed_by_hydra(root.primary, [*as_hydra_takes(overrides), *search])
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise _explain(error, overrides, dirs, root) from None
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
            group, _, option = _missing(error).rpartition("/")
            if group.rpartition("/")[2] != "algorithm" or option in offered:
                raise
            if ":" not in option and option not in ALGORITHMS.names():
                raise
            offered.add(option)
            kind = algorithm_config(option)
            _OFFERED[kind.__name__] = kind
            settings = OmegaConf.structured(plain(kind))
            settings.name = option
            ConfigStore.instance().store(group="algorithm", name=option, node=settings)


def _missing(error: MissingConfigException) -> str:
    """The group and option that Hydra did not find, ``GROUP/OPTION``."""
    found = re.search(r"Could not find '([^']+)'", str(error))
    return found.group(1) if found else ""


def group_dirs(config_dir: Path | None) -> tuple[Path, ...]:
    """Folders with groups, the user's own last; ConfigError when that is not there."""
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir {config_dir}: no such directory")
    return (conf_dir(), *([config_dir.resolve()] if config_dir else []))


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
        raise _explain(error, overrides, tuple(dirs), root) from None
    return Composed(
        config=build(root, cast("dict[str, Any]", values)),
        overrides=tuple(overrides),
        choices=choices,
        config_dirs=tuple(dirs),
    )


def to_yaml(config: PolicyConfig) -> str:
    """The resolved configuration as YAML; secrets live in the environment, so it holds none."""
    return str(OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(config))))


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
        base = OmegaConf.structured(_schema(root))
        name = OmegaConf.select(loaded, "algorithm.name", default="reinforce")
        try:
            base.algorithm = OmegaConf.structured(plain(algorithm_config(name)))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        merged = OmegaConf.merge(base, loaded)
        return build(root, cast("dict[str, Any]", OmegaConf.to_container(merged, resolve=True)))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {_first_line(error)}") from None


def load_mapping(path: Path) -> DictConfig:
    """The keys of a YAML file. Raises ConfigError when it is missing or damaged."""
    try:
        loaded = OmegaConf.load(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: not found; is this a run directory?") from None
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{path}: {_first_line(error)}") from None
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path}: not a mapping of configuration keys")
    return loaded


def foreign_keys(named: Collection[str], root: type[PolicyConfig]) -> list[str]:
    """Which of the dotted keys only other roots have."""
    own, others = set(all_keys(root)), {key for one in ROOTS for key in all_keys(one)}
    return sorted(
        name
        for name in named
        if any(part in others and part not in own for part in _beginnings(name))
    )


def _beginnings(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def key_of(override: Override) -> str:
    """The key or group that an override sets."""
    return str(override.get_key_element()).lstrip("+~/").split("@")[0].split("/")[0]


def all_keys(node: Any = RunConfig, prefix: str = "") -> list[str]:
    """Every dotted key of the configuration, for suggestions."""
    return [
        key
        for field in dataclasses.fields(node)
        for key in _keys_of(field, f"{prefix}{field.name}")
    ]


def _keys_of(field: dataclasses.Field[Any], name: str) -> list[str]:
    if name == "algorithm":
        return [
            name,
            *(key for cls in ALGORITHM_CONFIGS.values() for key in all_keys(cls, "algorithm.")),
        ]
    nested = nested_class(field)
    return [name, *(all_keys(nested, f"{name}.") if nested else [])]


def nested_class(field: dataclasses.Field[Any]) -> type | None:
    """The configuration class behind a field, if it holds one."""
    factory: Any = field.default_factory
    return factory if isinstance(factory, type) and dataclasses.is_dataclass(factory) else None


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """As Hydra reads them; ConfigError for the first that it cannot.

    A bare name that is no key is the experiment of that name.

    Example:
        >>> [override.input_line for override in parse_overrides(["kuhn_grpo", "seed=3"])]
        ['+experiment=kuhn_grpo', 'seed=3']
    """
    keys = {name for root in ROOTS for name in plain_fields(root)}
    lines = [
        f"+experiment={o}" if re.fullmatch(r"[A-Za-z][\w-]*", o) and o not in keys else o
        for o in overrides
    ]
    try:
        parsed: list[Override] = OverridesParser.create().parse_overrides(lines)
    except OverrideParseException as error:
        raise ConfigError(_unreadable(error.override or "")) from None
    return parsed


def as_hydra_takes(overrides: Sequence[str]) -> list[str]:
    """Overrides in which templates (``prompts``) are whole mappings: Hydra adds no parts of one.

    Example:
        >>> as_hydra_takes(["seed=3", "prompts.terse.system='Be brief.'"])
        ['seed=3', "++prompts={terse: {system: 'Be brief.'}}"]
    """
    return [_with_whole_templates(override) for override in parse_overrides(overrides)]


def _with_whole_templates(override: Override) -> str:
    head, *path = override.get_key_element().lstrip("+").split(".")
    line = override.input_line or ""
    if head != "prompts" or override.is_delete():
        return line
    texts = [line.partition("=")[2] or "''"]
    if override.is_discrete_sweep():
        texts = list(override.sweep_string_iterator())
    for part in reversed(path):
        texts = [f"{{{part}: {text}}}" for text in texts]
    return f"++prompts={','.join(texts)}"


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
    if key and re.search(r"[^\w.+-]", text) and '"' not in text:
        mend = f"such a text needs quotes of its own, '{key}=\"{text}\"'"
    return f"cannot read override {override!r}: {mend}"


def _check_overrides(overrides: Sequence[str], root: type[PolicyConfig]) -> None:
    """Refuse overrides that Hydra would misread or explain in its own terms.

    ``+key=value`` may add a group choice (``+experiment=``), never a key the schema lacks.
    """
    for override in parse_overrides(overrides):
        name, line = override.get_key_element(), override.input_line or ""
        if not name:
            raise ConfigError(_unreadable(line))
        if foreign_keys([key_of(override)], root):
            raise ConfigError(f"{line} (command line): {root.about} has no such key")
        if override.is_delete():
            raise ConfigError(f"{line} (command line): nothing can be left out; choose another")
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
        if name.startswith("+") and not (conf_dir() / name.lstrip("+").split("@")[0]).is_dir():
            plain = name.lstrip("+")
            if plain.split(".")[0] != "prompts":
                known = all_keys(root)
                mend = f"; write {plain}=… without +" if plain in known else _alike(plain, known)
                raise ConfigError(f"{line} (command line): no such key{mend}")


def _explain(
    error: Exception, overrides: Sequence[str], dirs: Sequence[Path], root: type
) -> ConfigError:
    """Hydra's complaint in one or two lines: key, value, file, mend."""
    text = str(error)
    where = _place(text, dirs)
    if isinstance(error, MissingConfigException) and (missing := _missing(error)):
        return _missing_option(missing, text)
    if isinstance(error, YAMLError):
        return ConfigError(f"YAML does not parse: {' '.join(text.split())}")
    if match := re.search(r"Could not override '([^']+)'", text):
        key = match.group(1)
        if (conf_dir() / key).is_dir():
            return ConfigError(f"{key}=… (command line): write +{key}=… to add it")
        cause = error.__cause__
        if cause is not None and "not in" in str(cause):
            return _unknown_key(str(cause), key, "command line", root)
        return ConfigError(f"{key} (command line): no such key{_alike(key, all_keys(root))}")
    if match := re.search(r"Error merging override (.+)", text):
        cause = error.__cause__ or error
        if "not in '" in str(cause):
            return _unknown_key(str(cause), "", "command line", root)
        typed = dict(zip(as_hydra_takes(overrides), overrides, strict=True))
        line = typed.get(match.group(1), match.group(1))
        return ConfigError(f"{line} (command line): {_first_line(cause)}")
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
    if parent.startswith(f"{key}."):  # the group is unknown
        key = parent
    elif parent and full and not key.startswith(parent):
        key = f"{parent}[].{key}"
    known = all_keys(root)
    kind = ""
    cls = _OFFERED.get(owner.group(1)) or getattr(schema, owner.group(1), None) if owner else None
    if cls is not None:
        head = key.rpartition(".")[0]
        known = [f"{head}.{name}" if head else name for name in all_keys(cls)]
        kind = f" in {cls.__name__}" if issubclass(cls, schema.AlgorithmConfig) else ""
    return ConfigError(f"{key} ({where}): no such key{kind}{_alike(key, known)}")


def _alike(key: str, known: Sequence[str]) -> str:
    """The end of a message: keys that end in ``key``, or in words that begin with its letters.

    Otherwise those that are spelled like it.
    """
    last = {one: one.rpartition(".")[2] for one in known}
    found = [one for one, name in last.items() if name == key]
    found = found or [one for one, name in last.items() if _initials(name) == key]
    if 0 < len(found) <= _MOST_ALIKE:
        return f"; did you mean {', '.join(found)}?"
    return nearest(key, known)


#: More keys than these are no suggestion.
_MOST_ALIKE = 4


def _initials(name: str) -> str:
    return "".join(word[:1] for word in name.split("_"))


def _missing_option(name: str, text: str) -> ConfigError:
    group, _, option = name.rpartition("/")
    listed = text.split(f"Available options in '{group}':")[-1].split("Config search path")[0]
    options = [line.strip() for line in listed.splitlines() if line.strip()]
    if not group or not options:
        return ConfigError(f"{name}: no such config group{nearest(name, _groups())}")
    mend = nearest(option, options) or f"; there are {', '.join(options)}"
    return ConfigError(f"{group}={option}: no such option{mend}")


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
