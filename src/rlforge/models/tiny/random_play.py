"""Random play, on which tiny models are trained: games and markets whose players act at random.

In markets the only scripted traders are noise: nothing is shown of what skilled traders do.
Liquidity and the accuracy of each news account are drawn for each market, so that all prices occur
and no account is known as the better one.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter

from rlforge.config.market import STARTING_BALANCE, MarketConfig
from rlforge.errors import RlforgeError
from rlforge.games.base import View
from rlforge.games.registry import make_game
from rlforge.market.compact import Compact, compact_vocabulary
from rlforge.market.traders import Crowd
from rlforge.market.world import World
from rlforge.models.tiny.recipe import WarmupGame, WarmupMarket
from rlforge.types import value

#: Names of the news accounts; compact text has a letter for each.
_ACCOUNTS = ("amber", "birch", "coral", "delta", "ember")
_LIQUIDITY = (200.0, 500.0, 1000.0, 4000.0, 16000.0)
_LEAST_RIGHT, _MOST_RIGHT = 0.5, 0.95


@value
class State:
    """One turn of random play: the view, and the player's discounted outcome of that game.

    facts: answers to yes-no questions about the view; empty if the game has none.
    """

    view: View
    outcome: float
    facts: tuple[bool, ...] = ()


def play(game: WarmupGame | WarmupMarket, discount: float, seed: int) -> list[State]:
    """The states of ``game.games`` games between players that pick legal actions at random.

    outcome: the player's reward, times ``discount`` for each decision that the player still had to
    make, divided by the largest such product of all states (by size).
    """
    if isinstance(game, WarmupMarket):
        states = play_market(game, discount, seed)
    else:
        states = _play(game, discount, seed)
    # 1 where all games were drawn.
    largest = max(abs(state.outcome) for state in states) or 1.0
    return [dataclasses.replace(state, outcome=state.outcome / largest) for state in states]


def _play(game: WarmupGame, discount: float, seed: int) -> list[State]:
    rng = random.Random(seed)
    states: list[State] = []
    for index in range(game.games):
        match = make_game(game.env, seed + index)
        views: list[View] = []
        while not match.done:
            view = match.view()
            if not view.legal_actions or view.board is None:
                raise RlforgeError(f"{game.env.id} has no compact board to warm a model on")
            views.append(view)
            match.step(rng.choice(view.legal_actions))
        rewards = match.result().rewards
        ahead = Counter(view.player_id for view in views)
        for view in views:
            ahead[view.player_id] -= 1
            outcome = rewards[view.player_id] * discount ** ahead[view.player_id]
            states.append(State(view=view, outcome=outcome))
    return states


def market_words() -> tuple[list[str], list[str]]:
    """All words of prompts and all answers, each sorted: markets have no others."""
    return compact_vocabulary()


def play_market(game: WarmupMarket, discount: float, seed: int) -> list[State]:
    """The states of the players over one episode of each of ``game.games`` markets.

    outcome: the reward of the market as a game (``rlforge.games.market``), times ``discount`` for
    each decision that the player still had to make. facts: how the focus ends (YES) or goes (UP),
    then for each word of ``market_words`` whether the prompt holds it.
    """
    words, _ = market_words()
    return [
        state
        for index in range(game.games)
        for state in _episode(game, discount, random.Random(f"{seed + index}/warm-up"), words)
    ]


def _episode(
    game: WarmupMarket, discount: float, rng: random.Random, words: list[str]
) -> list[State]:
    config = MarketConfig(
        liquidity=rng.choice(_LIQUIDITY),
        news={name: rng.uniform(_LEAST_RIGHT, _MOST_RIGHT) for name in _ACCOUNTS[: game.accounts]},
        feed_length=60,
        traders={"noise": game.players // 2},
    )
    world = World(config, seed=rng.randrange(2**32), tip_chance=1.0)
    players = [f"player-{number}" for number in range(game.players)]
    for player in players:
        world.join(player)
    # An insider that gets all tips and does nothing: its notes say how the markets will end.
    world.join("witness", "insider")
    crowd, compact = Crowd(world, seed=rng.randrange(2**32)), Compact(config)
    seen: list[tuple[int, View, tuple[bool, ...]]] = []
    for _ in range(config.episode_ticks):
        notes = world.state("witness")["agent"]["memory"]
        ends_well = {note["about"]: note["stance"] in ("YES", "UP") for note in notes}
        for number, player in enumerate(players):
            state = world.state(player)
            focus = compact.focus(state)
            text, legal = compact.text(state, focus), compact.actions(state, focus)
            view = View(player_id=number, observation="", legal_actions=legal, board=text)
            held = set(text.split())
            seen.append((number, view, (ends_well[focus], *(word in held for word in words))))
            world.decide(player, compact.action(rng.choice(legal), state, focus))
        for _choice in crowd.act():
            pass
        world.tick()
    rewards = [
        math.tanh(world.episode_profits(player)[-1] / STARTING_BALANCE) for player in players
    ]
    states = []
    for index, (number, view, facts) in enumerate(seen):
        ahead = config.episode_ticks - 1 - index // len(players)
        states.append(State(view=view, outcome=rewards[number] * discount**ahead, facts=facts))
    return states
