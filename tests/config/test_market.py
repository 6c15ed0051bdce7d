"""Market settings: one message for each value that no market can have."""

import dataclasses
import re

import pytest

from rlforge.config.compose import compose
from rlforge.config.continuous import ContinuousConfig
from rlforge.config.market import MarketConfig
from rlforge.market.world import World


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_lifetime": 3}, "max_lifetime: is below min_lifetime"),
        ({"predictions": 0, "tickers": []}, "leaves nothing to trade"),
        ({"tickers": ["ACME", "ACME"]}, "must not name an entry twice"),
        ({"tickers": ["acme"]}, "capitals"),
        ({"news": {"The Wire": 0.5}}, "must be named in small letters"),
        ({"traders": {"valu": 1}}, "did you mean value"),
        ({"stakes": [0.1, 0.05, 0.2]}, "from the smallest to the largest"),
        ({"stakes": [0.1, 0.2]}, "must have 3 entries"),
        ({"stakes": [0.0005, 0.05, 0.1]}, "must come to 1.00 or more"),
        ({"depth": 500.0}, "so shallow"),
    ],
)
def test_a_value_that_no_market_can_have_is_named(changes, message):
    key, reason = next(dataclasses.replace(MarketConfig(), **changes).problems())
    assert re.search(message, f"{key}: {reason}")


def test_an_account_of_the_defaults_can_be_left_out():
    chosen = ["+experiment=market_continuous", "market.news={daily: null, herald: 0.8}"]
    market = compose(chosen, root=ContinuousConfig).config.market
    assert compose(
        [*chosen, "market.news.gazette=0.7"], root=ContinuousConfig
    ).config.market.news == {
        "wire": 0.9,
        "daily": None,
        "rumor": 0.55,
        "herald": 0.8,
        "gazette": 0.7,
    }
    world = World(dataclasses.replace(market, news_rate=1.0, visibility=1.0), seed=0)
    world.join("agent")
    world.tick()
    seen = {post["userId"] for post in world.state("agent")["social"]["feed"]}
    assert seen == {"wire", "rumor", "herald"}
