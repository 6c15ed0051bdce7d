import dataclasses

import pytest

from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.market.world import World

#: Quiet enough that a test can say what a price will be: an index that stands still, no news.
STILL = MarketConfig(
    predictions=2,
    liquidity=1000.0,
    tickers=["ACME"],
    episode_ticks=20,
    min_lifetime=5,
    max_lifetime=5,
    drift=0.0,
    volatility=0.0,
    news_rate=0.0,
    vault=50_000.0,
    traders={},
)


@pytest.fixture
def make_world(monkeypatch):
    """A market whose prices move by trades only, with two agents; keywords change its settings."""
    monkeypatch.setattr("rlforge.continuous.market.world.FUNDING_INTERVAL", 1000)

    def make(seed=0, agents=("ann", "bob"), **changes):
        world = World(dataclasses.replace(STILL, **changes), seed)
        for agent in agents:
            world.join(agent)
        return world

    return make


@pytest.fixture
def ticked():
    """Let ticks pass; returns what settled, by ticket."""

    def tick(world, count=1):
        return {s.ticket: s for _ in range(count) for s in world.tick()}

    return tick
