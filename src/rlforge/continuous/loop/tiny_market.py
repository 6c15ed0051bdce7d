"""The models behind ``model=tiny_market`` and ``model=tiny_social``, which also knows the words of
``market.social``: trained on markets whose agents act at random.

Liquidity and the accuracy of each news account are drawn for each market, so that all prices occur
and no account is known as the better one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence
from typing import ClassVar

from rlforge.continuous.config.market import STARTING_BALANCE, MarketConfig
from rlforge.continuous.market.compact import Compact, compact_vocabulary
from rlforge.continuous.market.traders import Crowd
from rlforge.continuous.market.world import World
from rlforge.games.base import View
from rlforge.models.made import tiny
from rlforge.models.tiny.recipe import State, TinyRecipe, Warmup
from rlforge.types import value

#: Names of the news accounts; compact text has a letter for each.
_ACCOUNTS = ("amber", "birch", "coral", "delta", "ember")
_LIQUIDITY = (200.0, 500.0, 1000.0, 4000.0, 16000.0)
_LEAST_RIGHT, _MOST_RIGHT = 0.5, 0.95

#: All words of prompts and all answers, each sorted: markets have no others.
PROMPT_WORDS, ANSWERS = compact_vocabulary()


@value
class WarmupMarket(Warmup):
    """One episode of each of ``games`` markets with ``accounts`` news accounts.

    players: pick legal actions at random; half as many noise traders join them.
    """

    accounts: int
    players: int = 12
    social: ClassVar[bool] = False
    words: ClassVar[Sequence[str]] = (*PROMPT_WORDS, *ANSWERS)

    @property
    def name(self) -> str:
        return f"{'social' if self.social else 'market'}-{self.accounts}"

    def states(self, discount: float, seed: int) -> list[State]:
        """The reward is that of the market as a game.

        facts: how the focus ends (YES) or goes (UP), and which of ``PROMPT_WORDS`` the prompt
        holds.
        """
        return [
            state
            for index in range(self.games)
            for state in _episode(self, discount, random.Random(f"{seed + index}/warm-up"))
        ]


class SocialMarket(WarmupMarket):
    """The same, where agents say things to each other (``market.social``)."""

    # Not fields, which would change the digests of recipes without it.
    social = True
    words = tuple(itertools.chain(*compact_vocabulary(social=True)))


def _episode(game: WarmupMarket, discount: float, rng: random.Random) -> list[State]:
    config = MarketConfig(
        liquidity=rng.choice(_LIQUIDITY),
        news={name: rng.uniform(_LEAST_RIGHT, _MOST_RIGHT) for name in _ACCOUNTS[: game.accounts]},
        feed_length=60,
        # Skilled traders would give away what training is to find out.
        traders={"noise": game.players // 2},
        social=game.social,
    )
    asked, _ = compact_vocabulary(social=game.social)
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
            seen.append((number, view, (ends_well[focus], *(word in held for word in asked))))
            world.decide(player, compact.action(rng.choice(legal), state, focus))
        crowd.act()
        world.tick()
    rewards = [
        math.tanh(world.episode_profits(player)[-1] / STARTING_BALANCE) for player in players
    ]
    states = []
    for index, (number, view, facts) in enumerate(seen):
        ahead = config.episode_ticks - 1 - index // len(players)
        states.append(State(view=view, outcome=rewards[number] * discount**ahead, facts=facts))
    return states


#: Its recipe. Markets with three news accounts are the usual ones.
RECIPE = TinyRecipe(
    games=(
        WarmupMarket(accounts=3, games=32, batch_size=96),
        WarmupMarket(accounts=1, games=6, batch_size=12),
        WarmupMarket(accounts=2, games=6, batch_size=12),
        WarmupMarket(accounts=4, games=6, batch_size=12),
        WarmupMarket(accounts=5, games=6, batch_size=12),
    ),
    steps=400,
    discount=0.99,
    revision=3,
)

_SOCIAL = (
    SocialMarket(accounts=one.accounts, games=one.games, batch_size=one.batch_size)
    for one in RECIPE.games
    if isinstance(one, WarmupMarket)
)

TINY_MARKET = tiny("tiny_market", RECIPE, "market")
TINY_SOCIAL = tiny(
    "tiny_social", dataclasses.replace(RECIPE, games=(*RECIPE.games, *_SOCIAL)), "social"
)
