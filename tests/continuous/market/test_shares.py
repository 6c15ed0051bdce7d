"""Prediction markets: prices, fees, resolution, and the profit of decisions to buy or sell."""

import math
import re

import pytest

from rlforge.continuous.market import actions
from rlforge.continuous.market.predictions import OTHER

B = 100_000  # cents of market.liquidity = 1000


def buy(world, agent, amount, outcome="YES", market="market-1"):
    return world.decide(agent, actions.buy(market, outcome, amount))


def sell(world, agent, shares, position="position-1"):
    return world.decide(agent, {"type": "SELL_SHARES", "positionId": position, "shares": shares})


def test_an_amount_buys_shares_at_the_scoring_rule_after_the_fee(make_world):
    world = make_world()
    assert buy(world, "ann", 100.0).accepted
    (position,) = world.state("ann")["portfolio"]["positions"]
    # 99.00 are left after the fee of 1 %: x = b ln(2 e^(m/b) - 1).
    expected = B * math.log(2 * math.exp(9900 / B) - 1)
    assert position["shares"] == math.floor(expected) / 100
    assert position["cost"] == 100.0
    assert world.state("ann")["portfolio"]["balance"] == 900.0
    assert world.books.accounts()["fees"] == 100
    market = world.state("bob")["markets"]["predictions"][0]
    assert market["yesPrice"] == round(1 / (1 + math.exp(-math.floor(expected) / B)), 4)
    assert market["yesPrice"] + market["noPrice"] == pytest.approx(1)
    assert market["volume"] == 99.0


def test_buying_and_selling_at_once_loses_the_fees_and_no_more_than_a_rounding(make_world):
    world = make_world()
    buy(world, "ann", 100.0)
    shares = world.state("ann")["portfolio"]["positions"][0]["shares"]
    assert sell(world, "ann", shares).accepted
    lost = 1000 - world.state("ann")["portfolio"]["balance"]
    assert lost == pytest.approx(1.00 + 0.01 * 99, abs=0.03)
    assert lost * 100 >= world.books.accounts()["fees"]


def test_the_right_answer_pays_one_dollar_a_share_and_the_wrong_one_nothing(make_world, ticked):
    world = make_world()
    right = world.books.predictions["market-1"].truth
    won, lost = buy(world, "ann", 100.0, right), buy(world, "bob", 50.0, OTHER[right])
    shares = world.state("ann")["portfolio"]["positions"][0]["shares"]
    settled = ticked(world, 5)
    assert settled[won.ticket].pnl == pytest.approx(shares - 100)
    assert settled[won.ticket].investment == 100.0
    assert settled[won.ticket].hold_time_minutes == 25.0
    assert settled[won.ticket].win_rate == 1.0
    assert settled[lost.ticket].pnl == -50.0
    assert settled[lost.ticket].win_rate == 0.0
    state = world.state("ann")
    assert state["portfolio"]["balance"] == pytest.approx(900 + shares)
    assert state["portfolio"]["lifetimePnL"] == pytest.approx(shares - 100)
    assert state["portfolio"]["positions"] == []
    assert f"market-1 ended {right}" in state["agent"]["memory"][-1]["text"]


def test_selling_is_compared_with_the_final_worth_of_the_shares(make_world, ticked):
    world = make_world()
    right = world.books.predictions["market-1"].truth
    buy(world, "ann", 100.0, right)
    buy(world, "bob", 100.0, OTHER[right])
    regretted, relieved = sell(world, "ann", 50.0), sell(world, "bob", 50.0, "position-2")
    received = world.state("ann")["portfolio"]["balance"] - 900
    settled = ticked(world, 5)
    assert settled[regretted.ticket].pnl == pytest.approx(received - 50)
    assert settled[regretted.ticket].pnl < 0 < settled[relieved.ticket].pnl
    # What had been paid for the part that was sold.
    assert 20 < settled[regretted.ticket].investment < 30


def test_a_purchase_settles_once_with_the_sum_of_its_sales(make_world, ticked):
    world = make_world()
    bought = buy(world, "ann", 100.0)
    shares = world.state("ann")["portfolio"]["positions"][0]["shares"]
    sell(world, "ann", 10.0)
    assert bought.ticket not in ticked(world)
    sell(world, "ann", round(shares - 10, 2))
    (position,) = [s for s in ticked(world).values() if s.ticket == bought.ticket]
    assert position.pnl == pytest.approx(world.state("ann")["portfolio"]["balance"] - 1000)
    assert position.hold_time_minutes == 5.0


def test_markets_are_replaced_as_they_end_and_all_end_with_the_episode(make_world):
    world = make_world(min_lifetime=3, max_lifetime=15)
    for _ in range(60):
        world.tick()
        markets = world.state("ann")["markets"]["predictions"]
        assert len(markets) == 2
        to_end = 5.0 * (20 - world.ticks % 20)
        assert all(0 < market["minutesLeft"] <= to_end for market in markets)
    assert world.episode_profits("ann") == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        ({"marketId": "market-9", "amount": 5}, "no open prediction market.*there are market-1"),
        ({"marketId": "market-1", "amount": 1000.01}, "more than your balance of 1000.00"),
        ({"marketId": "market-1", "amount": 0.001}, "buys nothing"),
    ],
)
def test_an_invalid_purchase_is_refused_with_the_reason(make_world, action, problem):
    world = make_world()
    before = world.books.accounts()
    receipt = world.decide("ann", {"type": "BUY_SHARES", "outcome": "NO", **action})
    assert not receipt.accepted
    assert pytest.approx(before) == world.books.accounts()
    assert re.search(problem, receipt.problem)


def test_an_agent_cannot_sell_shares_that_it_does_not_have(make_world):
    world = make_world()
    buy(world, "ann", 10.0)
    assert "you have no shares 'position-1'" in sell(world, "bob", 1.0).problem
    assert "cannot be sold" in sell(world, "ann", 1000.0).problem
    assert "cannot be sold" in sell(world, "ann", 0.001).problem
