"""Search with OpenSpiel: Monte-Carlo tree search, and exact solution of small games."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyspiel
from open_spiel.python.algorithms import ismcts, mcts

from rlforge.errors import GameError
from rlforge.games.base import View
from rlforge.games.grids import Grid, connecting_cells
from rlforge.games.openspiel import state_after
from rlforge.types import EnvSpec

#: Most positions of a game that ``exact_actions`` solves.
MOST_POSITIONS = 100_000

#: Games whose longest play times different actions is above this are refused at once: nearly all
#: have more positions, and OpenSpiel takes minutes for the first 100,000 of chess.
MOST_MOVES_TIMES_ACTIONS = 1_000

#: Most memory of one search tree.
_TREE_MB = 256


class TreeSearch:
    """Monte-Carlo tree search, with random rollouts to the end.

    Perfect information: UCT with proven wins and losses backed up (Winands et al. 2008). Imperfect
    information: ISMCTS (Cowling et al. 2012). Both take the action of most visits.
    """

    def __init__(self, env: EnvSpec, simulations: int, rng: random.Random) -> None:
        """simulations: per move, with one rollout each."""
        self._env, self._simulations, self._rng = env, simulations, rng
        self._bot: Any = None

    def act(self, view: View) -> str:
        state = _state(self._env, view)
        with _game_errors():
            if self._bot is None:
                self._bot = _bot(state, self._simulations, self._rng)
            action = self._bot.step(state)
        return next(token for token, number in _numbers(state, view).items() if number == action)


def exact_actions(env: EnvSpec, view: View) -> list[str]:
    """The best actions under perfect play of both, wins soon and losses late.

    Raises GameError for games that are too large, or not of perfect information for one player, or
    for two with opposite utilities.
    """
    state = _state(env, view)
    game = state.get_game()
    kind = game.get_type()
    if kind.information != pyspiel.GameType.Information.PERFECT_INFORMATION:
        raise GameError("it solves games of perfect information only; use mcts:200")
    _require_reward_at_the_end(kind)
    opposite = (pyspiel.GameType.Utility.ZERO_SUM, pyspiel.GameType.Utility.CONSTANT_SUM)
    if state.num_players() > 2 or (state.num_players() == 2 and kind.utility not in opposite):
        raise GameError("it solves games of two players with opposite utilities; use mcts:200")
    moves, actions = game.max_game_length(), game.num_distinct_actions()
    if moves * actions > MOST_MOVES_TIMES_ACTIONS:
        raise GameError(
            f"it is too large to solve: {actions:,} actions, up to {moves:,} moves; use mcts:200"
        )
    with _game_errors():
        solution = _solution(env.id)
    if solution is None:
        raise GameError(f"it has more than {MOST_POSITIONS:,} positions to solve; use mcts:200")
    best = solution[_key(state)].actions
    return [token for token, number in _numbers(state, view).items() if number in best]


@contextlib.contextmanager
def _game_errors() -> Iterator[None]:
    try:
        yield
    except pyspiel.SpielError as error:
        raise GameError(f"OpenSpiel's search fails: {' '.join(str(error).split())}") from error


def _state(env: EnvSpec, view: View) -> Any:
    if view.history is not None:
        return state_after(env.id, view.history)
    if view.grid is None:
        raise GameError("it searches OpenSpiel games, TicTacToe, SimpleTak and ConnectFour only")
    grid = view.grid
    if grid.game == "simpletak":
        return _SimpleTak(grid)
    # In OpenSpiel x moves first, so with equal numbers of stones x is to move.
    me, op = "xo" if grid.me.bit_count() == grid.op.bit_count() else "ox"
    marks = {(1, 0): me, (0, 1): op, (0, 0): "."}
    cells = [marks[grid.me >> i & 1, grid.op >> i & 1] for i in range(grid.rows * grid.cols)]
    board: list[str] | list[list[str]] = cells
    game = "tic_tac_toe"
    if grid.game == "connectfour":
        game = f"connect_four(rows={grid.rows},columns={grid.cols})"
        # OpenSpiel's first row is the bottom one, the grid's is the top one.
        board = [cells[i : i + grid.cols] for i in range(0, len(cells), grid.cols)][::-1]
    described = {"board": board, "current_player": me, "is_terminal": False, "winner": ""}
    return pyspiel.load_game(game).new_initial_state(json.dumps(described))


def _numbers(state: Any, view: View) -> dict[str, int]:
    assert view.legal_actions is not None
    return dict(zip(view.legal_actions, state.legal_actions(), strict=True))


def _bot(state: Any, simulations: int, rng: random.Random) -> Any:
    game = state.get_game()
    kind = game.get_type()
    seeds = rng.getrandbits(31), rng.getrandbits(31)
    explore = game.max_utility() - game.min_utility()
    if kind.information != pyspiel.GameType.Information.PERFECT_INFORMATION:
        _require_other_worlds(state)
        # The C++ bot breaks ties by the order of a hash, which differs between processes.
        chance = np.random.RandomState(seeds[1])
        bot = ismcts.ISMCTSBot(
            game,
            _Rollout(rng),
            explore,
            simulations,
            random_state=chance,
            use_observation_string=not kind.provides_information_state_string,
        )
        # The search draws worlds that the player cannot tell apart; else it would cheat.
        bot.set_resampler(lambda real, seat: real.resample_from_infostate(seat, chance.uniform))
        return bot
    _require_reward_at_the_end(kind)
    if type(state).__module__.startswith("pyspiel"):
        evaluator = pyspiel.RandomRolloutEvaluator(1, seeds[0])
        return pyspiel.MCTSBot(
            game, evaluator, explore, simulations, _TREE_MB, True, seeds[1], False
        )
    # The C++ bot cannot run games written in Python, as SimpleTak.
    chance = np.random.RandomState(seeds[1])
    return mcts.MCTSBot(game, explore, simulations, _Rollout(rng), random_state=chance)


class _Rollout(mcts.Evaluator):  # type: ignore[misc]
    """Random actions to the end of the game: OpenSpiel's evaluator with a faster generator."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def evaluate(self, state: Any) -> Any:
        state = state.clone()
        while not state.is_terminal():
            if state.is_chance_node():
                actions, chances = zip(*state.chance_outcomes(), strict=True)
                state.apply_action(self._rng.choices(actions, chances)[0])
            else:
                state.apply_action(self._rng.choice(state.legal_actions()))
        return np.array(state.returns())

    def prior(self, state: Any) -> list[tuple[int, float]]:
        actions = state.legal_actions()
        return [(action, 1 / len(actions)) for action in actions]


def _require_reward_at_the_end(kind: pyspiel.GameType) -> None:
    if kind.reward_model != pyspiel.GameType.RewardModel.TERMINAL:
        raise GameError("it searches games with rewards at the end only, not on the way")


def _require_other_worlds(state: pyspiel.State) -> None:
    try:
        # Only some games of OpenSpiel can draw their hidden part anew; a try shows which.
        state.resample_from_infostate(state.current_player(), random.Random(0).random)
    except pyspiel.SpielError as error:
        raise GameError(
            "a search that sees what is hidden would cheat, and OpenSpiel cannot draw the hidden "
            "part of this game anew (no ResampleFromInfostate)"
        ) from error


class _SimpleTak:
    """A position of SimpleTak, and its game, for OpenSpiel's search in Python."""

    def __init__(self, grid: Grid) -> None:
        self._rows, self._cols = grid.rows, grid.cols
        self._stones = [grid.me, grid.op]
        self._player = 0
        self._won = False

    def get_game(self) -> _SimpleTak:
        return self

    def get_type(self) -> pyspiel.GameType:
        # TicTacToe is of the same kind: two players, no chance, win or loss at the end.
        return pyspiel.load_game("tic_tac_toe").get_type()

    def min_utility(self) -> float:
        return -1.0

    def max_utility(self) -> float:
        return 1.0

    def clone(self) -> _SimpleTak:
        other = _SimpleTak.__new__(_SimpleTak)
        vars(other).update(vars(self), _stones=[*self._stones])
        return other

    def current_player(self) -> int:
        return self._player

    def is_chance_node(self) -> bool:
        return False

    def legal_actions(self, _player: int = 0) -> list[int]:
        taken = self._stones[0] | self._stones[1]
        return [cell for cell in range(self._rows * self._cols) if not taken >> cell & 1]

    def apply_action(self, cell: int) -> None:
        stones = self._stones[self._player]
        self._won = bool(connecting_cells(self._rows, self._cols, stones) >> cell & 1)
        self._stones[self._player] |= 1 << cell
        self._player = 1 - self._player

    def is_terminal(self) -> bool:
        taken = self._stones[0] | self._stones[1]
        return self._won or taken == (1 << self._rows * self._cols) - 1

    def returns(self) -> list[float]:
        if not self._won:
            return [0.0, 0.0]
        return [1.0, -1.0] if self._player == 1 else [-1.0, 1.0]


class _Solved(NamedTuple):
    """value: expected utility of player 0. moves: expected number of moves to the end."""

    value: float
    moves: float
    actions: Sequence[int]


# With the number in its key no position comes back, so the search has no cycles.
#: Number of the move, player to move, and the state in words.
_Key = tuple[int, int, str]


def _key(state: pyspiel.State) -> _Key:
    return state.move_number(), state.current_player(), str(state)


@functools.lru_cache(maxsize=4)
def _solution(name: str) -> dict[_Key, _Solved] | None:
    """Every position of the game; None when there are more than ``MOST_POSITIONS``."""
    start = state_after(name, ())
    solved: dict[_Key, _Solved] = {}
    seen = {_key(start)}
    # A position stays on the path until all that follow it are solved.
    path = [(_key(start), start, _following(start))]
    while path:
        key, state, following = path[-1]
        for _, child_key, child in following:
            if child_key not in seen:
                seen.add(child_key)
                if len(seen) > MOST_POSITIONS:
                    return None
                path.append((child_key, child, _following(child)))
                break
        else:
            solved[key] = _solve(state, following, solved)
            path.pop()
    return solved


def _following(state: pyspiel.State) -> list[tuple[int, _Key, pyspiel.State]]:
    if state.is_terminal():
        return []
    children = [(action, state.child(action)) for action in state.legal_actions()]
    return [(action, _key(child), child) for action, child in children]


def _solve(
    state: pyspiel.State,
    following: Sequence[tuple[int, _Key, pyspiel.State]],
    solved: dict[_Key, _Solved],
) -> _Solved:
    if state.is_terminal():
        return _Solved(state.returns()[0], 0, ())
    after = {action: solved[key] for action, key, _ in following}
    if state.is_chance_node():
        chances = state.chance_outcomes()
        value = math.fsum(chance * after[action].value for action, chance in chances)
        moves = math.fsum(chance * after[action].moves for action, chance in chances)
        return _Solved(value, moves, ())
    sign = 1 if state.current_player() == 0 else -1

    def rank(child: _Solved) -> tuple[float, float]:
        gain = round(sign * child.value, 9)
        # The side that wins prefers short games, the one that loses long ones.
        return gain, -math.copysign(round(child.moves, 9), gain) if gain else 0.0

    best = max(map(rank, after.values()))
    actions = [action for action, child in after.items() if rank(child) == best]
    first = after[actions[0]]
    return _Solved(first.value, first.moves + 1, actions)
