"""Checks of supervised fine-tuning across groups, before anything is created."""

from __future__ import annotations

import json
from pathlib import Path

from rlforge.config.compose import Composed, from_yaml
from rlforge.config.market import MarketConfig
from rlforge.config.plugins import ALGORITHMS
from rlforge.config.sft import SftConfig
from rlforge.errors import ConfigError, RlforgeError
from rlforge.games.actions import extract
from rlforge.games.registry import make_game
from rlforge.games.trading import asked_form
from rlforge.league.names import parse_opponent
from rlforge.market.actions import NO_OP
from rlforge.market.text import read
from rlforge.preflight.continuous import check_agents
from rlforge.preflight.games import check_lineup, check_opponents
from rlforge.preflight.policy import check_machine, check_policy
from rlforge.rollout.datasets import check_file, written
from rlforge.rollout.lineup import train_envs
from rlforge.rollout.traders import KINDS, TRADERS
from rlforge.tracking.files import RunPaths, open_run


def check_sft(composed: Composed[SftConfig], *, keys: bool = True) -> None:
    """Raise ConfigError for the first impossible value, unknown name or contradiction.

    keys: also ask for the API keys and packages that a run would need.
    """
    config = composed.config
    check_policy(composed)
    if config.market is None:
        check_lineup(composed, keys=False)  # opponents are met in later evaluations only
        _check_players(composed, keys=keys)
    else:
        _check_traders(composed, config.market)
    name = config.algorithm.name
    if ALGORITHMS.has_own(name) and name != "supervised":
        raise composed.error("algorithm.name", "learns from rewards; use algorithm=supervised")
    if config.data.run is not None:
        _check_run(composed, Path(config.data.run))
    if config.data.file is not None:
        try:
            check_file(Path(config.data.file))
        except ConfigError as error:
            raise composed.error("data.file", str(error)) from None
    if keys:
        check_machine(config)


def _check_players(composed: Composed[SftConfig], *, keys: bool) -> None:
    config, envs = composed.config, train_envs(composed.config)
    check_opponents(composed, "data.players", config.data.players, envs, keys=keys)
    for name in config.data.players:
        if parse_opponent(name).kind == "checkpoint":
            raise composed.error(
                "data.players",
                f"{name} is a model; let it play with rlforge train or eval, and learn from its "
                "games with data.run=RUN",
            )
    for env in envs if config.data.players else ():
        legal = make_game(env, seed=0).view().legal_actions
        action = legal[0] if legal else "[0]"
        text = written(config.data.answer, env.action_extraction, action)
        if extract(env.action_extraction, text, legal).action != action:
            raise composed.error(
                "data.answer",
                f"{text!r} is not read as {action} by action_extraction={env.action_extraction} "
                f"of {env.id}",
            )


def _check_traders(composed: Composed[SftConfig], market: MarketConfig) -> None:
    """Whether ``data.players`` are traders, and their actions can be written and read."""
    data = composed.config.data
    check_agents(composed, market, TRADERS)
    for name in data.players:
        if name not in KINDS:
            raise composed.error(
                "data.players", f"{name} does not trade in markets; there are {', '.join(KINDS)}"
            )
    if data.last_turns is not None:
        raise composed.error("data.last_turns", "is for games; a market has no last turns")
    text = written(data.answer, asked_form(composed.config.model), json.dumps(NO_OP))
    if read(text).action != NO_OP:
        raise composed.error("data.answer", f"the action in {text!r} is not the one that is read")


def _check_run(composed: Composed[SftConfig], run: Path) -> None:
    """Whether the run has games, of the same model: tokens of another one mean other texts."""
    try:
        theirs = from_yaml(open_run(run).config).model
    except RlforgeError as error:
        raise composed.error("data.run", str(error)) from None
    ours = composed.config.model
    if (theirs.kind, theirs.name) != (ours.kind, ours.name):
        raise composed.error(
            "data.run",
            f"its model is {theirs.label}, this one {ours.label}: tokens mean other texts",
        )
    if not any(RunPaths(root=run).games.glob("*.parquet")):
        raise composed.error("data.run", "has no recorded games (collector.save_games)")
