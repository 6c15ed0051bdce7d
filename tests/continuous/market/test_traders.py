"""Skill: over many episodes insiders earn more than value, momentum and noise traders."""

import random
import statistics
from collections import Counter, defaultdict
from typing import get_args

import pytest
from tests.factories import market_state

from rlforge.continuous.config.market import MarketConfig, TraderKind
from rlforge.continuous.market.actions import FIELDS
from rlforge.continuous.market.traders import Crowd, make_trader
from rlforge.continuous.market.world import World


def profits(config, seeds, episodes=2):
    """Profit per episode of each kind's traders, in dollars, and their actions."""
    found, actions = defaultdict(list), Counter()
    for seed in seeds:
        world = World(config, seed)
        crowd = Crowd(world, seed)
        for _ in range(config.episode_ticks * episodes):
            for choice in crowd.act():
                assert choice.receipt.accepted, choice.receipt.problem
                actions[choice.kind, choice.action["type"]] += 1
            world.tick()
        for agent in world.agent_ids:
            found[agent.partition("-")[0]] += world.episode_profits(agent)
    return found, actions


def test_profits_rank_the_kinds_of_traders_far_beyond_chance():
    earned, actions = profits(MarketConfig(), range(15))
    noise, momentum, value, insider = (earned[kind] for kind in get_args(TraderKind))
    for worse, better in ((noise, momentum), (momentum, value), (value, insider)):
        gap = statistics.mean(better) - statistics.mean(worse)
        error = (
            statistics.variance(better) / len(better) + statistics.variance(worse) / len(worse)
        ) ** 0.5
        assert gap > 4 * error
    assert statistics.mean(noise) < 0 < statistics.mean(momentum)
    assert {kind for _, kind in actions} == set(FIELDS)


def test_value_traders_earn_by_the_news():
    """With news that are right half of the time, value traders have no advantage."""
    blind, _ = profits(MarketConfig(news={"wire": 0.5, "daily": 0.5, "rumor": 0.5}), range(4))
    sighted, _ = profits(MarketConfig(), range(4))
    assert statistics.mean(blind["value"]) < 0.25 * statistics.mean(sighted["value"])


def market(yes, change=0.0):
    return {"id": "market-1", "yesPrice": yes, "noPrice": 1 - yes, "change": change}


def ticker(change):
    return {"ticker": "ACME", "change": change}


def post(user, stance, about="market-1"):
    return {"userId": user, "about": about, "stance": stance}


def decide(kind, *markets, **seen):
    state = market_state(*markets, following=["wire", "daily"], **seen)
    return make_trader(kind, MarketConfig(), random.Random(0)).decide(state)


def test_value_traders_weigh_accounts_by_how_often_they_are_right():
    # ln(.9/.1) = 2.20 for NO against ln(.7/.3) = 0.85 and ln(.55/.45) = 0.20 for YES.
    views = [post("daily", "YES"), post("rumor", "YES"), post("wire", "NO")]
    action = decide("value", [market(0.5)], feed=views)
    assert (action["type"], action["outcome"]) == ("BUY_SHARES", "NO")
    assert decide("value", [market(0.24)], feed=views) == {"type": "NO_OP"}


def test_value_traders_leave_positions_against_the_news():
    future = {"kind": "perpetual", "ticker": "ACME", "side": "long"}
    held = {"id": "position-1", "value": 100.0, **future}
    news = [post("wire", "DOWN", "ACME")]
    action = decide("value", [], [ticker(0.0)], feed=news, positions=[held])
    assert action == {"type": "CLOSE_POSITION", "positionId": "position-1"}


def test_insiders_believe_their_tips_rather_than_the_news():
    tip = {"kind": "tip", "about": "market-1", "stance": "YES"}
    seen = {"feed": [post("wire", "NO"), post("daily", "NO")], "memory": [tip]}
    assert decide("insider", [market(0.5)], **seen)["outcome"] == "YES"
    assert decide("value", [market(0.5)], **seen)["outcome"] == "NO"


@pytest.mark.parametrize(("change", "side"), [(0.03, "long"), (-0.03, "short")])
def test_momentum_traders_follow_the_largest_move(change, side):
    assert decide("momentum", [market(0.5, 0.06)], [ticker(change)])["side"] == side
    assert decide("momentum", [market(0.5, -0.2)], [ticker(change)])["outcome"] == "NO"
    assert decide("momentum", [market(0.5, 0.01)], [ticker(0.001)]) == {"type": "NO_OP"}
