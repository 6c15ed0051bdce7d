"""TextArena games behind the ``Game`` protocol."""

from __future__ import annotations

import contextlib
import io
import math
import numbers
import random
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from rlforge.config.names import described, from_outside
from rlforge.errors import ConfigError, GameError, nearest
from rlforge.games.base import TurnGame, View
from rlforge.games.board import Hand, grid_board, hand_board
from rlforge.games.grids import Grid, GridGame, grid_of, placements
from rlforge.games.legal import RULES, family, relisted
from rlforge.games.watchdog import Watchdog
from rlforge.system.packages import statistics_hidden
from rlforge.types import EndReason, EnvSpec

with statistics_hidden():
    import textarena
    from textarena.envs.registration import ENV_REGISTRY
    from textarena.envs.utils import word_lists

_T = TypeVar("_T")

# Word games ask NLTK for lists again and again, which prints to stderr, and load a tagger for each
# word and a dictionary for each game. Here that is silent, and cached.
if nltk := sys.modules.get("nltk"):
    fetch = partial(vars(nltk)["download"], quiet=True, print_error_to=io.StringIO())
    vars(nltk)["download"] = fetch
    word_lists.EnglishDictionary = lru_cache(word_lists.EnglishDictionary)
    tags = vars(sys.modules["nltk.tag"])
    tags |= {name: lru_cache(tags[name]) for name in ("_get_tagger",) if name in tags}

#: Most seconds for one reset or step of an environment.
STEP_LIMIT_S = 10.0

#: Player counts that are tried, to tell the user which one an environment takes.
_PLAYER_COUNTS = (1, 2, 3, 4, 5, 6)

#: Families that pass make and reset but cannot be played, and why.
_UNPLAYABLE = {"Stratego": "its step raises once a miner that defused a bomb moves on"}

_WATCHDOG = Watchdog()
_RANDOM_MODULE = vars(random)
_PROCESS_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: function
    for name, function in _RANDOM_MODULE.items()
    if isinstance(getattr(function, "__self__", None), random.Random)
}


class _OwnRandom:
    """Random numbers of their own for environments, one generator per thread."""

    def __init__(self) -> None:
        # TextArena draws from Python's process-wide ``random``, through its module. While
        # environments run, the module's functions call the generator of the game in their thread:
        # interleaved games follow from their seeds, none waits for another, and the rest of the
        # process keeps its own numbers. Swapping the state of the one generator costs 25 times as
        # much and needs a lock.
        self._thread, self._lock, self._running = threading.local(), threading.Lock(), 0
        self._functions = {name: partial(self._draw, name) for name in _PROCESS_FUNCTIONS}

    def _draw(self, name: str, *args: Any, **kwargs: Any) -> Any:
        functions = getattr(self._thread, "functions", _PROCESS_FUNCTIONS)
        return functions[name](*args, **kwargs)

    def enter(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._thread.functions = functions
        with self._lock:
            self._running += 1
            if self._running == 1:
                _RANDOM_MODULE.update(self._functions)

    def leave(self) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                _RANDOM_MODULE.update(_PROCESS_FUNCTIONS)
        del self._thread.functions


_OWN_RANDOM = _OwnRandom()


class TextArenaGame(TurnGame):
    """One play of a TextArena environment."""

    def __init__(self, env: EnvSpec, seed: int) -> None:
        super().__init__(env, seed)
        self._random_functions = {name: getattr(self._random, name) for name in _PROCESS_FUNCTIONS}
        self._limit_s = min(STEP_LIMIT_S, env.timeout_s or STEP_LIMIT_S)
        self.accepted = True
        #: Why moves of the last step counted as invalid, by seat.
        self._rejections: dict[int, str] = {}
        self._env = self._call("make", lambda: textarena.make(env.id))
        self._call("reset", lambda: self._env.reset(num_players=env.num_players, seed=seed))
        self._bare: Any = self._env
        while isinstance(self._bare, textarena.Wrapper):
            self._bare = self._bare.env
        self._bare.state.error_allowance = env.error_allowance
        self._bare.state.set_invalid_move = _NotedRejections(self._bare.state, self._rejections)
        self._family = family(env.id)
        if self._family == "Bandit":
            means = self._bare.state.game_state["ground_truth"]
            # The environment would pay an arm its regret, the worst one most. Here the best arm
            # pays 1, any other 1 less its regret.
            self._bare._regret = lambda arm: 1 - (max(means.values()) - means[arm])

    def step(self, action: str) -> None:
        player = self.view().player_id
        self._rejections.clear()
        self._turn += 1
        self._view = None
        done, _ = self._call("step", lambda: self._env.step(action))
        self.accepted = player not in self._rejections
        if done:
            invalid_by = next(iter(self._rejections), None)
            reason: EndReason = "finished" if invalid_by is None else "invalid_move"
            self._finish(self._rewards(invalid_by), reason, invalid_by)
        elif self._out_of_turns:
            self._finish(dict.fromkeys(range(self._spec.num_players), 0.0), "turn_limit", None)

    def _finish(
        self, rewards: Mapping[int, float], reason: EndReason, invalid_by: int | None
    ) -> None:
        super()._finish(rewards, reason, invalid_by)
        # Dropping the hook ends the cycle state -> hook -> state: the environment is freed at once.
        vars(self._bare.state).pop("set_invalid_move", None)
        del self._env, self._bare

    def _look(self) -> View:
        player, text = self._call("get_observation", self._env.get_observation)
        if player not in range(self._spec.num_players):
            raise self._failure("get_observation", f"it is the turn of player {player!r}")
        observation = text
        if not isinstance(text, str):
            # A ``-raw`` environment hands over messages, not a text.
            observation = "\n".join(
                f"[{'GAME' if sender == textarena.GAME_ID else f'Player {sender}'}] {message}"
                for sender, message, _ in text
            )
        grid = _grid(self._family, self._bare, player)
        if grid is not None:
            legal: tuple[str, ...] | None = tuple(placements(grid))
            board: str | None = grid_board(grid)
        else:
            rule = RULES.get(self._family)
            legal = tuple(rule(self._bare, player)) if rule is not None else None
            hand = _hand(self._family, self._bare, player)
            board = hand_board(hand, legal or ()) if hand is not None else None
        if legal is not None:
            observation = relisted(observation, legal)
        reason = self._rejections.get(player)
        # Some wrappers hide the error message, and the same prompt would get the same answer.
        if reason is not None and reason not in observation:
            observation += f"\n\nYour last action was not accepted. {reason} Try another action."
        return View(
            player_id=player,
            observation=observation,
            legal_actions=legal,
            board=board,
            retry=reason is not None,
            grid=grid,
            news=None if isinstance(text, str) else observation,
        )

    def _rewards(self, invalid_by: int | None) -> dict[int, float]:
        """The reward of each player. invalid_by: whose invalid move ended the game."""
        rewards, _ = self._call("close", self._env.close)
        players = range(self._spec.num_players)
        if invalid_by is not None:
            # Environments reward an invalid move in many ways or not at all: here it costs -1. A
            # team shares one reward, so its other members get -1, too.
            found = rewards if isinstance(rewards, dict) else {}
            paid = {
                player: float(found[player]) if _is_number(found.get(player)) else 0.0
                for player in players
            }
            winners, teams = self._spec.won_by, len(set(paid.values())) > 1
            team = {
                player
                for player in players
                if winners == "all"
                or (winners == "team" and teams and paid[player] == paid[invalid_by])
            }
            return paid | dict.fromkeys({invalid_by, *team}, -1.0)
        if not isinstance(rewards, dict) or set(rewards) != set(players):
            raise self._failure("close", f"rewards {rewards!r} are not one for each player")
        for player, reward in rewards.items():
            if not _is_number(reward):
                raise self._failure("close", f"reward {reward!r} of player {player} is no number")
        return {player: float(rewards[player]) for player in players}

    def _call(self, what: str, function: Callable[[], _T]) -> _T:
        """Run the environment's code with this game's random numbers."""
        _OWN_RANDOM.enter(self._random_functions)
        try:
            return _WATCHDOG.run(function, self._limit_s)
        except Exception as error:
            # Whatever an environment raises fails this game only, not the run.
            raise self._failure(what, f"{type(error).__name__}: {error}") from error
        except BaseException as error:
            # A user's environment may call ``sys.exit``, which must not end the run.
            if from_outside(error):
                raise
            raise self._failure(what, described(error)) from error
        finally:
            _OWN_RANDOM.leave()

    def _failure(self, what: str, why: str) -> GameError:
        return GameError(f"{self._spec.id}: {what} failed in turn {self._turn}: {why}")


def _is_number(reward: Any) -> bool:
    return isinstance(reward, numbers.Real) and math.isfinite(reward)


class _NotedRejections:
    """``set_invalid_move`` of an environment's state, with a note of the reason by player."""

    def __init__(self, state: Any, rejections: dict[int, str]) -> None:
        self._state, self._rejections = state, rejections

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Some environments swap reason and reward, or pass unknown arguments. Only the reason is
        # needed: such a move costs -1.
        reason = next((a for a in (*args, *kwargs.values()) if a and isinstance(a, str)), None)
        reason = reason or "It is not valid."
        state, player = self._state, self._state.current_player_id
        self._rejections[player] = reason
        out = getattr(state, "elimination_order", [])
        asked_again = player in out
        thrown_out = type(state).set_invalid_move(state, reason)
        # Environments ask a player who was thrown out again, for ever, and search for ever for the
        # next one where none is left.
        if thrown_out and (asked_again or len(set(out)) == state.num_players):
            state.done = True
        return thrown_out


make = TextArenaGame


def env_ids() -> list[str]:
    return sorted(ENV_REGISTRY)


def check(env: EnvSpec) -> None:
    """Make and reset the environment once; ConfigError where that fails."""
    if env.id not in ENV_REGISTRY:
        raise ConfigError(
            f"env {env.id!r} is not a TextArena environment{nearest(env.id, env_ids())}"
        )
    if reason := _UNPLAYABLE.get(family(env.id)):
        raise ConfigError(f"env {env.id!r} cannot be played: {reason}; choose another one")
    problem = _problem(env.id, env.num_players)
    if problem is None:
        return
    if "nltk.download(" in problem:
        raise ConfigError(
            f"env {env.id!r} needs word lists that are not here; run 'python -m nltk.downloader "
            f"-d FOLDER {' '.join(_word_lists(env.id))}' where there is a network, and set "
            "NLTK_DATA=FOLDER here"
        )
    if "player" in problem.lower():
        found = {n: _problem(env.id, n) for n in _PLAYER_COUNTS}
        if counts := [n for n, why in found.items() if why is None]:
            raise ConfigError(
                f"env {env.id!r} is for {' or '.join(map(str, counts))} "
                f"player{'s' if counts[-1] > 1 else ''}, not {env.num_players}; set num_players"
            )
        problem = next((why for why in found.values() if why and "player" not in why), problem)
    version = ".".join(map(str, sys.version_info[:2]))
    raise ConfigError(
        f"env {env.id!r} cannot be played here (Python {version}): {problem}; choose another one"
    )


def _problem(env_id: str, num_players: int) -> str | None:
    """Why a game of ``num_players`` cannot start; None when it can."""
    try:
        # Some environments print, which would mix with the command's own output.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            TextArenaGame(EnvSpec(id=env_id, num_players=num_players), seed=0).view()
    except GameError as error:
        cause = error.__cause__
        if isinstance(cause, SyntaxError):
            return "its code is for Python 3.12 or later"
        text = f"{type(cause).__name__}: {cause}" if cause is not None else str(error)
        return textwrap.shorten(text.replace("*", " "), 200, placeholder=" …")
    return None


def _word_lists(env_id: str) -> list[str]:
    module = ENV_REGISTRY[env_id].entry_point.partition(":")[0].replace(".", "/")
    code = (Path(textarena.__file__).parents[1] / f"{module}.py").read_text(encoding="utf-8")
    # Only the environment's code says which of NLTK's lists it needs.
    asked = re.findall(r"nltk\.download\((.*?)\)", code)
    return sorted({"words", *re.findall(r"[\"'](\w+)[\"']", " ".join(asked))})


#: By family: rules, and the marks of both players.
_GRID_GAMES: dict[str, tuple[GridGame, str]] = {
    "TicTacToe": ("tictactoe", "OX"),
    "SimpleTak": ("simpletak", "OX"),
    "ConnectFour": ("connectfour", "XO"),
}


def _grid(env_family: str, env: Any, player: int) -> Grid | None:
    known = _GRID_GAMES.get(env_family)
    # A grid would show players of variants with a hidden board what is hidden from them.
    if known is None or not getattr(env, "is_open", True):
        return None
    game, marks = known
    return grid_of(game, env.state.game_state["board"], marks, player)


def _hand(env_family: str, env: Any, player: int) -> Hand | None:
    if env_family != "KuhnPoker":
        return None
    state = env.state.game_state
    tree = state["current_legal_action_tree"]
    if "check" in tree:
        bets: tuple[str, ...] = () if isinstance(tree["check"], dict) else ("check",)
    else:
        bets = ("check", "bet") if player == state["starting_player"] else ("bet",)
    return Hand(game="kuhn", card="JQK"[state["player_cards"][player]], public=None, rounds=(bets,))
