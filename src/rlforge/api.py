"""Runs from Python: start, resume, read, evaluate and play them.

Everything works in scripts, threads and notebooks, with the experiments, overrides and messages of
the command line.
"""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlforge.config.keys import conf_dir
from rlforge.config.overrides import in_grammar
from rlforge.config.plugins import LOOKS, MODELS
from rlforge.config.roots import compose_any, kind_of_run, read_any, root_of
from rlforge.config.schema import PolicyConfig
from rlforge.config.sft import SftConfig
from rlforge.errors import RunError
from rlforge.models.made import made_model
from rlforge.record.files import open_run, read_jsonl, short
from rlforge.record.status import read_summary
from rlforge.system.checkpoint import list_checkpoints
from rlforge.system.loops import wait_for
from rlforge.types import GameRecord, Purpose, value

if TYPE_CHECKING:  # torch, Ray and the game libraries are imported when they are needed
    from rlforge.run.match import Policy

# In notebooks without ipywidgets, tqdm and Ray report that they cannot draw displays of their own.
warnings.filterwarnings("ignore", message="IProgress not found")
logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)

Table = Any
"""A ``pandas.DataFrame`` where pandas is installed, else a list of dictionaries."""


def compose(
    *overrides: str, config_dir: Path | str | None = None, **values: object
) -> PolicyConfig:
    """The validated configuration of an experiment; starts nothing.

    overrides: the name of an experiment, if any, then ``key=value`` as on the command line.
    values: further keys, groups as mappings, and ``experiment``; ``${key}`` in a text stands for
    that key's value. config_dir: a folder with a user's own groups and experiments. Raises
    ConfigError, which names key, value, origin and mend.

    Example:
        >>> config = compose("simpletak_mirror", "learner.batch_size=64", seed=3)
        >>> config.seed, config.learner.batch_size
        (3, 64)
        >>> compose("tictactoe_mirror", learner={"total_updates": 5}).learner.total_updates
        5
    """
    from rlforge import launch

    composed = compose_any(_overrides(overrides, values), _folder(config_dir))
    launch.check(composed, keys=False)
    config: PolicyConfig = composed.config
    return config


def train(*overrides: str, config_dir: Path | str | None = None, **values: object) -> Run:
    """Train to the end, of games or continuously as the experiment says; arguments of ``compose``.

    Ctrl-C ends the run after its current update, which is saved: ``summary["status"]`` is then
    ``interrupted``, and ``resume`` goes on. Raises ConfigError before anything starts, RunError
    where the run cannot go on.

    Example:
        >>> run = train("tictactoe_mirror", learner={"total_updates": 2})  # doctest: +SKIP
        >>> run.summary["status"]  # doctest: +SKIP
        'done'
    """
    return start(_overrides(overrides, values), _folder(config_dir))


def sft(*overrides: str, config_dir: Path | str | None = None, **values: object) -> Run:
    """Fine-tune on given answers to the end; arguments of ``compose``.

    ``data`` says on which: of players, of a run, or of a file. An experiment of a run that plays
    games gives games, model and engine. Raises as ``train``. A run starts from the result with
    ``learner={"initial_adapter": run.path}``.

    Example:
        >>> run = sft("tictactoe_mirror", data={"players": ["random_legal"]})  # doctest: +SKIP
        >>> run.versions[-1]  # doctest: +SKIP
        'step-198'
    """
    return start(_overrides(overrides, values), _folder(config_dir), SftConfig)


@value
class GRPOConfig:
    """Window GRPO in the terms of the document on continuous training, with its values.

    ``rlforge.train("market_continuous", *config.overrides())`` trains by it.

    Attributes:
        model_name: A model of config group ``model``, a folder, or an id of the Hugging Face hub.
        batch_size: Decisions in a forward pass; ``gradient_accumulation_steps`` passes make an
            optimizer step.
        iterations_per_window: Passes over the selected decisions of a window.
        reward_threshold: Least RULER score of selected decisions.
        max_length: Most tokens of prompt and answer; a quarter, 512 at most, is for the answer.

    Example:
        >>> config = GRPOConfig(model_name="tiny_market", learning_rate=1e-5)
        >>> config.overrides()[:3]
        ['model=tiny_market', 'learner.mini_batch_size=4', 'learner.gradient_accumulation_steps=2']
    """

    model_name: str = "Qwen/Qwen2.5-0.5B-Instruct"
    batch_size: int = 4
    gradient_accumulation_steps: int = 2
    learning_rate: float = 1e-6
    kl_penalty: float = 0.05
    iterations_per_window: int = 10
    reward_threshold: float = 0.5
    max_length: int = 2048

    def overrides(self) -> list[str]:
        """The settings as overrides of a continuous run."""
        group = (conf_dir() / "model" / f"{self.model_name}.yaml").is_file()
        by_name = ["model=hf", f"model.name={self.model_name}"]
        model = [f"model={self.model_name}"] if group else by_name
        keys = {
            "learner.mini_batch_size": self.batch_size,
            "learner.gradient_accumulation_steps": self.gradient_accumulation_steps,
            "learner.learning_rate": self.learning_rate,
            "algorithm.kl.coef": self.kl_penalty,
            "learner.epochs": self.iterations_per_window,
            "continuous.threshold": self.reward_threshold,
            "learner.max_train_len": self.max_length,
        }
        made = made_model(self.model_name) if MODELS.has_own(self.model_name) else None
        if made is None or made.reads == "text":  # experiments with tiny models have less room
            keys["engine.max_model_len"] = self.max_length
            keys["engine.max_tokens"] = min(512, self.max_length // 4)
        return [*model, *(f"{key}={value}" for key, value in keys.items())]


def start(
    lines: Sequence[str], config_dir: Path | None, root: type[PolicyConfig] | None = None
) -> Run:
    """Train from overrides. root: the only kind of run; None: any."""
    from rlforge import launch

    kind = root_of(lines, config_dir) if root is None else root
    return Run(launch.train(lines, config_dir, kind).run_dir)


def resume(run_dir: Path | str, *, more: int = 0) -> Run:
    """Go on with a run of any kind, from its newest saved state, to its end.

    more: updates, or windows of a continuous run, beyond what it was to make. A learning rate that
    falls over the run falls over the longer one: it rises again where the run was over. Raises
    RunError for a complete run without ``more``, CheckpointError for a damaged state.

    Example: of a run that made two updates.
        >>> resume("runs/tictactoe_mirror/2026-01-01_12-00-00", more=1).versions  # doctest: +SKIP
        ['step-1', 'step-2', 'step-3']
    """
    from rlforge import launch

    path = open_run(run_dir).root
    return Run(launch.resume(path, kind_of_run(path), more).run_dir)


def load_run(run_dir: Path | str) -> Run:
    """A run on disk, finished or not. Raises RlforgeError where there is none.

    Example: of a folder that ``rlforge train`` printed.
        >>> load_run("runs/tictactoe_mirror/2026-01-01_12-00-00")  # doctest: +SKIP
        Run('runs/tictactoe_mirror/2026-01-01_12-00-00', done)
    """
    return Run(open_run(run_dir).root)


class Run:
    """A run directory: its results, games and policies.

    Example:
        >>> run = load_run("runs/tictactoe_mirror/2026-01-01_12-00-00")  # doctest: +SKIP
        >>> run.versions  # doctest: +SKIP
        ['step-1', 'step-2']
        >>> list(run.metrics()["step"])  # doctest: +SKIP
        [1, 2]
        >>> sorted(run.evaluate("random_legal", games=2)["opponent"])  # doctest: +SKIP
        ['random_legal']
        >>> run.export("my-model", merge=True)  # doctest: +SKIP
        PosixPath('my-model')
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = open_run(path)

    def __repr__(self) -> str:
        return f"Run({str(short(self.path))!r}, {self.summary.get('status', 'unfinished')})"

    @property
    def config(self) -> PolicyConfig:
        """The resolved configuration."""
        return read_any(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``: how the run ended; empty while it runs."""
        return read_summary(self._files)

    @property
    def versions(self) -> list[str]:
        """The saved versions, oldest first: ``step-N`` is the policy after N updates."""
        return [path.name for path in list_checkpoints(self._files.checkpoints)]

    def metrics(self) -> Table:
        """One row per update: step, loss, reward_mean, entropy, games, tokens_per_s, …"""
        return _table(read_jsonl(self._files.metrics))

    def evals(self) -> Table:
        """One row per evaluation of one opponent in one environment."""
        return _table(read_jsonl(self._files.evals))

    def windows(self) -> Table:
        """One row per window of a continuous run."""
        return _table(read_jsonl(self._files.windows))

    def ratings(self) -> Table:
        """One row per policy and snapshot of the pool: step, policy, mu, sigma."""
        rows = [
            {"step": row["step"], "policy": uid, "mu": mu, "sigma": sigma}
            for row in read_jsonl(self._files.ratings)
            for uid, (mu, sigma) in row["ratings"].items()
        ]
        return _table(rows)

    def games(self, purpose: Purpose | None = None) -> Iterator[GameRecord]:
        """The finished games, oldest first, or those of one purpose."""
        from rlforge.record.game_files import read_games

        return read_games(self.path, purpose=purpose)

    def policy(self, version: str = "result") -> Policy:
        """A version of the policy, loaded into this process; close it, or use it in ``with``.

        version: ``result`` (which ``learner.result`` names), ``step-N``, ``latest``, ``best`` (by
        win rate in evaluations), ``average`` (of the weights), or ``deploy-N`` of a continuous run.
        Raises CheckpointError where it is missing or damaged.
        """
        from rlforge.run.match import Policy

        return Policy(self.config, self.path, version)

    def evaluate(self, *opponents: str, version: str = "result", games: int | None = None) -> Table:
        """Play a version against opponents, seats swapped; one row per environment and opponent.

        opponents: names as in a configuration, or versions of this run; none: those of the run.
        games: per row; None: as in the run. Raises ConfigError for unknown names, RunError where no
        game finished.
        """
        from rlforge.local.evaluate import evaluate_run

        # In a notebook a loop runs already, where ``asyncio.run`` fails.
        measured = wait_for(evaluate_run(self.path, version, list(opponents) or None, games))
        if not measured.complete:
            raise RunError("\n".join(measured.failures))
        return _table([dataclasses.asdict(result) for result in measured.results])

    def fork(
        self,
        game: str,
        turn: int,
        *,
        action: str = "",
        seats: Mapping[int, str] | None = None,
        samples: int = 100,
    ) -> list[GameRecord]:
        """Play a finished game on from before a turn; returns the new games.

        Hidden cards stay as dealt; answers and chance events are drawn anew. Raises ConfigError for
        what cannot be, RunError where all new games failed.

        Args:
            game: Id of a game, or ``latest``.
            turn: Counted from 1.
            action: Taken at that turn; empty: the policy answers.
            seats: Other policies by player, by the names of ``evaluate``.
            samples: Number of new games.
        """
        from rlforge.show.replay import find_game

        forks, record = LOOKS.find("forks"), find_game(self.path, game)
        start = forks.Start(turn=turn, games=samples, action=action)
        played: list[GameRecord] = wait_for(forks.fork_game(self.path, record, start, seats)).played
        return played

    def verify(self, *, whole: bool = False, seed: int = 0) -> Table:
        """Check that the run is what it says, as ``rlforge verify``; a row per kind of check.

        whole: everything instead of a part, which ``seed`` decides.
        """
        found = LOOKS.find("verify").verify(self.path, whole=whole, seed=seed)
        return _table([dataclasses.asdict(check) for check in found.checks])

    def analyse(
        self,
        game: str,
        *,
        player: int | None = None,
        seats: Mapping[int, str] | None = None,
        samples: int = 64,
    ) -> Table:
        """The value of a finished game before and after each turn, by playing on; a row per turn.

        ``decisive`` turns change the mean reward of the player that moved by more than chance;
        where they were mistakes, ``best`` is a better action. player: None is the evaluated one, or
        the first that trains. Others, and errors, as of ``fork``. The analysis is kept for the
        run's report.
        """
        from rlforge.record.analyses import write_analysis
        from rlforge.show.replay import find_game

        record = find_game(self.path, game)
        forks = LOOKS.find("forks")
        found = wait_for(
            forks.analyse_game(self.path, record, player=player, seats=seats, samples=samples)
        )
        write_analysis(self.path, found)
        return _table(
            [
                {
                    "turn": moment.turn,
                    "player": moment.player,
                    "action": moment.action,
                    "before": moment.before.mean,
                    "after": moment.after.mean,
                    "after_low": moment.after.low,
                    "after_high": moment.after.high,
                    "change": moment.change,
                    "decisive": moment.decisive,
                    "best": moment.best,
                    "best_reward": moment.best_reward and moment.best_reward.mean,
                }
                for moment in found.moments
            ]
        )

    def export(
        self,
        folder: Path | str,
        *,
        merge: bool = False,
        version: str = "result",
        dtype: Literal["float32", "bfloat16", "float16"] | None = None,
        gguf: bool = False,
        push: str | None = None,
        public: bool = False,
    ) -> Path:
        """Write a version to a new folder, as transformers or PEFT load it; returns the folder.

        Raises ConfigError for what cannot be, before anything is computed.

        Args:
            folder: New or empty.
            merge: Write whole weights with the adapter merged into them, not the adapter.
            version: Name of a version, as for ``policy``.
            dtype: Type of whole weights; None keeps the model's.
            gguf: Write a GGUF file as well.
            push: Repository of the Hugging Face hub to upload to, too.
            public: Whether a new repository is.
        """
        from rlforge.run.export import export_run

        return export_run(
            self.path,
            Path(folder),
            version=version,
            merge=merge,
            dtype=dtype,
            gguf=gguf,
            push=push,
            public=public,
        )

    def report(self, output: Path | str | None = None) -> Path:
        """Write the report to ``report.html`` of the run, or ``output``; returns its path."""
        from rlforge.show.report import write_report

        return write_report(self.path, output)


def _table(rows: list[dict[str, Any]]) -> Table:
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def _folder(config_dir: Path | str | None) -> Path | None:
    return None if config_dir is None else Path(config_dir)


def _overrides(overrides: Sequence[str], values: Mapping[str, object]) -> list[str]:
    return [*overrides, *_assignments(values, "")]


def _assignments(values: Mapping[str, object], prefix: str) -> Iterator[str]:
    for key, given in values.items():
        if isinstance(given, Mapping) and key != "prompts":  # names of templates may have dots
            yield from _assignments(given, f"{prefix}{key}.")
        else:
            # Hydra adds a group that is not among the defaults only with +.
            added = "+" if (prefix, key) == ("", "experiment") else ""
            yield f"{added}{prefix}{key}={in_grammar(given, refers=True)}"
