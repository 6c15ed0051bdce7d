"""Random play, on which tiny models are trained: games whose players act at random."""

from __future__ import annotations

import random
from collections import Counter

from rlforge.errors import RlforgeError
from rlforge.games.base import View
from rlforge.games.registry import make_game
from rlforge.types import EnvSpec, value


@value
class State:
    """One turn of random play: the view, and the player's discounted outcome of that game.

    facts: answers to yes-no questions about the view; empty if the game has none.
    """

    view: View
    outcome: float
    facts: tuple[bool, ...] = ()


def random_games(env: EnvSpec, games: int, discount: float, seed: int) -> list[State]:
    """The states of so many games between players that pick legal actions at random.

    outcome: the player's reward, times ``discount`` for each decision that the player still had to
    make.
    """
    rng = random.Random(seed)
    states: list[State] = []
    for index in range(games):
        match = make_game(env, seed + index)
        views: list[View] = []
        while not match.done:
            view = match.view()
            if not view.legal_actions or view.board is None:
                raise RlforgeError(f"{env.id} has no compact board to warm a model on")
            views.append(view)
            match.step(rng.choice(view.legal_actions))
        rewards = match.result().rewards
        ahead = Counter(view.player_id for view in views)
        for view in views:
            ahead[view.player_id] -= 1
            outcome = rewards[view.player_id] * discount ** ahead[view.player_id]
            states.append(State(view=view, outcome=outcome))
    return states
