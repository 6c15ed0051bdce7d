"""Perpetual futures: margin, profit, impact, funding, liquidation and a vault that is empty."""

import math

import pytest

from rlforge.continuous.market import actions

DEPTH = 200_000.0


def open_(world, agent, size, side="long", leverage=5, ticker="ACME"):
    position = {"ticker": ticker, "side": side, "size": size, "leverage": leverage}
    return world.decide(agent, {"type": "OPEN_POSITION", **position})


def close(world, agent, position="position-1"):
    return world.decide(agent, {"type": "CLOSE_POSITION", "positionId": position})


def balance(world, agent="ann"):
    return world.state(agent)["portfolio"]["balance"]


def move_index(world, cents):
    world.books.perpetuals["ACME"].index = cents


def test_margin_is_size_over_leverage_and_the_price_moves_with_open_interest(make_world):
    world = make_world()
    assert open_(world, "ann", 1000, leverage=4).accepted
    assert balance(world) == 1000 - 250 - 1
    (position,) = world.state("ann")["portfolio"]["positions"]
    mark = round(10_000 * math.exp(1000 / DEPTH)) / 100
    assert (
        position["entryPrice"]
        == mark
        == world.state("bob")["markets"]["perpetuals"][0]["markPrice"]
    )
    # What a fall to the liquidation price leaves is the maintenance margin.
    left = 250 - 1000 * (1 - position["liquidationPrice"] / mark)
    assert left == pytest.approx(0.05 * 1000, abs=0.1)


@pytest.mark.parametrize("side", ["long", "short"])
def test_opening_and_closing_at_once_makes_no_profit(make_world, side):
    world = make_world()
    open_(world, "ann", 2000, side)
    close(world, "ann")
    loss = 1000 - balance(world)
    assert loss == pytest.approx(2000 * (math.exp(2000 / DEPTH) - 1) + 2 * 2, abs=0.6)


@pytest.mark.parametrize(("side", "sign"), [("long", 1), ("short", -1)])
def test_profit_is_size_times_the_move(make_world, ticked, side, sign):
    world = make_world(depth=1e9)
    opened = open_(world, "ann", 1000, side)
    move_index(world, 10_300)
    world.tick()
    close(world, "ann")
    settled = ticked(world)[opened.ticket]
    assert settled.pnl == pytest.approx(sign * 30 - 2, abs=0.02)
    assert settled.investment == 201.0
    assert settled.hold_time_minutes == 5.0
    assert balance(world) == pytest.approx(1000 + sign * 30 - 2, abs=0.02)


def test_closing_is_compared_with_keeping_the_position(make_world, ticked):
    world = make_world(depth=1e9)
    open_(world, "ann", 1000)
    move_index(world, 10_300)
    closed = close(world, "ann")
    move_index(world, 10_100)
    assert closed.ticket not in ticked(world, 5)
    settled = ticked(world)[closed.ticket]
    # The position would have lost 20 of its 30; the fee of closing is paid either way or not.
    assert settled.pnl == pytest.approx(20 - 1, abs=0.02)
    assert settled.investment == 201.0


def test_funding_goes_from_the_crowded_side_to_the_other_and_the_vault_keeps_the_rest(
    make_world, monkeypatch
):
    world = make_world()
    monkeypatch.setattr("rlforge.continuous.market.world.FUNDING_INTERVAL", 1)
    open_(world, "ann", 3000)
    open_(world, "bob", 1000, "short")
    rate = (math.exp(2000 / DEPTH) - 1) / 2
    vault = world.books.accounts()["vault"]
    margins = [world.state(name)["portfolio"]["positions"][0]["margin"] for name in ("ann", "bob")]
    world.tick()
    after = [world.state(name)["portfolio"]["positions"][0]["margin"] for name in ("ann", "bob")]
    assert margins[0] - after[0] == pytest.approx(3000 * rate, abs=0.3)
    assert after[1] - margins[1] == pytest.approx(1000 * rate, abs=0.1)
    assert world.books.accounts()["vault"] - vault == pytest.approx(2000 * rate * 100, abs=30)
    world = make_world(depth=20_000.0)
    open_(world, "ann", 1000)
    assert world.state("ann")["markets"]["perpetuals"][0]["fundingRate"] == 0.01  # the most


@pytest.mark.parametrize(
    ("size", "index", "pnl"),
    [
        # 100 of margin less 60 lost, less 1 % of liquidation fee and 0.1 % of closing fee.
        (1000, 9_400, pytest.approx(-60 - 11 - 1, abs=0.02)),
        (5000, 5_000, -505.0),
    ],
)
def test_a_position_below_its_maintenance_margin_is_liquidated_and_loses_no_more_than_its_margin(
    make_world, ticked, size, index, pnl
):
    world = make_world(depth=1e9)
    opened = open_(world, "ann", size, leverage=10)
    move_index(world, index)
    settled = ticked(world)[opened.ticket]
    assert settled.pnl == pnl
    assert settled.pnl >= -settled.investment
    assert balance(world) == pytest.approx(1000 + settled.pnl)
    assert world.state("ann")["portfolio"]["positions"] == []
    assert "liquidated" in world.state("ann")["agent"]["memory"][-1]["text"]


def test_a_vault_that_runs_short_closes_the_most_profitable_position_and_pays_all_it_has(
    make_world, ticked
):
    world = make_world(depth=1e9, vault=100.0)
    small, large = open_(world, "bob", 500), open_(world, "ann", 5000, leverage=10)
    move_index(world, 12_000)
    settled = ticked(world)
    # 1000 were won; the vault has 100, and the other position has nothing left to win.
    assert settled[large.ticket].pnl == pytest.approx(100 - 5 - 5, abs=0.02)
    assert small.ticket in settled
    assert settled[small.ticket].pnl == pytest.approx(-1.0, abs=0.02)
    assert world.books.accounts()["vault"] == 0
    assert sum(world.books.accounts().values()) == 0


def test_the_end_of_an_episode_closes_all_and_starts_over(make_world, ticked):
    world = make_world(depth=1e9)
    opened = open_(world, "ann", 1000)
    move_index(world, 10_500)
    settled = ticked(world, 20)[opened.ticket]
    assert settled.pnl == pytest.approx(50 - 2, abs=0.02)
    assert settled.hold_time_minutes == 100.0
    assert world.episode_profits("ann") == [settled.pnl]
    assert balance(world) == 1000.0
    assert world.books.accounts()["vault"] == 5_000_000


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"ticker": "DOGE"}, "no ticker 'DOGE'; there are ACME"),
        ({"leverage": 11}, "leverage must be 1 to 10, not 11"),
        ({"leverage": 0.5}, "leverage must be 1 to 10"),
        ({"size": 9000}, "margin and fee of 1809.00 is more than your balance of 1000.00"),
        ({"size": 0.001}, "a size of 0.00 opens nothing"),
        ({"size": 5000, "leverage": 10}, "would be liquidated at once"),
    ],
)
def test_an_invalid_position_is_refused_with_the_reason(make_world, values, problem):
    world = make_world(depth=15_000.0)
    receipt = open_(world, "ann", **{"size": 100, **values})
    assert not receipt.accepted
    assert problem in receipt.problem
    assert balance(world) == 1000.0
    assert open_(world, "ann", 500, leverage=10).accepted


def test_neither_shares_nor_positions_of_others_can_be_closed(make_world):
    world = make_world()
    world.decide("ann", actions.buy("market-1", "NO", 9))
    assert "sold with SELL_SHARES" in close(world, "ann").problem
    assert "you have no perpetual position" in close(world, "bob").problem
