"""Checks of supervised fine-tuning across groups, before anything is created."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from rlforge.config.compose import Composed, from_yaml
from rlforge.config.market import MarketConfig
from rlforge.config.plugins import ALGORITHMS
from rlforge.config.sft import SftConfig
from rlforge.errors import RlforgeError, collected, raise_all
from rlforge.games.actions import extract
from rlforge.games.registry import make_game
from rlforge.games.trading import asked_form
from rlforge.league.names import parse_opponent
from rlforge.market.actions import NO_OP
from rlforge.market.text import read
from rlforge.preflight.continuous import agent_problems
from rlforge.preflight.games import lineup_problems, opponent_problems
from rlforge.preflight.policy import Problems, machine_problems, policy_problems, value_problems
from rlforge.rollout.datasets import check_file, written
from rlforge.rollout.lineup import train_envs
from rlforge.rollout.traders import KINDS, TRADERS
from rlforge.tracking.files import RunPaths, open_run


def check_sft(composed: Composed[SftConfig], *, keys: bool = True) -> None:
    """Raise ConfigError for impossible values and unknown names, or else for contradictions.

    keys: also ask for the API keys and packages that a run would need.
    """
    raise_all(collected(value_problems(composed)) or _sft_problems(composed, keys=keys))


def _sft_problems(composed: Composed[SftConfig], *, keys: bool) -> Problems:
    config = composed.config
    yield from policy_problems(composed)
    if config.market is None:
        # Opponents are met in later evaluations only.
        found = collected(lineup_problems(composed, keys=False))
        yield from found or _player_problems(composed, keys=keys)
    else:
        yield from _trader_problems(composed, config.market)
    name = config.algorithm.name
    if ALGORITHMS.has_own(name) and name != "supervised":
        yield composed.error("algorithm.name", "learns from rewards; use algorithm=supervised")
    if config.data.run is not None:
        yield from _run_problems(composed, Path(config.data.run))
    if config.data.file is not None:
        yield from composed.trial("data.file", partial(check_file, Path(config.data.file)))
    if keys:
        yield from machine_problems(config)


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
        text = written(config.data.answer, env.action_extraction, action)
        if extract(env.action_extraction, text, legal).action != action:
            yield composed.error(
                "data.answer",
                f"{text!r} is not read as {action} by action_extraction={env.action_extraction} "
                f"of {env.id}",
            )


def _trader_problems(composed: Composed[SftConfig], market: MarketConfig) -> Problems:
    """Whether ``data.players`` are traders, and their actions can be written and read."""
    data = composed.config.data
    yield from agent_problems(composed, market, TRADERS)
    for name in data.players:
        if name not in KINDS:
            yield composed.error(
                "data.players", f"{name} does not trade in markets; there are {', '.join(KINDS)}"
            )
    if data.last_turns is not None:
        yield composed.error("data.last_turns", "is for games; a market has no last turns")
    text = written(data.answer, asked_form(composed.config.model), json.dumps(NO_OP))
    if read(text).action != NO_OP:
        yield composed.error("data.answer", f"the action in {text!r} is not the one that is read")


def _run_problems(composed: Composed[SftConfig], run: Path) -> Problems:
    """Whether the run has games, of the same model: tokens of another one mean other texts."""
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
