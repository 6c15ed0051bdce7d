import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import factories

from rlforge.continuous.decisions.records import Metadata, Result
from rlforge.continuous.market.actions import open_position
from rlforge.continuous.ruler.features import (
    ACTION_TYPES,
    STATE_ACTION,
    WITH_OUTCOME,
    feature_names,
    featurize,
)

SHARES = {"id": "p1", "kind": "shares", "marketId": "m1", "outcome": "NO"}
FUTURE = {"id": "p2", "kind": "perpetual", "ticker": "ACME", "side": "long"}
PRICES = {"ticker": "ACME", "markPrice": 102.0, "indexPrice": 100.0}
STATE = {
    "portfolio": {
        "balance": 900.0,
        "lifetimePnL": 50.0,
        "positions": [
            SHARES | {"value": 60.0, "pnl": 10.0, "minutesHeld": 25.0},
            FUTURE | {"value": 40.0, "pnl": -5.0, "minutesHeld": 5.0},
        ],
    },
    "markets": {
        "predictions": [
            {"id": "m1", "yesPrice": 0.3, "noPrice": 0.7, "change": 0.05, "minutesLeft": 20.0}
        ],
        "perpetuals": [PRICES | {"change": -0.02, "fundingRate": 0.001}],
    },
    "social": {
        "feed": [
            {"userId": "wire", "about": "m1", "stance": "NO"},
            {"userId": "wire", "about": "m1", "stance": "YES"},
            {"userId": "daily", "about": "m1", "stance": "YES"},
            {"userId": "daily", "about": "ACME", "stance": "DOWN"},
            {"userId": "agent-7", "about": None, "stance": None},
        ],
        "unreadMessages": 3,
    },
    "agent": {
        "recentActions": [{"type": "NO_OP"}, {"type": "BUY_SHARES"}],
        "memory": [
            {"kind": "tip", "about": "ACME", "stance": "UP"},
            {"kind": "trade", "pnl": 4.0},
            {"kind": "trade", "pnl": -1.0},
        ],
    },
}


def _row(action, features=STATE_ACTION, **changes):
    said = Metadata(provider="scripted:x", reasoning="why", confidence=0.8)
    fields = {"state": STATE, "action": action, "metadata": said, "reward": None, "tokens": None}
    decision = factories.decision(0, **{**fields, **changes})
    rows = featurize([decision], features)
    return dict(zip(feature_names(features), rows[0].tolist(), strict=True))


BUY = {"type": "BUY_SHARES", "marketId": "m1", "outcome": "YES", "amount": 90.0}


def test_a_purchase_against_prices_news_and_holdings():
    row = _row(BUY)
    expected = {
        "is_buy_shares": 1.0,
        "is_no_op": 0.0,
        "invalid": 0.0,
        "investment_share": 0.1,
        "leverage": 0.0,
        "price_paid": 0.3,
        "long_shot": 0.2,
        "trend_in_favour": 0.5,
        "feed_in_favour": 1.0,  # the newest post of each account counts
        "advice_over_price": 0.7,
        "adds_to_position": 0.0,
        "against_position": 1.0,
        "exposure": 0.1,
        "open_pnl": 0.005,
        "lifetime_pnl": 0.05,
        "recent_win_rate": 0.5,
        "recent_trades": 0.5,
        "repeats_itself": 1.0,
        "confidence": 0.8,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_the_other_side_has_the_opposite_signs():
    yes, no = _row(BUY), _row({**BUY, "outcome": "NO"})
    for name in ("trend_in_favour", "feed_in_favour"):
        assert no[name] == -yes[name] != 0
    assert no["price_paid"] == 0.7
    assert (no["adds_to_position"], no["against_position"]) == (1.0, 0.0)


def test_a_leveraged_position():
    row = _row(open_position("ACME", "short", 450, 5))
    expected = {
        "investment_share": 0.1,
        "notional_share": 0.5,
        "leverage": np.log(5),
        "trend_in_favour": 0.2,
        "feed_in_favour": 1.0,
        "memory_in_favour": -1.0,
        "advice_over_price": -0.5,  # a tip outweighs the feed
        "premium_in_favour": 0.2,
        "funding_in_favour": 0.1,
        "against_position": 1.0,
        "is_open_position": 1.0,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_closing_a_position_has_the_opposite_signs_of_holding_it():
    sell = _row({"type": "SELL_SHARES", "positionId": "p1", "shares": 10})
    assert sell["feed_in_favour"] == 1.0  # the news say YES, and NO is sold
    assert sell["closes_gain"] == pytest.approx(0.2)
    assert sell["closes_after"] == pytest.approx(np.log1p(25.0))
    close = _row({"type": "CLOSE_POSITION", "positionId": "p2"})
    assert close["memory_in_favour"] == -1.0
    assert close["closes_gain"] == pytest.approx(-5 / 45)


@pytest.mark.parametrize(
    "action",
    [
        {**BUY, "amount": 901.0},
        {**BUY, "amount": -1.0},
        {**BUY, "marketId": "m9"},
        {"type": "SELL_SHARES", "positionId": "p9", "shares": 1},
        {"type": "OPEN_POSITION", "ticker": "ACME", "side": "long", "size": 9999, "leverage": 2},
        {"type": "STEAL"},
        {},
    ],
)
def test_an_action_that_the_state_does_not_allow_is_invalid(action):
    assert _row(action)["invalid"] == 1.0


def test_idle_and_social_actions_are_valid_and_trade_nothing():
    for kind in ("NO_OP", "CREATE_POST", "CREATE_COMMENT", "FOLLOW_USER"):
        row = _row({"type": kind})
        assert row["invalid"] == row["investment_share"] == row["feed_voices"] == 0.0
        assert row[f"is_{kind.lower()}"] == 1.0


def test_the_outcome_is_a_feature_only_when_configured():
    after = {
        **STATE,
        "portfolio": {"balance": 1100.0, "positions": []},
        "markets": {"predictions": [{"id": "m1", "yesPrice": 0.36}]},
    }
    known = {
        "next_state": after,
        "result": Result(pnl=45.0, investment=90.0, hold_time_minutes=20.0, win_rate=0.6),
        "reward": 0.7,
    }
    row = _row(BUY, WITH_OUTCOME, **known)
    expected = {
        "settled": 1.0,
        "pnl_per_investment": 0.5,
        "made_money": 1.0,
        "fast": 1.0,
        "hold_time": np.log1p(20.0),
        "win_rate": 0.6,
        "wealth_change": 1.0,
        "price_change_in_favour": 2.0,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert _row(BUY, **known) == _row(BUY)


def test_a_decision_without_outcome_has_no_outcome_features(make_window):
    shown = [factories.without_outcome(decision) for decision in make_window(0, each=2).decisions]
    hidden = featurize(shown, WITH_OUTCOME)[:, len(feature_names(STATE_ACTION)) :]
    assert not hidden.any()


NAMES = [
    *("portfolio", "markets", "social", "agent", "balance", "positions", "predictions"),
    *("perpetuals", "id", "ticker", "feed", "memory", "recentActions"),
    *("value", "pnl", "about", "stance", "yesPrice", "markPrice", "change"),
]
JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.floats(),
        st.integers(-(10**400), 10**400),
        st.text(max_size=5),
        st.sampled_from(["m1", "ACME", "YES", "long", "p1"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=20,
)
OBJECTS = st.dictionaries(
    st.sampled_from(["portfolio", "markets", "social", "agent"]), JUNK, max_size=4
)
SIZES = st.floats(0, allow_nan=False, allow_infinity=False)


@settings(max_examples=60)
@given(OBJECTS, OBJECTS, st.sampled_from([*ACTION_TYPES, "?"]), JUNK, SIZES)
def test_rows_are_finite_for_missing_and_odd_values(state, after, kind, content, figure):
    action = {"type": kind, "marketId": content, "ticker": "ACME", "amount": content, "size": 1e300}
    result = Result(pnl=-figure, investment=figure, hold_time_minutes=figure, win_rate=0.5)
    row = _row(action, WITH_OUTCOME, state=state, next_state=after, result=result)
    assert all(np.isfinite(list(row.values())))
    assert max(map(abs, row.values())) <= 10.0
