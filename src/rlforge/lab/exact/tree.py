"""Exact distance from an equilibrium of policies in OpenSpiel games whose tree is small enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pyspiel

from rlforge.errors import ConfigError
from rlforge.games.base import View
from rlforge.games.openspiel import load_game, view_of
from rlforge.types import Actions, value

#: States of a tree that are visited before a game counts as too large.
MOST_STATES = 400_000

Array = np.ndarray[Any, np.dtype[np.float64]]

Table = Mapping[str, Mapping[str, float]]
"""Of each decision, by its key, the probability of each action as ``View.legal_actions`` has it."""


@value
class Decision:
    """An information set, or a state without hidden parts. key: names it in a ``Table``."""

    key: str
    player: int
    view: View


@value
class Exploitability:
    """Distance of policies from a Nash equilibrium."""

    values: tuple[float, ...]  #: the mean reward of each seat where all play their policy
    gains: tuple[float, ...]  #: what each seat wins above that if it alone plays a best response

    @property
    def nash_conv(self) -> float:
        # The definition is that of Lanctot et al. 2017, arXiv:1711.00832.
        return sum(self.gains)


class ExactGame:
    """The whole tree of a game."""

    def __init__(
        self, name: str, most_states: int = MOST_STATES, actions: Actions = "words"
    ) -> None:
        self.name = name
        self._game = load_game(name)
        perfect = pyspiel.GameType.Information.PERFECT_INFORMATION
        # Where nothing is hidden, a policy is taken to depend on the state alone, however it was
        # reached: each is a decision. Elsewhere an information set is.
        self._open = self._game.get_type().information == perfect
        found: dict[str, Decision] = {}
        # Tables name actions as views do, and OpenSpiel needs its own numbers for them.
        self._numbers: dict[str, dict[str, int]] = {}
        for count, state in enumerate(self._states(), start=1):
            if count > most_states:
                raise ConfigError(
                    f"env {name!r} has more than {most_states:,} states: too many for an exact "
                    "measure; rlforge exploit RUN --learn trains a best response"
                )
            if state.is_terminal() or state.is_chance_node():
                continue
            key = self.key(state)
            if key not in found:
                view = view_of(state, actions=actions)
                found[key] = Decision(key=key, player=state.current_player(), view=view)
                legal = zip(view.legal_actions or (), state.legal_actions(), strict=True)
                self._numbers[key] = dict(legal)
        #: In the order of their keys.
        self.decisions = tuple(found[key] for key in sorted(found))

    def exploitability(self, table: Table) -> Exploitability:
        """Measure the joint policy ``table``; an action that it omits has probability 0.

        Raises ValueError for a table that is no policy of the game.
        """
        policy = self._policy(table)
        start, players = self._game.new_initial_state(), range(self._game.num_players())
        if self._open:
            # OpenSpiel's measures know no keys that are states, so values follow by induction.
            best = [_value_of(seat, policy, self.key, responds=True)(start) for seat in players]
            values = [_value_of(seat, policy, self.key, responds=False)(start) for seat in players]
            return _exploitability(values, best)
        joint = _tabular(policy)
        values = pyspiel.expected_returns(start, joint, -1, True)
        best = [
            pyspiel.TabularBestResponse(self._game, player, joint).value_from_state(start)
            for player in players
        ]
        return _exploitability(values, best)

    def check_mixed(self) -> None:
        """Raise ConfigError for a game in which mixtures are not measured."""
        # ``nash_equilibrium`` is for two players whose rewards sum to 0. Where nothing is hidden, a
        # state does not tell its history, which a mixture depends on.
        zero_sum = self._game.get_type().utility == pyspiel.GameType.Utility.ZERO_SUM
        if self._open or not zero_sum or self._game.num_players() != 2:
            raise ConfigError(
                f"env {self.name!r}: mixtures are measured in games of two players whose rewards "
                "sum to 0 and in which something is hidden; measure versions without --mixture"
            )

    def payoffs(self, tables: Sequence[Table]) -> Array:
        """The mean reward (n, n) of each table against each, at either seat."""
        policies = [_tabular(self._policy(table)) for table in tables]
        start = self._game.new_initial_state()
        first = np.empty((len(tables), len(tables)))
        for (i, one), (j, other) in product(enumerate(policies), repeat=2):
            first[i, j] = pyspiel.expected_returns(start, [one, other], -1, True)[0]
        payoffs: Array = (first - first.T) / 2
        return payoffs

    def mixture(self, tables: Sequence[Table], weights: Sequence[float]) -> Table:
        """Make a table that plays as drawing one of ``tables`` before each game by ``weights``."""
        policies = [self._policy(table) for table in tables]
        mixed: dict[str, dict[str, float]] = {}

        def visit(state: pyspiel.State, reach: Mapping[int, tuple[float, ...]]) -> None:
            if state.is_terminal():
                return
            if state.is_chance_node():
                for action, _ in state.chance_outcomes():
                    visit(state.child(action), reach)
                return
            key, player = self.key(state), state.current_player()
            # A policy that never comes here has no share in the row, unless none comes.
            own = reach[player] if any(reach[player]) else tuple(weights)
            row = mixed.setdefault(key, {})
            for name, action in self._numbers[key].items():
                # A policy counts by its weight times the probability of its own actions so far
                # (Kuhn 1953): with perfect recall they are the same on all ways.
                then = tuple(
                    weight * policy[key][action]
                    for weight, policy in zip(own, policies, strict=True)
                )
                row[name] = sum(then) / sum(own)
                visit(state.child(action), {**reach, player: then})

        visit(
            self._game.new_initial_state(),
            dict.fromkeys(range(self._game.num_players()), tuple(weights)),
        )
        return mixed

    def _policy(self, table: Table) -> dict[str, dict[int, float]]:
        policy = {}
        for key in (each.key for each in self.decisions):
            if key not in table:
                raise ValueError(f"{self.name}: the policy has no decision {key!r}")
            row, known = table[key], self._numbers[key]
            if unknown := set(row) - set(known):
                raise ValueError(f"{self.name}: {key!r} has no actions {sorted(unknown)}")
            if not math.isclose(sum(row.values()), 1.0, abs_tol=1e-6):
                raise ValueError(f"{self.name}: probabilities at {key!r} do not sum to 1")
            policy[key] = {number: row.get(action, 0.0) for action, number in known.items()}
        return policy

    def _states(self) -> Iterator[pyspiel.State]:
        pending, seen = [self._game.new_initial_state()], set[str]()
        while pending:
            state = pending.pop()
            if self._open:
                # Many histories lead to one state, which is visited once.
                if (name := self.key(state)) in seen:
                    continue
                seen.add(name)
            yield state
            pending += [state.child(action) for action in state.legal_actions()]

    def key(self, state: pyspiel.State) -> str:
        if self._open:
            return f"{state.current_player()}\n{state}"
        return str(state.information_state_string())


def _tabular(policy: Mapping[str, Mapping[int, float]]) -> pyspiel.TabularPolicy:
    return pyspiel.TabularPolicy({key: list(row.items()) for key, row in policy.items()})


def _value_of(
    player: int,
    policy: Mapping[str, Mapping[int, float]],
    key_of: Callable[[pyspiel.State], str],
    *,
    responds: bool,
) -> Callable[[pyspiel.State], float]:
    """Values for ``player``. responds: with its best response to the others' policy."""
    known: dict[str, float] = {}

    def value_of(state: pyspiel.State) -> float:
        key = key_of(state)
        if key not in known:
            known[key] = find(state, key)
        return known[key]

    def find(state: pyspiel.State, key: str) -> float:
        if state.is_terminal():
            return float(state.returns()[player])
        if state.is_chance_node():
            outcomes = state.chance_outcomes()
        elif responds and state.current_player() == player:
            return max(value_of(state.child(action)) for action in state.legal_actions())
        else:
            outcomes = policy[key].items()
        return math.fsum(p * value_of(state.child(action)) for action, p in outcomes if p)

    return value_of


def _exploitability(values: list[float], best: list[float]) -> Exploitability:
    gains = (response - own for response, own in zip(best, values, strict=True))
    # A best response is never worse than the policy itself: a gain below 0 is rounding.
    return Exploitability(values=tuple(values), gains=tuple(max(0.0, gain) for gain in gains))


# Cached, so that a process walks the tree of a game once.
@cache
def exact_game(name: str, actions: Actions) -> ExactGame:
    return ExactGame(name, actions=actions)
