"""Policies that act in this process, and games between them, scripted players and functions."""

from __future__ import annotations

import dataclasses
import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rich.console import Console

from rlforge.config.schema import GamesConfig, PolicyConfig
from rlforge.errors import ConfigError, check_type
from rlforge.games.actions import extract
from rlforge.games.base import View
from rlforge.games.orientation import Shown, shown
from rlforge.games.players import make_player
from rlforge.games.registry import check_env
from rlforge.league.names import parse_opponent
from rlforge.local.policies import RESULT, find_policy, seat_policies, start_engine
from rlforge.models.load import load_tokenizer, stop_token_ids
from rlforge.rollout import episode
from rlforge.rollout.episode import AtSeat
from rlforge.rollout.lineup import asked_as, check_plays, env_named, env_of
from rlforge.rollout.policies import Act, Acting, SeatPolicies
from rlforge.rollout.schedule import line_up
from rlforge.show.replay import turns
from rlforge.system.loops import wait_for
from rlforge.types import Completion, EnvSpec, GameRecord, GameSpec, PolicyRef, Seat


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

    def __init__(self, config: PolicyConfig, run_dir: Path, version: str = RESULT) -> None:
        self.config = config
        self.ref, _ = find_policy(run_dir, version)
        self._engine = start_engine(config, [self.ref], lambda text: None)
        tokenizer = load_tokenizer(config.model)
        stops = stop_token_ids(config.model, tokenizer)
        self._seats = SeatPolicies(config, tokenizer, self._engine, stops)

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
        env: str | None = None,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> str:
        """The action that the policy takes; empty where its answer holds none.

        Raises EngineError.

        Args:
            observation: Text or a game's ``View`` for the player.
            legal_actions: Decide, where known, whether actions are written in brackets.
            env: Id of the run's environment, where it asks in these in different forms; None: the
                first one that it trains in.
            temperature: None: that of evaluations.
            seed: None: a new answer each time.
        """
        if isinstance(observation, View):
            view = observation
        else:
            check_type(observation, str, what="observation is a text or a View")
            legal = None if legal_actions is None else tuple(legal_actions)
            view = View(
                player_id=0, observation=observation, board=observation, legal_actions=legal
            )
        completion = wait_for(self.answer(view, env=env, temperature=temperature, seed=seed))
        form, asked = asked_as(self.config, env), self._shown(view, env)
        found = extract(form.extraction, completion.text, asked.view.legal_actions)
        return asked.played(found.action)

    async def answer(
        self,
        view: View,
        *,
        env: str | None = None,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> Completion:
        """The whole answer, with its tokens and log-probs; see ``act``.

        With ``env.canonical`` it names the action in the orientation that the model is shown.
        """
        form = asked_as(self.config, env)
        seat = Seat(player_id=view.player_id, policy=self.ref, trained=False, form=form)
        seed = random.getrandbits(63) if seed is None else seed
        return await self._seats.at_seat(seat, EnvSpec(id=""), temperature).answer(
            self._shown(view, env).view, seed
        )

    def _shown(self, view: View, env: str | None) -> Shown:
        spec = env_of(self.config, env)
        return Shown(view=view) if spec is None else shown(spec, view)

    def close(self) -> None:
        """Release the model."""
        wait_for(self._engine.close())


def play_game(env: str | EnvSpec, *players: str | Policy | Act, seed: int = 0) -> GameRecord:
    """Play one game and return its record.

    A player is the name of an opponent as in a configuration, a ``Policy``, or a function from a
    ``View`` to an action. Raises ConfigError for a game or player that cannot be, and what such a
    function raises; a game that fails by itself has ``error`` set.

    Args:
        env: Option of the group ``env``, as ``tictactoe``, or an ``EnvSpec``.
        players: Players by seat, the last one at all seats that are left.
        seed: Seed of the game and of all draws.

    Example:
        >>> record = play_game("tictactoe", "minimax", lambda view: view.legal_actions[0], seed=1)
        >>> record.rewards
        {0: 1.0, 1: -1.0}
    """
    check_type(env, str, EnvSpec, what="env is the name of a game, as 'tictactoe', or an EnvSpec")
    if isinstance(env, str):
        env = env_named(env)
    for run in (player.config for player in players if isinstance(player, Policy)):
        # A policy that learned in conversations plays in them: other prompts would be new to it.
        if (own := run.games) is not None:
            env = dataclasses.replace(env, context=own.env.context, overflow=own.env.overflow)
    check_env(env)
    if not 0 < len(players) <= env.num_players:
        raise ConfigError(f"{len(players)} players: {env.id} has {env.num_players} seats")
    owners = [*players, *[players[-1]] * (env.num_players - len(players))]
    refs = [_reference(player, env) for player in owners]
    seats = list(line_up(env, refs, trained_uid=None))
    for place, player in enumerate(owners):
        # A policy knows the form in which its run asks; others are asked as the environment says.
        if isinstance(player, Policy):
            form = asked_as(player.config, env.id)
            seats[place] = dataclasses.replace(seats[place], form=form)
    # Each seat has a seed of its own, else one player at several seats would draw alike.
    given = {
        seat.player_id: _at_seat(player, seat, env, seed + seat.player_id)
        for player, seat in zip(owners, seats, strict=True)
        if seat.policy.kind not in ("api", "hf")
    }
    others = [seat.policy for seat in seats if seat.player_id not in given]
    spec = GameSpec(game_id="play", env=env, seed=seed, purpose="eval", seats=tuple(seats))

    async def played() -> GameRecord:
        async with seat_policies(GamesConfig(), others, lambda text: None) as policies:
            return await episode.play_game(spec, policies.for_game(spec, given))

    return wait_for(played())


def transcript(record: GameRecord, width: int = 80) -> str:
    """A game as text to print, as ``rlforge replay`` shows it: each turn, and the result.

    Example:
        >>> record = play_game("tictactoe", "minimax", lambda view: view.legal_actions[0], seed=1)
        >>> transcript(record).splitlines()[-1]
        'finished: +1 -1'
    """
    check_type(record, GameRecord, what="record is one GameRecord, as play_game returns it")
    # Without a file of its own Rich would show the text in a notebook, in colours.
    console = Console(file=io.StringIO(), width=width, force_jupyter=False, color_system=None)
    with console.capture() as text:
        for piece in turns(record):
            console.print(piece, highlight=False)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def _reference(player: str | Policy | Act, env: EnvSpec) -> PolicyRef:
    if isinstance(player, Policy):
        return player.ref
    if isinstance(player, str):
        ref = parse_opponent(player)
        if ref.kind == "checkpoint":
            raise ConfigError(f"player {player!r} needs a model: take load_run(...).policy(...)")
        check_plays(ref, env)
        return ref
    if not callable(player):
        raise ConfigError(f"player {player!r} is no name, Policy or function from View to action")
    name = getattr(player, "__name__", type(player).__name__)
    return PolicyRef(uid=name, kind="scripted")


def _at_seat(player: str | Policy | Act, seat: Seat, env: EnvSpec, seed: int) -> AtSeat:
    if isinstance(player, Policy):
        return player._seats.at_seat(seat, env)
    act: Act = make_player(player, env, seed).act if isinstance(player, str) else player
    return Acting(seat, lambda draw: act)
