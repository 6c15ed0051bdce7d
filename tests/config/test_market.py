"""Market settings: one message for each value that no market can have."""

import dataclasses

import pytest

from rlforge.config.compose import compose
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.market.world import World
from rlforge.errors import ConfigError


def test_an_account_of_the_defaults_can_be_left_out():
    chosen = ["+experiment=market_continuous", "market.news={daily: null, herald: 0.8}"]
    market = compose(chosen, root=ContinuousConfig).config.market
    more = compose([*chosen, "market.news.gazette=0.7"], root=ContinuousConfig).config.market.news
    assert more == {"wire": 0.9, "daily": None, "rumor": 0.55, "herald": 0.8, "gazette": 0.7}
    world = World(dataclasses.replace(market, news_rate=1.0, visibility=1.0), seed=0)
    world.join("agent")
    world.tick()
    seen = {post["userId"] for post in world.state("agent")["social"]["feed"]}
    assert seen == {"wire", "rumor", "herald"}


@pytest.mark.parametrize(
    "line",
    [
        "market.traders.openai:org/gpt-4.1=2",
        'market.traders."openai:org/gpt-4.1"=2',
        "market.traders={openai:org/gpt-4.1: 2}",
        "market.traders={'openai:org/gpt-4.1': 2, insider: 0}",
    ],
)
def test_a_trader_has_the_name_of_a_language_model_however_it_is_quoted(line):
    market = compose(["+experiment=market_continuous", line], root=ContinuousConfig).config.market
    assert market.models == {"openai:org/gpt-4.1": 2}
    assert market.scripted.keys() == {"noise", "momentum", "value", "insider"}
    assert market.traders["noise"] == 8


def test_the_message_about_a_name_shows_the_value_that_was_given_to_it():
    with pytest.raises(ConfigError, match=r"^market\.traders\.valu=2 .*must be noise, momentum, v"):
        compose(["market.traders.valu=2"], root=ContinuousConfig)
