"""Under random play money is conserved, no balance is negative, every decision settles once."""

import dataclasses

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.market.actions import NO_OP, leave
from rlforge.continuous.market.traders import Crowd
from rlforge.continuous.market.world import World

# Wild prices, small vault, shallow markets: liquidations, deleveraging and capped payouts happen.
WILD = MarketConfig(
    predictions=2,
    tickers=["ACME", "BOLT"],
    episode_ticks=6,
    min_lifetime=1,
    max_lifetime=4,
    liquidity=37.0,
    drift=0.05,
    volatility=0.1,
    depth=9000.0,
    vault=300.0,
    traders={},
)


@pytest.fixture(scope="module", autouse=True)
def _high_and_frequent_funding():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlforge.continuous.market.world.FUNDING_INTERVAL", 2)
        patch.setattr("rlforge.continuous.market.perpetuals.MAX_FUNDING_RATE", 0.05)
        yield


AGENTS = ("ann", "bob", "cyd", "dan")

finite = st.floats(0.001, 3000)
number = st.one_of(st.floats(), finite, st.integers(-5, 10**13), st.booleans(), st.none())
amount = st.floats(0.01, 600).map(lambda x: round(x, 2))
name = st.sampled_from(
    [*(f"market-{i}" for i in range(1, 9)), "ACME", "BOLT", "wire", "daily", *AGENTS, "post-1", ""]
)
position = st.integers(1, 40).map(lambda i: f"position-{i}")
size = st.floats(0.01, 4000).map(lambda x: round(x, 2))
market = st.integers(1, 12).map(lambda i: f"market-{i}")
sides, tickers = st.sampled_from(["long", "short"]), st.sampled_from(["ACME", "BOLT"])


def action(*kinds, **fields):
    """An action of one of these kinds, with these fields."""
    return st.fixed_dictionaries({"type": st.sampled_from(kinds), **fields})


sensible = st.one_of(
    action("BUY_SHARES", marketId=market, outcome=st.sampled_from(["YES", "NO"]), amount=amount),
    action("OPEN_POSITION", ticker=tickers, side=sides, size=size, leverage=st.floats(1, 10)),
    action("SELL_SHARES", positionId=position, shares=amount),
    action("CLOSE_POSITION", positionId=position),
    action("CREATE_POST", content=st.text(max_size=300)),
    action("FOLLOW_USER", userId=name),
    action("NO_OP"),
)
trades, answers = ("BUY_SHARES", "OPEN_POSITION", "SELL_SHARES"), st.sampled_from(["YES", "MAYBE"])
nonsense = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.dictionaries(st.sampled_from(["type", "amount", "marketId", "x"]), number, max_size=3),
    action(*trades, marketId=name, outcome=answers, amount=number),
    action("OPEN_POSITION", ticker=name, side=st.just("long"), size=number, leverage=number),
)
#: An agent and its action, and whether a tick follows. ``True`` stands for selling all shares of
#: the agent's first position, or for closing it.
step = st.tuples(
    st.sampled_from(AGENTS),
    st.one_of(sensible, sensible, sensible, st.just(True), nonsense),
    st.integers(0, 5).map(lambda i: i == 0),
)


def check_money(world, issued):
    accounts = world.books.accounts()
    assert sum(accounts.values()) == 0
    assert all(type(cents) is int for cents in accounts.values())
    assert all(cents >= 0 for kind, cents in accounts.items() if kind != "house")
    books = world.books
    assert all(agent.balance >= 0 for agent in books.agents.values())
    for agent in books.agents.values():
        assert all(perp.margin >= 0 for perp in agent.perps.values())
        assert all(lot.units > 0 for lot in agent.shares.values())
    for market in books.predictions.values():
        assert market.pool >= max(market.sold.values())
        for outcome, sold in market.sold.items():
            lots = [lot for agent in books.agents.values() for lot in agent.shares.values()]
            assert sold == sum(
                lot.units for lot in lots if (lot.market_id, lot.outcome) == (market.id, outcome)
            )
    for ticker, perpetual in books.perpetuals.items():
        perps = [perp for agent in books.agents.values() for perp in agent.perps.values()]
        assert perpetual.skew == sum(p.sign * p.size for p in perps if p.ticker == ticker)
    if issued is not None:
        # Between two ticks the house neither gives nor takes: every cent is where it can be seen.
        assert accounts["house"] == issued


# No shrinking: a play of 200 steps takes minutes to shrink.
@settings(
    max_examples=15,  # 2,600 decisions, and the books are checked after each
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
@given(st.integers(0, 1000), st.lists(step, min_size=100, max_size=250))
def test_money_is_conserved_and_every_decision_settles_exactly_once(seed, steps):
    world = World(WILD, seed)
    for agent in AGENTS:
        world.join(agent)
    open_tickets = {}
    issued = world.books.accounts()["house"]

    def tick():
        for settled in world.tick():
            agent, accepted = open_tickets.pop(settled.ticket)
            assert settled.agent_id == agent
            assert settled.invalid is not accepted
            assert settled.investment > 0 or settled.pnl == 0
            assert 0 <= settled.win_rate <= 1

    for agent, action, passes in steps:
        before = world.state(agent)
        if action is True:
            held = before["portfolio"]["positions"]
            action = leave(held[0]) if held else NO_OP
        receipt = world.decide(agent, action)
        open_tickets[receipt.ticket] = (agent, receipt.accepted)
        if not receipt.accepted:
            assert receipt.problem
            assert world.state(agent) == before
        check_money(world, issued)
        if passes:
            tick()
            issued = world.books.accounts()["house"]
            check_money(world, None)
    tick()
    while world.ticks % WILD.episode_ticks:
        tick()
    assert not open_tickets


def test_random_play_meets_every_way_in_which_a_trade_ends():
    texts = set()
    for seed in range(6):
        world = World(dataclasses.replace(WILD, traders={"noise": 12, "momentum": 4}), seed)
        crowd = Crowd(world, seed)
        for _ in range(24):
            for choice in crowd.act():
                texts |= {note["text"] for note in choice.state["agent"]["memory"]}
            world.tick()
            check_money(world, None)
    ends = ("liquidated", "vault ran short", "end of the episode", "closed at", "sold", "ended")
    for how in ends:
        assert any(how in text for text in texts), how
