"""Names in a configuration that stand for code, whether rlforge's or a user's.

Wherever a configuration chooses one of the ``KINDS`` below, it may say

* the name of something that rlforge has (``pool.mode=lagged``),
* a short name that an installed package offers: an entry point of the group ``rlforge.KIND``
  (``rlforge.modes``, …), or
* ``package.module:Thing``, which is imported from the environment or the current directory.

Commands other than those of runs and games are found the same way, by ``COMMANDS``, and what
reacts to the updates of a run, by ``OBSERVERS``.

Processes import what they need by name, so an extension works in every actor and in resumed runs.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rlforge.config.unstable_names import spelled_here
from rlforge.errors import ConfigError, RlforgeError, nearest
from rlforge.types import value


@value
class Row:
    """One thing that can be chosen. origin: ``rlforge`` or the package with its version.

    problem: why choosing it fails; empty where it does not.
    """

    kind: str
    name: str
    target: str
    origin: str
    problem: str = ""


class Kind:
    """Things of one kind: those of rlforge, and how others are found.

    name: the group of entry points is ``rlforge.`` and this. noun, key: what it is and where it is
    chosen, for messages. contract: what a Thing has to be, in words; needs: attributes that it must
    have for that; called: whether it must be callable; awaited: whether it must be async.
    families: where functions are that find things called ``FAMILY:NAME``, by family; forms: how
    such names are written, for lists.

    Example:
        >>> MODES.find("mirror").__name__
        'mirror'
        >>> MODES.problem("miror")
        'no such choice; did you mean mirror? ...
    """

    def __init__(
        self,
        name: str,
        noun: str,
        key: str,
        contract: str,
        built_in: Mapping[str, str],
        *,
        needs: Sequence[str] = (),
        called: bool = True,
        awaited: bool = False,
        families: str = "",
        forms: Sequence[str] = (),
    ) -> None:
        self.name, self.noun, self.key, self.contract = name, noun, key, contract
        self._built_in, self._needs, self._called = built_in, needs, called
        self._awaited, self._families = awaited, families
        self.forms, self._found = tuple(forms), dict[str, Any]()

    def names(self) -> list[str]:
        """Everything that has a short name: rlforge's things first, nothing imported."""
        return [*self._built_in, *(name for name in self._offered() if name not in self._built_in)]

    @property
    def own(self) -> list[str]:
        """The names of rlforge's things."""
        return [*self._built_in]

    def find(self, name: str) -> Any:
        """The thing called ``name``.

        Raises ConfigError, which says what is wrong and the mend: an unknown name, one that two
        packages offer, a module that is missing or fails, a thing that breaks the contract.
        """
        try:
            if name not in self._found:
                self._found[name] = self._load(name)
        except _UnusableError as problem:
            raise ConfigError(f"{self.noun} {name!r}: {problem}") from problem.__cause__
        return self._found[name]

    def problem(self, name: str) -> str | None:
        """Why ``name`` cannot be chosen; None if it can. Imports what is not rlforge's."""
        if name in self._built_in:
            return None
        try:
            self._load(name)
        except _UnusableError as problem:
            return str(problem)
        return None

    @contextlib.contextmanager
    def trial(self, name: str, kind: type[RlforgeError] = ConfigError) -> Iterator[None]:
        """In the block ``name`` is used: errors in the code of an extension become ``kind``."""
        try:
            yield
        except RlforgeError:
            raise
        except Exception as error:
            if self.has_own(name):
                raise
            raise kind(f"{self.noun} {name!r} fails: {described(error)}") from error

    def has_own(self, name: str) -> bool:
        """Whether ``name`` is one of rlforge's."""
        families = {form.partition(":")[0] for form in self.forms}
        return name in self._built_in or (":" in name and name.partition(":")[0] in families)

    def rows(self) -> Iterator[Row]:
        """All that has a short name, with what is wrong with it."""
        for name, target in self._built_in.items():
            yield Row(kind=self.name, name=name, target=target, origin="rlforge")
        for form in self.forms:
            yield Row(kind=self.name, name=form, target=self._families, origin="rlforge")
        for name, points in self._offered().items():
            for point in points:
                problem = self.problem(name) or ""
                if name in self._built_in:
                    problem = f"hidden: {name} is rlforge's; choose it as {point.value}"
                yield Row(
                    kind=self.name,
                    name=name,
                    target=point.value,
                    origin=_package(point),
                    problem=problem,
                )

    def _offered(self) -> Mapping[str, Sequence[EntryPoint]]:
        return entry_points_of(f"rlforge.{self.name}")

    def _load(self, name: str) -> Any:
        if name in self._built_in:
            return _import(self._built_in[name])
        family, _, member = name.partition(":")
        if member and self._families and family in (finders := _import(self._families)):
            try:
                return finders[family](member)
            except ConfigError as error:
                raise _UnusableError(str(error)) from None
        if ":" not in name:
            points = self._offered().get(name, ())
            if not points:
                close = nearest(spelled_here(name), self.names())
                raise _UnusableError(
                    f"no such choice{close} (there are {', '.join(self.names())}; or name your own "
                    "as package.module:Thing)"
                )
            if len({point.value for point in points}) > 1:
                choices = " and ".join(f"{_package(point)} ({point.value})" for point in points)
                raise _UnusableError(
                    f"two packages offer it: {choices}; choose by what is in brackets"
                )
            name = points[0].value
        thing = _import(name)
        missing = [method for method in self._needs if not hasattr(thing, method)]
        lacks = f" (it has no {', '.join(missing)})" if missing else ""
        if missing or (self._called and not callable(thing)):
            raise _UnusableError(f"{_place(thing, name)} is not {self.contract}{lacks}")
        calls = (thing, type(thing).__call__)
        if self._awaited and not any(map(inspect.iscoroutinefunction, calls)):
            raise _UnusableError(f"{_place(thing, name)} is not {self.contract} (no async def)")
        return thing


class _UnusableError(Exception):
    """What is wrong with a name, for a message that says which."""


@cache
def entry_points_of(group: str) -> Mapping[str, Sequence[EntryPoint]]:
    """What installed packages offer in ``group``, by name."""
    found: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=group), key=_package):
        found.setdefault(point.name, []).append(point)
    return found


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "?"


def _import(target: str) -> Any:
    """The object at ``package.module:Thing``, or the module where there is no Thing."""
    module_name, colon, attribute = target.partition(":")
    name, here = module_name.strip(), os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # behind the environment: a file here hides no installed package
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _UnusableError(
                f"there is no module {error.name}: it is neither installed nor a file in {here}"
            ) from None
        raise _UnusableError(f"importing {name} fails: {described(error)}") from error
    except Exception as error:
        raise _UnusableError(f"importing {name} fails: {described(error)}") from error
    thing: Any = module
    for part in attribute.strip().split(".") if colon else ():
        if not hasattr(thing, part):
            close = nearest(part, [name for name in dir(thing) if not name.startswith("_")])
            raise _UnusableError(
                f"{module.__file__} has no {attribute or 'name after the colon'}{close}"
            )
        thing = getattr(thing, part)
    return thing


def described(error: BaseException) -> str:
    """An error in the code of an extension, with the file and line that raised it."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return text  # it has them
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({last.filename}, line {last.lineno})"


def _place(thing: Any, name: str) -> str:
    module = sys.modules.get(getattr(thing, "__module__", None) or name.partition(":")[0])
    return f"{name.partition(':')[2]} of {getattr(module, '__file__', name)}"


def _in(module: str, *names: str, **renamed: str) -> dict[str, str]:
    """Targets in a module of rlforge: names that are those of their Thing, and others."""
    things = {**{name: name for name in names}, **renamed}
    return {name: f"rlforge.{module}:{thing}" for name, thing in things.items()}


MODES = Kind(
    "modes",
    "sampling mode",
    "pool.mode",
    "a function from a PoolView to the weight of each opponent",
    _in(
        "league.modes",
        *("fixed", "mirror", "lagged", "random", "match_quality", "ts_dist", "exploration"),
        *("prioritized", "fictitious", "nash", "alpha_rank"),
    ),
)
ALGORITHMS = Kind(
    "algorithms",
    "algorithm",
    "algorithm",
    "a class of (config, max_tokens) with config_class, targets and loss",
    {
        **_in(
            "algorithms.policy_gradient",
            reinforce="Reinforce",
            grpo="Grpo",
            window_grpo="WindowGrpo",
            a2c="A2c",
            ppo="Ppo",
            supervised="Supervised",
        )
    },
    needs=("config_class", "targets", "loss"),
)
FINAL_REWARDS = Kind(
    "final_rewards",
    "reward transform",
    "rewards.final",
    "a dataclass whose instances are called with (rewards, env_id)",
    _in(
        "rewards.final",
        win_draw_loss="WinDrawLoss",
        role_advantage="RoleAdvantage",
        role_advantage_by_env="RoleAdvantageByEnv",
        scale="Scale",
        clamp="Clamp",
    ),
    needs=("__dataclass_fields__",),
)
STEP_REWARDS = Kind(
    "step_rewards",
    "reward transform",
    "rewards.step",
    "a dataclass with adds_feedback whose instances are called with (trajectory, step_index, "
    "base_reward)",
    _in(
        "rewards.step",
        format_reward="FormatReward",
        invalid_move_penalty="InvalidMovePenalty",
        discount="Discount",
        scale="Scale",
        clamp="Clamp",
    ),
    needs=("__dataclass_fields__", "adds_feedback"),
)
SAMPLING_REWARDS = Kind(
    "sampling_rewards",
    "reward transform",
    "rewards.sampling",
    "a dataclass whose instances are called with the steps of a batch",
    _in(
        "rewards.sampling",
        normalize="Normalize",
        normalize_by_env="NormalizeByEnv",
        scale="Scale",
        clamp="Clamp",
    ),
    needs=("__dataclass_fields__",),
)
PLAYERS = Kind(
    "players",
    "player",
    "pool.fixed_opponents, eval.opponents",
    "a class of (env, rng) with act(view)",
    {
        **_in("continuous.market.game", "noise_trader", "momentum_trader", "value_trader"),
        **_in("games.players", random_legal="RandomLegal", win_block="WinBlock", minimax="Minimax"),
    },
    families="rlforge.games.players:FAMILIES",
    forms=("mcts:SIMULATIONS",),
)
SOURCES = Kind(
    "sources",
    "game source",
    "env.train.N.source",
    "a module, or a class without arguments, with make(env, seed), check(env) and env_ids()",
    {
        **{name: f"rlforge.games.{name}" for name in ("textarena", "openspiel")},
        "market": "rlforge.continuous.market.game",
    },
    needs=("make", "check", "env_ids"),
    called=False,
)
PROMPTS = Kind(
    "prompts",
    "prompt template",
    "model.prompt_template",
    "a Template",
    {
        name: f"rlforge.games.prompts:{name.upper().replace('-', '_')}"
        for name in (
            *("default", "chat", "chat-actions", "board"),
            *("qwen3-zs", "qwen3-sp", "qwen3-reasoning", "gemma3-zs", "llama-instruct-zs"),
        )
    },
    needs=("render", "messages", "reply"),
    called=False,
    families="rlforge.games.originals:TEMPLATES",
)
EXTRACTIONS = Kind(
    "extractions",
    "action extraction",
    "model.action_extraction",
    "an Extractor",
    _in(
        "games.actions",
        boxed="BOXED",
        bracket="BRACKET",
        json="JSON",
        last_line="LAST_LINE",
        number="NUMBER",
        raw="RAW",
    ),
    needs=("read", "request", "feedback"),
    called=False,
    families="rlforge.games.originals:EXTRACTIONS",
)
SINKS = Kind(
    "sinks",
    "metric sink",
    "tracker.sinks",
    "a dataclass with open(run, name), write(step, scalars), rewind(step) and close()",
    _in("record.sinks", jsonl="JsonlSink", tensorboard="TensorBoardSink", wandb="WandbSink"),
    needs=("__dataclass_fields__", "open", "write", "rewind", "close"),
)
SCORERS = Kind(
    "scorers",
    "scorer",
    "ruler.scoring_method",
    "a class of (config, seed, local) with score and learn",
    _in("continuous.ruler.registry", "preference", "regression", "judge"),
)
MODELS = Kind(
    "models",
    "kind of model",
    "model.kind",
    "a MadeModel",
    {
        "hf": "rlforge.models.load:resolve_model",
        "tiny": "rlforge.models.made:TINY",
        "tiny_market": "rlforge.continuous.loop.tiny_market:TINY_MARKET",
        "smollm2_135m": "rlforge.models.made:SMOLLM2_135M",
    },
    needs=("cache_name", "create"),
    called=False,
)
ENGINES = Kind(
    "engines",
    "engine",
    "engine.name",
    "a function from (config, device, threads, gpus) to a LocalEngine",
    {
        "auto": "rlforge.learner.engine_trial:auto",
        **_in("engines.registry", "transformers", "vllm"),
    },
)

REDACTIONS = Kind(
    "redactions",
    "redaction",
    "requests.redact",
    "a function of (messages or prompt, answer) that returns what to keep of the first, or None",
    {},
)

EPISODES = Kind(
    "episodes",
    "episode function",
    "episodes.function",
    "an async function of a Session that returns the reward",
    {},
    awaited=True,
)

RUN_KINDS = Kind(
    "run_kinds",
    "kind of run",
    "kind",
    "a rlforge.kinds.RunKind",
    {
        "games": "rlforge.run.games:GAMES",
        "sft": "rlforge.run.supervised:SUPERVISED",
        "continuous": "rlforge.continuous.loop.kind:CONTINUOUS",
        "serve": "rlforge.continuous.serving.kind:SERVING",
    },
    needs=("root", "check", "nodes", "controller"),
    called=False,
)

TEACHERS = Kind(
    "teachers",
    "source of answers",
    "data.players",
    "a rlforge.run.teachers.Players",
    {"games": "rlforge.run.teachers:PLAYERS", "market": "rlforge.continuous.loop.teachers:TRADERS"},
    called=False,
)

MEASURES = Kind(
    "measures",
    "measure of a policy",
    "eval.exploitability",
    "a class with check(env), which raises ConfigError for what it cannot measure",
    _in("lab.exact.table", exploitability="Questions"),
    needs=("check",),
)

OBSERVERS = Kind(
    "observers",
    "observer",
    "a run of games",
    "a function of a RunContext that returns an rlforge.run.observers.Observer, or None",
    {
        "sentinel": "rlforge.lab.sentinel.guard:Guard",
        "exact": "rlforge.lab.exact.observer:exact_measure",
    },
)

COMMANDS = Kind(
    "commands",
    "command",
    "rlforge NAME",
    "a function or a typer.Typer",
    {
        "continuous": "rlforge.continuous.cli.windows:continuous",
        "windows": "rlforge.continuous.cli.windows:app",
        **_in("continuous.cli.serving", "serve", "deploy", "rollback", "deployments"),
        "fork": "rlforge.lab.cli.forks:fork",
        "analyse": "rlforge.lab.cli.forks:analyse",
        "verify": "rlforge.lab.cli.verify:verify",
        "ladder": "rlforge.lab.cli.ladder:ladder",
        "exploit": "rlforge.lab.cli.exploit:exploit",
    },
)

KINDS = (
    *(MODES, ALGORITHMS, FINAL_REWARDS, STEP_REWARDS, SAMPLING_REWARDS, PLAYERS, SOURCES),
    *(PROMPTS, EXTRACTIONS, SINKS, SCORERS, MODELS, ENGINES),
    *(REDACTIONS, EPISODES, RUN_KINDS),
)
"""Everything that a configuration chooses by name and that others can add."""
