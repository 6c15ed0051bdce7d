"""Runs from Python: start, resume, read, evaluate and play them.

Everything works in scripts, threads and notebooks. What the configuration decides is decided by
the configuration here, too: experiments, overrides and error messages are those of the command
line. Names are imported from ``rlforge`` itself.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rlforge.config.compose import compose as compose_root
from rlforge.config.roots import compose_any, is_continuous
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.errors import ConfigError
from rlforge.games.base import View
from rlforge.system.checkpoint import list_checkpoints
from rlforge.system.loops import wait_for
from rlforge.tracking.files import open_run, read_json, read_jsonl
from rlforge.types import (
    Completion,
    EnvSpec,
    GameRecord,
    GameSpec,
    PolicyRef,
    Purpose,
    SamplingParams,
    Seat,
    value,
)

if TYPE_CHECKING:  # torch, Ray and the game libraries are imported when they are needed
    from rlforge.engines.base import LocalEngine

# In notebooks without ipywidgets, tqdm and Ray report that they cannot draw displays of their own.
warnings.filterwarnings("ignore", message="IProgress not found")
logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)

#: A person's own player: the action in a view.
Act = Callable[[View], str]

Table = Any
"""A ``pandas.DataFrame`` where pandas is installed, else a list of dictionaries."""


def compose(
    *overrides: str, config_dir: Path | str | None = None, **values: object
) -> PolicyConfig:
    """The validated configuration of an experiment; starts nothing.

    overrides: the name of an experiment first, if any, then ``key=value`` as on the command line.
    values: further keys, groups of keys as mappings, and ``experiment``; ``${key}`` in a text
    stands for that key's value, as in YAML. config_dir: a folder with a user's own groups and
    experiments. Raises ConfigError, which names key, value, origin and mend.

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
    """Train, of games or continuously as the experiment says, to the end; arguments of ``compose``.

    Ctrl-C ends the run after its current update, which is saved: ``summary["status"]`` is then
    ``interrupted``, and ``resume`` goes on. Raises ConfigError before anything starts, RunError
    when the run cannot go on.

    Example:
        >>> run = train("tictactoe_mirror", learner={"total_updates": 2})  # doctest: +SKIP
        >>> run.summary["status"]  # doctest: +SKIP
        'done'
    """
    from rlforge import launch

    lines, folder = _overrides(overrides, values), _folder(config_dir)
    root = type(compose_any(lines, folder).config)
    return Run(launch.train(lines, folder, root).run_dir)


def resume(run_dir: Path | str) -> Run:
    """Go on with a run, of games or continuous, from its newest saved state, to its end.

    Raises RunError for a complete run, and CheckpointError for a damaged state.

    Example: after ``total_updates: 3`` was written to its config.yaml.
        >>> resume("runs/tictactoe_mirror/2026-01-01_12-00-00").versions  # doctest: +SKIP
        ['step-1', 'step-2', 'step-3']
    """
    from rlforge import launch
    from rlforge.config.continuous import ContinuousConfig

    path = open_run(run_dir).root
    return Run(launch.resume(path, ContinuousConfig if is_continuous(path) else RunConfig).run_dir)


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
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = open_run(path)

    def __repr__(self) -> str:
        """The path, relative where it is below the current directory, and how the run ended."""
        path, here = self.path.absolute(), Path.cwd()
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        return f"Run({str(shown)!r}, {self.summary.get('status', 'unfinished')})"

    @property
    def config(self) -> PolicyConfig:
        """The resolved configuration."""
        from rlforge.config.compose import from_yaml
        from rlforge.config.continuous import ContinuousConfig

        root = ContinuousConfig if is_continuous(self.path) else RunConfig
        config: PolicyConfig = from_yaml(self._files.config, root)
        return config

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``: how the run ended; empty while it runs."""
        return read_json(self._files.summary)

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
        """The finished games, oldest first; purpose: only those of training or of evaluations."""
        from rlforge.tracking.game_files import read_games

        return read_games(self.path, purpose=purpose)

    def policy(self, version: str = "latest") -> Policy:
        """A version of the policy, loaded into this process; close it, or use it in ``with``.

        version: ``step-N`` or ``latest``. Raises CheckpointError where it is missing or damaged.
        """
        return Policy(self.config, self.path, version)

    def evaluate(self, *opponents: str, version: str = "latest", games: int | None = None) -> Table:
        """Play a version against opponents, seats swapped; one row per environment and opponent.

        opponents: names as in a configuration, or versions of this run; without any those of the
        run. games: per row; None takes that of the run. Raises ConfigError for unknown names, and
        RunError where no game finished.
        """
        import dataclasses

        from rlforge.errors import RunError
        from rlforge.local.evaluate import evaluate_run

        measured = wait_for(evaluate_run(self.path, version, list(opponents) or None, games))
        if not measured.complete:
            raise RunError("\n".join(measured.failures))
        return _table(
            [
                {**dataclasses.asdict(result), "win_rate": result.win_rate}
                for result in measured.results
            ]
        )

    def report(self) -> Path:
        """Write ``report.html`` and return its path."""
        from rlforge.tracking.report import write_report

        return write_report(self.path)


class Policy:
    """A version of a run's policy with an engine of its own in this process.

    ``Run.policy`` makes it, ``play_game`` takes it as a player.

    Example:
        >>> run = load_run("runs/tictactoe_mirror/2026-01-01_12-00-00")  # doctest: +SKIP
        >>> with run.policy("step-2") as policy:  # doctest: +SKIP
        ...     action = policy.act("Available Moves: [0], [4]", ["[0]", "[4]"], temperature=0)
        ...     record = play_game("tictactoe", policy, "random_legal", seed=1)
        >>> record.spec.seats[0].policy.uid  # doctest: +SKIP
        'step-2'
    """

    def __init__(self, config: PolicyConfig, run_dir: Path, version: str = "latest") -> None:
        from rlforge.games.prompts import Prompter
        from rlforge.local.policies import find_policy, start_engine
        from rlforge.models.load import load_tokenizer, stop_token_ids

        self.config = config
        self.ref, _ = find_policy(run_dir, version)
        self._engine: LocalEngine = start_engine(config, [self.ref], lambda text: None)
        tokenizer = load_tokenizer(config.model)
        self._prompter = Prompter(tokenizer)
        self._stop = stop_token_ids(config.model, tokenizer)

    def __repr__(self) -> str:
        return f"Policy({self.ref.uid})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def act(
        self,
        observation: str | View,
        legal_actions: Sequence[str] | None = None,
        *,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> str:
        """The action that the policy takes; empty where its answer holds none.

        observation: what the player sees, as text or as a game's ``View``. legal_actions: where
        known, they decide whether actions are written in brackets. temperature: None is that of
        evaluations; seed: None draws a new answer each time. Raises EngineError.
        """
        from rlforge.games.actions import extract

        view = _view(observation, legal_actions)
        completion = wait_for(self.answer(view, temperature=temperature, seed=seed))
        model = self.config.model
        return extract(model.action_extraction, completion.text, view.legal_actions).action

    async def answer(
        self, view: View, *, temperature: float | None = None, seed: int | None = None
    ) -> Completion:
        """The whole answer, with its tokens and log-probs."""
        engine, model = self.config.engine, self.config.model
        if temperature is None:
            evals = getattr(self.config, "eval", None)
            given = None if evals is None else evals.temperature
            temperature = engine.temperature if given is None else given
        _, ids = self._prompter.encode(model.prompt_template, view, model.action_extraction)
        params = SamplingParams(
            temperature=temperature,
            top_p=engine.top_p,
            max_tokens=engine.max_tokens,
            stop_token_ids=self._stop,
            seed=seed,
        )
        return await self._engine.generate(ids, params, self.ref)

    def close(self) -> None:
        """Release the model."""
        wait_for(self._engine.close())


def play_game(env: str | EnvSpec, *players: str | Policy | Act, seed: int = 0) -> GameRecord:
    """Play one game and return its record.

    env: an option of the group ``env``, as ``tictactoe``, or an ``EnvSpec``. players: by seat, the
    last one at all seats that are left: the name of an opponent as in a configuration, a
    ``Policy``, or a function from a ``View`` to an action. seed: of the game and of all draws.
    Raises ConfigError for a game or player that cannot be, and what such a function raises; a game
    that fails by itself has ``error`` set.

    Example:
        >>> record = play_game("tictactoe", "minimax", lambda view: view.legal_actions[0], seed=1)
        >>> record.rewards
        {0: 1.0, 1: -1.0}
    """
    from rlforge.games.registry import check_env
    from rlforge.rollout.episode import play_game as play
    from rlforge.rollout.lineup import env_spec

    if isinstance(env, str):
        config = compose_root([f"env={env}"]).config
        env = env_spec(config.env.train[0], config.model)
    check_env(env)
    if not 0 < len(players) <= env.num_players:
        raise ConfigError(f"{len(players)} players: {env.id} has {env.num_players} seats")
    present = [_present(player, env, seed) for player in players]
    at_seat = [*present, *[present[-1]] * (env.num_players - len(present))]

    async def answer(seat: Seat, view: View, draw: int) -> Completion:
        return await at_seat[seat.player_id].answer(seat, view, draw)

    seats = tuple(
        Seat(
            player_id=number,
            policy=player.ref,
            trained=False,
            prompt_template=player.prompt_template,
            action_extraction=player.action_extraction,
        )
        for number, player in enumerate(at_seat)
    )
    spec = GameSpec(game_id="play", env=env, seed=seed, purpose="eval", seats=seats)
    return wait_for(play(spec, answer))


def transcript(record: GameRecord, width: int = 80) -> str:
    """A game as text to print, as ``rlforge replay`` shows it: each turn, and the result.

    Example:
        >>> record = play_game("tictactoe", "minimax", lambda view: view.legal_actions[0], seed=1)
        >>> transcript(record).splitlines()[-1]
        'finished: +1 -1'
    """
    from rich.console import Console

    from rlforge.local.play import turns

    # Without a file of its own Rich would show the text in a notebook, in colours.
    console = Console(file=io.StringIO(), width=width, force_jupyter=False, color_system=None)
    with console.capture() as text:
        for piece in turns(record):
            console.print(piece, highlight=False)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


@value
class _Present:
    """A player at a game, and how it is asked."""

    ref: PolicyRef
    answer: Callable[[Seat, View, int], Awaitable[Completion]]
    prompt_template: str
    action_extraction: str


def _present(player: str | Policy | Act, env: EnvSpec, seed: int) -> _Present:
    """``player`` at a game of ``env``; ConfigError where it cannot play there."""
    from rlforge.config.pool import ApiConfig
    from rlforge.engines.openai import ApiPlayer, check_api
    from rlforge.games.players import check_player, make_player
    from rlforge.league.names import parse_opponent

    form = player.config.model if isinstance(player, Policy) else env

    def present(ref: PolicyRef, answer: Callable[..., Awaitable[Completion]]) -> _Present:
        return _Present(
            ref=ref,
            answer=answer,
            prompt_template=form.prompt_template,
            action_extraction=form.action_extraction,
        )

    if isinstance(player, Policy):
        return present(player.ref, lambda seat, view, draw: player.answer(view, seed=draw))
    if isinstance(player, str):
        ref = parse_opponent(player)
        if ref.kind == "checkpoint":
            raise ConfigError(f"player {player!r} needs a model: take load_run(...).policy(...)")
        if ref.kind == "api":
            check_api(player, ApiConfig())
            model = ApiPlayer(ApiConfig())
            return present(
                ref,
                lambda seat, view, draw: model.answer(
                    seat.prompt_template, view, ref, seat.action_extraction
                ),
            )
        check_player(player, env)
        act: Act = make_player(player, env, seed).act
    elif callable(player):
        name = getattr(player, "__name__", type(player).__name__)
        ref, act = PolicyRef(uid=name, kind="scripted"), player
    else:
        raise ConfigError(f"player {player!r} is no name, Policy or function from View to action")

    async def scripted(seat: Seat, view: View, draw: int) -> Completion:
        action = act(view)
        if not isinstance(action, str):
            raise TypeError(f"player {ref.uid} answered {action!r}; an action is text")
        return Completion(text=action, finish_reason="scripted", policy_uid=ref.uid)

    return present(ref, scripted)


def _view(observation: str | View, legal_actions: Sequence[str] | None) -> View:
    if isinstance(observation, View):
        return observation
    legal = None if legal_actions is None else tuple(legal_actions)
    return View(player_id=0, observation=observation, board=observation, legal_actions=legal)


def _table(rows: list[dict[str, Any]]) -> Table:
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def _folder(config_dir: Path | str | None) -> Path | None:
    return None if config_dir is None else Path(config_dir)


def _overrides(overrides: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """Lines as on the command line."""
    lines = [*overrides]
    if lines and "=" not in lines[0]:
        lines[0] = f"+experiment={lines[0]}"
    return [*lines, *_assignments(values, "")]


def _assignments(values: Mapping[str, object], prefix: str) -> Iterator[str]:
    for key, given in values.items():
        if isinstance(given, Mapping):
            yield from _assignments(given, f"{prefix}{key}.")
        else:
            added = "+" if (prefix, key) == ("", "experiment") else ""
            yield f"{added}{prefix}{key}={_written(given)}"


def _written(given: object) -> str:
    """A value in Hydra's grammar."""
    if given is None:
        return "null"
    if isinstance(given, bool):
        return str(given).lower()
    if isinstance(given, list | tuple):
        return f"[{','.join(map(_written, given))}]"
    if isinstance(given, Mapping):
        return f"{{{','.join(f'{key}: {_written(one)}' for key, one in given.items())}}}"
    if isinstance(given, float):
        return float.__repr__(given)  # also of numpy's
    if isinstance(given, int):
        return repr(given)
    text = str(given)
    reserved = text.lower() in ("null", "true", "false", "nan", "inf")
    if re.fullmatch(r"[A-Za-z_][\w./:-]*", text, re.ASCII) and not reserved:
        return text
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return "'" + escaped + "\\" * trailing + "'"
