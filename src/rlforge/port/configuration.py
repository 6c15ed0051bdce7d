"""``rlforge port``: the YAML of an experiment from a launch script of UnstableBaselines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

from rlforge.config.unstable_names import ARGUMENTS, COMPONENTS, PARAMETERS, spelled_here
from rlforge.errors import ConfigError, counted
from rlforge.port.experiment_yaml import experiment_yaml, refused
from rlforge.port.launch_script import calls_of
from rlforge.port.script_values import Call, unread
from rlforge.port.unstable_package import (
    EFFECTIVE,
    MODES,
    OF_BUILD,
    OF_GAMES,
    OPPONENT,
    PARTS,
    POSITIONS,
    POSITIONS_2,
    REWARDS_OF_BUILD,
    TRANSFORMATIONS,
    WIRES,
    WITHOUT,
)
from rlforge.types import value

#: Turns of an episode, about: the package's buffer of episodes counts their turns.
_TURNS = 8


@value
class Ported:
    """An experiment as YAML, and remarks on what it lacks, each with its place."""

    yaml: str
    remarks: tuple[str, ...]


def port(script: Path) -> Ported:
    """The experiment that a launch script of UnstableBaselines 0.1 or 0.2 describes.

    Raises ConfigError for a file that is no such script.
    """
    calls = calls_of(script)
    made: dict[str, set[str]] = {}
    for call in filter(_of_package, calls):
        # A call in both branches of an ``if`` has two doubts: ``take`` reads neither, as which one
        # runs is not known.
        made.setdefault(call.name, set()).add(call.doubt)
    learners = {"StandardLearner", "REINFORCELearner", "A2CLearner"}
    if not made.keys() & {"Collector", "build", *learners}:
        raise ConfigError(
            f"{script}: is no launch script of UnstableBaselines: it makes no Collector, learner "
            "or unstable.build"
        )
    experiment = _Experiment(script.name, made)
    for call in calls:
        experiment.take(call)
    return experiment.ported(script)


def _of_package(call: Call) -> bool:
    """Whether a call is one of the package, or may be."""
    if call.name == "build":
        return call.path == "unstable.build"
    # An unknown object, as what a function of another module returned, may be the package's.
    method = call.name[:1].isupper() or call.path.count(".") > 1
    unknown = call.path.startswith("?.") and call.name in POSITIONS and method
    return call.path.startswith("unstable.") or unknown


class _Experiment:
    """Collects the values of keys, and remarks. made: what calls of the package depend on."""

    def __init__(self, file: str, made: Mapping[str, set[str]]) -> None:
        self._file, self._made = file, made
        second_ones = {"build", "ModelRegistry", "REINFORCELearner", "GameScheduler"}
        self._second = not second_ones.isdisjoint(made)
        self._values: dict[str, Any] = dict(EFFECTIVE)
        self._lines: dict[str, int] = {}
        self._remarks: list[tuple[int, str]] = []
        self._line = 0
        self._fixed: list[str] = []
        self._templates: list[str] = []
        self._takes: Mapping[str, Callable[[Any], None]] = {
            **dict.fromkeys(("vllm_config", "lora_config", "lora_cfg"), self._table),
            **dict.fromkeys(("training_envs", "train_envs", "train_env_specs"), self._train_envs),
            **dict.fromkeys(("evaluation_envs", "eval_envs", "eval_env_specs"), self._eval_envs),
            **{name: partial(self._transforms, name) for name in TRANSFORMATIONS},
            **dict.fromkeys(("iterations", "learning_steps"), self._updates),
            **dict.fromkeys(("sample_mode", "opponent_sampling_strategy"), self._mode),
            "evaluation_opponent": lambda name: self._set("eval.opponents", [_named(name)]),
            "max_eval_games_per_ckpt": self._cap,
            "fixed_opponents": self._opponents,
            "num_eval_workers": self._eval_workers,
            "action_extraction": self._extraction,
            "algorithm": self._algorithm,
            "run_name": lambda name: self._set("name", _as_name(name)),
            "wandb_project": self._wandb,
            "lag_range": lambda given: None,  # the package does not use it
        }
        if self._second:
            self._default("collector.learned_seats", "all")
            self._default("eval.max_games_per_checkpoint", 1_000_000)  # version 0.2 has no limit

    # ------------------------------------------------------------ what is found

    def _default(self, key: str, found: Any) -> None:
        self._values[key] = found
        self._lines.pop(key, None)

    def _set(self, key: str, found: Any) -> None:
        json.dumps(found)  # a value that is no literal raises TypeError, and becomes a remark
        if key in self._lines and self._values[key] != found:
            self._remark(f"{key}={found} replaces {self._values[key]} of line {self._lines[key]}")
        self._values[key], self._lines[key] = found, self._line

    def _remark(self, text: str) -> None:
        # A text of the script may hold lone surrogates, which files cannot.
        text = shorten(text, 200).encode(errors="backslashreplace").decode()
        if (self._line, text) not in self._remarks:
            self._remarks.append((self._line, text))

    # ------------------------------------------------------------ calls and arguments

    def take(self, call: Call) -> None:
        """Read a call that sets something."""
        self._line, called = call.line, repr(call)
        if call.changes:
            self._remark(f"{called} may change {', '.join(call.changes)}")
        if not _of_package(call):
            lost = [name for name in call.keywords if name in ARGUMENTS]
            if lost:
                self._remark(f"{called} is not the package's; not read: {', '.join(lost)}")
            return
        if call.doubt and (call.name in POSITIONS or call.name == "FixedOpponentModelSampler"):
            alone = len(self._made[call.name]) == 1
            self._remark(
                f"{called} depends on {call.doubt}" + ("" if alone else "; it is not read")
            )
            if not alone:
                return
        order = POSITIONS.get(call.name)
        if order is None:
            if "()" not in call.path and call.name not in PARTS:
                self._remark(f"{called} is not known")
            if call.name == "FixedOpponentModelSampler":
                self._set("pool.mode", "fixed")
            return
        if self._second:
            order = POSITIONS_2.get(call.name, order)
        given = call.named(order)
        if call.name == "build":
            given = self._of_build(given)
        if call.name == "add_fixed":
            given = {"fixed_opponents": [given.pop("name", OPPONENT)], **given}
        elif call.name == "add_checkpoint":
            if given.get("path") is not None:
                self._remark("add_checkpoint: a run begins with learner.initial_adapter, if any")
            return
        elif call.name == "EpisodeBuffer":
            self._set("buffer.kind", "episode")
        elif call.name == "A2CLearner":
            self._algorithm("a2c")
        for argument, found in given.items():
            self._argument(argument, found)

    def _argument(self, argument: str, found: Any) -> None:
        key = ARGUMENTS.get(argument)
        table = isinstance(found, dict) and self._takes.get(argument) == self._table
        if argument in WIRES:
            return
        if argument in WITHOUT:
            self._remark(f"{argument}={found!r}: {WITHOUT[argument]}")
        elif not table and (given := next(unread(found), None)) is not None:
            mend = f"; set {key}" if key else ""
            self._remark(f"{argument}: only running the script gives {given.source}{mend}")
        elif isinstance(found, Call) and argument not in (*TRANSFORMATIONS, "algorithm"):
            self._remark(f"{argument}: only running the script gives {found}; set {key}")
        elif argument in self._takes or key is not None:
            try:
                if argument not in self._takes and isinstance(found, dict):
                    raise TypeError(found)
                self._takes.get(argument, partial(self._set, str(key)))(found)
            except (TypeError, ValueError, AttributeError, LookupError):
                self._remark(f"{argument}: {found!r} is of another form than is known; set {key}")
        else:
            self._remark(f"{argument}={found!r}: has no counterpart")

    def _table(self, table: Mapping[str, Any]) -> None:
        for argument, found in table.items():
            self._argument(argument, found)

    def _of_build(self, given: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: found for name, found in given.items() if found is not None}
        for key, stack in REWARDS_OF_BUILD.items():
            self._default(key, stack)
        for argument, found in OF_BUILD.items():
            if argument not in given:
                self._argument(argument, found)
        whole = {**OF_BUILD, **given}
        if isinstance(whole["max_generation_len"], int):
            self._default("engine.max_tokens", whole["max_generation_len"])
        if isinstance(whole["batch_size"], int):
            self._default("buffer.max_size", 2 * whole["batch_size"])
        self._wandb("UnstableBaselines")  # ``build`` ignores the project that it is given
        self._lines.clear()  # an argument replaces defaults, which have no line, without a remark
        return {name: found for name, found in given.items() if name != "wandb_project"}

    # ------------------------------------------------------------ single arguments

    def _train_envs(self, specs: Sequence[Any]) -> None:
        entries, all_seats = [], True
        for spec in specs:
            entry = self._entry(spec, "num_actors")
            actors, players = entry.pop("num_actors", None), entry["num_players"]
            # Seats without an actor are those of fixed opponents.
            all_seats = all_seats and actors in (None, players)
            if actors not in (None, 1, players):
                self._remark(f"num_actors={actors} of {players} players: the policy takes one seat")
            entries.append(entry)
        self._set("env.train", entries)
        if not all_seats and "pool.mode" not in self._values:
            self._set("pool.mode", "fixed")

    def _eval_envs(self, specs: Sequence[Any] | None) -> None:
        if not specs:
            self._no_evaluations()
            return
        entries = [self._entry(spec, "prompt_template") for spec in specs]
        opponents = [entry.pop("fixed_opponent", None) for entry in entries]
        named = [_named(name) for name in opponents if name is not None]
        if len(set(named)) == 1:
            self._set("eval.opponents", named[:1])
        elif named:
            for entry, name in zip(entries, opponents, strict=True):
                entry["opponents"] = [_named(name or OPPONENT)]
        self._set("env.eval", entries)

    def _entry(self, spec: Any, third: str) -> dict[str, Any]:
        if isinstance(spec, Call):  # UnstableBaselines 0.1 has tuples, 0.2 calls of classes
            order = ("env_id", "num_players", third, "prompt_template", "action_extraction_fn")
            given = spec.named(dict.fromkeys(order))
        else:
            given = dict(zip(("env_id", "num_players", "prompt_template"), spec, strict=False))
        extraction = given.get("action_extraction_fn", "default")
        if extraction != "default":
            self._extraction(extraction)
        template = given.get("prompt_template") or "default"
        if not isinstance(template, str):
            raise TypeError(template)
        self._templates.append(template)
        kept: dict[str, Any] = {
            name: given[name] for name in ("num_actors", "fixed_opponent") if name in given
        }
        return {
            "id": given["env_id"],
            "num_players": given["num_players"],
            "prompt_template": f"unstable:{template}",
            **OF_GAMES,
            **kept,
        }

    def _transforms(self, argument: str, found: Any) -> None:
        # ``found`` is a call of ``Compose…Transforms`` with a list, or None.
        stack, listed = [], found.arguments[0] if isinstance(found, Call) else found or []
        for one in listed:
            entry = self._transform(one)
            if entry is None:
                name = one.name if isinstance(one, Call) else repr(one)
                self._remark(f"{name}: a transform of yours is named as module:Class here")
            else:
                stack.append(entry)
        self._set(ARGUMENTS[argument], stack)

    def _transform(self, one: Any) -> dict[str, Any] | None:
        if not isinstance(one, Call) or one.name not in COMPONENTS:
            return None
        _, name = COMPONENTS[one.name]
        orders = {
            "win_draw_loss": ("win_reward", "draw_reward", "loss_reward"),
            "format_reward": ("reward", "penalty"),
            "invalid_move_penalty": ("reward", "penalty"),
            "normalize": ("z_score",),
            "normalize_by_env": ("z_score",),
        }
        given = one.named(orders.get(name, ("role_advantage", "tau")))
        entry: dict[str, Any] = {"name": name}
        if name.startswith("role_advantage"):
            tau = given.pop("tau", 0.001)
            # Rounded, else 1 - 0.9 would be written with all its digits.
            entry |= {"decay": round(1 - tau, 12), "order": "update_then_subtract"}
            if given:
                self._remark(f"{one.name}: baselines begin at 0 here, not at {given}")
        elif name.startswith("normalize"):
            entry |= {"z_score": False}
            entry |= given
        else:
            entry |= {PARAMETERS.get(argument, argument): each for argument, each in given.items()}
        return entry

    def _mode(self, mode: str) -> None:
        mode = {"none": "mirror"}.get(mode, spelled_here(mode))
        if mode not in MODES:
            raise ValueError(mode)
        if mode in ("match_quality", "ts_dist"):
            self._remark(f"{mode} is a softmax with pool.temperature here, there in proportion")
        if mode == "random":
            self._set("pool.include_current", True)
        self._set("pool.mode", mode)

    def _algorithm(self, found: Any) -> None:
        name = (found.name if isinstance(found, Call) else found).lower()
        known = {"reinforce": "reinforce", "a2c": "a2c", "advantageactorcritic": "a2c"}
        if name not in known:
            self._remark(f"algorithm {name}: an algorithm of yours is named as module:Class here")
            return
        self._set("algorithm.name", known[name])
        if known[name] == "a2c":
            self._set("buffer.kind", "episode")
            self._default("algorithm.gae_lambda", 1.0)
            self._default("algorithm.normalize_advantages", "build" in self._made)
            self._default("algorithm.value_learning_rate", 5e-5)
            self._remark("a2c: the critic is a head of the policy here, an adapter there")

    def _opponents(self, names: Sequence[str]) -> None:
        self._fixed += [*map(_named, names)]
        self._lines["pool.fixed_opponents"] = self._line

    def _extraction(self, name: str) -> None:
        self._set("model.action_extraction", f"unstable:{name}")

    def _cap(self, games: int) -> None:
        if not games:
            self._no_evaluations()
            return
        self._set("eval.games", games + games % 2)
        self._set("eval.max_games_per_checkpoint", games)

    def _eval_workers(self, number: int | None) -> None:
        if number:
            self._set("collector.num_eval_workers", number)
        else:
            self._no_evaluations()

    def _no_evaluations(self) -> None:
        self._set("eval.continuous", False)
        self._set("eval.every", 0)
        self._remark("no evaluations there; here the first and the last version are evaluated")

    def _updates(self, number: int) -> None:
        if not isinstance(number, int):
            raise TypeError(number)
        self._set("learner.total_updates", number)

    def _wandb(self, project: str | None) -> None:
        self._set("tracker.wandb_project", project)
        if project is not None:
            self._set("tracker.wandb_mode", "online")

    # ------------------------------------------------------------ the YAML

    def ported(self, script: Path) -> Ported:
        """The result; mistakes that ``rlforge config`` finds in it are remarks, too."""
        self._line = 0
        self._finish(script)
        values = self._values
        options = {
            "model": "hf",
            "pool": values.pop("pool.mode"),
            "rewards": "none",
            "algorithm": values.pop("algorithm.name"),
            "buffer": values.pop("buffer.kind", "step"),
        }
        comments = {
            key: f"line {line}" if (line := self._lines.get(key)) else "there" for key in values
        }
        version = "0.2" if self._second else "0.1"
        head = [
            f"What {self._file}, a script of UnstableBaselines {version}, sets, with its lines; "
            '"there" are',
            "values of its package that the script leaves as they are.",
        ]
        for problem in refused(experiment_yaml(values, comments, options, head)):
            self._line = self._lines.get(re.split("[=:]", problem)[0], 0)
            self._remark(f"does not compose: {problem}")
        remarks = tuple(
            f"{self._file}:{line}: {text}" if line else f"{self._file}: {text}"
            for line, text in sorted(self._remarks)
        )
        written = experiment_yaml(values, comments, options, [*head, *remarks])
        return Ported(yaml=written, remarks=remarks)

    def _finish(self, script: Path) -> None:
        values = self._values
        self._values.setdefault("name", _as_name(script.stem))
        values["name"] = re.sub(r"^[.]+$", "run", values["name"]) or "run"
        values.setdefault("algorithm.name", "reinforce")
        values.setdefault("pool.mode", "mirror")
        for argument, key in (("model_name", "model.name"), ("training_envs", "env.train")):
            if key not in values:
                self._remark(f"{argument} was not found; set {key}")
        if values["algorithm.name"] != "a2c":  # other algorithms refuse these keys
            for name in ("gae_lambda", "normalize_advantages", "value_learning_rate"):
                values.pop(f"algorithm.{name}", None)
        if len(set(self._templates)) == 1:
            values["model.prompt_template"] = f"unstable:{self._templates[0]}"
            self._lines["model.prompt_template"] = self._lines.get("env.train", 0)
            for key in ("env.train", "env.eval"):
                for entry in values.get(key, ()):
                    del entry["prompt_template"]
        opponents = list(dict.fromkeys(self._fixed))
        if opponents or values["pool.mode"] == "fixed":
            values["pool.fixed_opponents"] = opponents or [f"openrouter:{OPPONENT}"]
        active, every = values.get("pool.max_active_lora"), values.get("learner.save_every")
        if values["pool.mode"] == "lagged" and isinstance(active, int):
            # The package draws every active version, the current one included.
            if active > 1:
                self._default("pool.lag_range", [0, active - 1])
            else:
                self._default("pool.mode", "mirror")
                self._remark("lagged of a single active version is its mirror, pool=mirror here")
        if isinstance(every, int) and every > 1:  # a version plays until the next one is saved
            self._default("buffer.max_staleness", values["buffer.max_staleness"] + every - 1)
        if self._second:
            self._remark("engine.num_engines is not set there: one for each GPU that Ray has left")
        if self._second and (number := values.get("learner.total_updates")) is not None:
            # Version 0.2 counts updates from 1, and those of A2C twice.
            a2c = values["algorithm.name"] == "a2c"
            done = values["learner.total_updates"] = max(1, number // 2 if a2c else number - 1)
            self._remark(f"train({number}) ends after {counted(done, 'update')} there")
        if values.get("buffer.kind") == "episode":
            for key in ("learner.batch_size", "buffer.max_size"):
                if isinstance(values.get(key), int):
                    values[key] = max(1, values[key] // _TURNS)
            if self._second and values.get("rewards.sampling"):
                self._default("rewards.sampling", [])
                self._remark(
                    "sampling_reward_transformation: EpisodeBuffer does not apply it there"
                )
            self._remark(
                f"sizes of batch and buffer are turns there, and episodes here: divided by {_TURNS}"
            )


def _as_name(text: str) -> str:
    return re.sub(r"[\s/\\]+", "-", text)


def _named(name: str) -> str:
    """A model of OpenRouter, as opponents are named; ValueError for another name."""
    if not re.fullmatch(r"[\w.~-]+/[\w.:-]+", name):
        raise ValueError(name)
    return f"openrouter:{name}"
