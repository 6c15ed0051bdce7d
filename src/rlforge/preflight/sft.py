"""Checks of supervised fine-tuning, before anything is created."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rlforge.config.compose import Composed, from_yaml
from rlforge.config.plugins import ALGORITHMS
from rlforge.config.sft import SftConfig
from rlforge.errors import RlforgeError, collected, raise_all
from rlforge.games.actions import extract
from rlforge.games.registry import make_game
from rlforge.league.names import parse_opponent
from rlforge.preflight.games import lineup_problems, opponent_problems
from rlforge.preflight.policy import Problems, machine_problems, policy_problems, value_problems
from rlforge.record.files import RunPaths, open_run
from rlforge.rollout.datasets import check_file, written
from rlforge.rollout.lineup import train_envs


def check_sft(composed: Composed[SftConfig], *, keys: bool = True) -> None:
    """Raise ConfigError for impossible values and unknown names, or else for contradictions.

    keys: also ask for the API keys and packages that a run would need.
    """
    raise_all(collected(value_problems(composed)) or _sft_problems(composed, keys=keys))


def _sft_problems(composed: Composed[SftConfig], *, keys: bool) -> Problems:
    config = composed.config
    yield from policy_problems(composed)
    yield from config.teachers.problems(composed, keys=keys)
    name = config.algorithm.name
    if ALGORITHMS.has_own(name) and name != "supervised":
        yield composed.error("algorithm.name", "learns from rewards; use algorithm=supervised")
    if config.data.run is not None:
        yield from _run_problems(composed, Path(config.data.run))
    if config.data.file is not None:
        yield from composed.trial("data.file", partial(check_file, Path(config.data.file)))
    if keys:
        yield from machine_problems(config)


def game_problems(composed: Composed[SftConfig], *, keys: bool) -> Problems:
    # Opponents are met in later evaluations only, so their API keys are not needed yet.
    found = collected(lineup_problems(composed, keys=False))
    yield from found or _player_problems(composed, keys=keys)


def _player_problems(composed: Composed[SftConfig], *, keys: bool) -> Problems:
    config, envs = composed.config, train_envs(composed.config)
    players = config.data.players
    found = [*opponent_problems(composed, "data.players", players, envs, keys=keys)]
    yield from found
    for name in players if not found else ():
        if parse_opponent(name).kind == "checkpoint":
            yield composed.error(
                "data.players",
                f"{name} is a model; let it play with rlforge train or eval, and learn from its "
                "games with data.run=RUN",
            )
    for env in envs if config.data.players else ():
        legal = make_game(env, seed=0).view().legal_actions
        action = legal[0] if legal else "[0]"
        reader = env.form.extraction
        text = written(config.data.answer, reader, action)
        if extract(reader, text, legal).action != action:
            yield composed.error(
                "data.answer",
                f"{text!r} is not read as {action} by action_extraction={reader} of {env.id}",
            )


def _run_problems(composed: Composed[SftConfig], run: Path) -> Problems:
    try:
        theirs = from_yaml(open_run(run).config).model
    except RlforgeError as error:
        yield composed.error("data.run", str(error))
        return
    ours = composed.config.model
    if (theirs.kind, theirs.name) != (ours.kind, ours.name):
        yield composed.error(
            "data.run",
            f"its model is {theirs.label}, this one {ours.label}: tokens mean other texts",
        )
    if not any(RunPaths(root=run).games.glob("*.parquet")):
        yield composed.error("data.run", "has no recorded games (collector.save_games)")
