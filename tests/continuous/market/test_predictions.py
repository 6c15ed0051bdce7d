"""The scoring rule against independent references: scipy's log-sum-exp and a bisection."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logsumexp

from rlforge.continuous.market.predictions import lmsr_cost, lmsr_price, lmsr_shares

LIQUIDITY = st.floats(1_000, 1_000_000)
SOLD = st.integers(0, 5_000_000)


def reference(b, own, other):
    return b * float(logsumexp([own / b, other / b]))


@given(LIQUIDITY, SOLD, SOLD)
def test_cost_is_b_times_the_log_of_the_sum_of_exponentials(b, own, other):
    assert lmsr_cost(b, own, other) == pytest.approx(reference(b, own, other), rel=1e-12)


@given(LIQUIDITY, SOLD, SOLD)
def test_prices_are_the_logistic_of_the_difference_and_sum_to_one(b, own, other):
    assert lmsr_price(b, own, other) == pytest.approx(expit((own - other) / b), abs=1e-12)
    assert lmsr_price(b, own, other) + lmsr_price(b, other, own) == pytest.approx(1, abs=1e-12)


@given(LIQUIDITY, SOLD, SOLD, st.integers(1, 1_000_000))
def test_an_amount_buys_what_costs_that_amount(b, own, other, amount):
    bought = lmsr_shares(b, own, other, amount)
    spent = reference(b, own + bought, other) - reference(b, own, other)
    # Where the price is near 0 the cost hardly depends on the shares.
    assert spent == pytest.approx(amount, rel=1e-6, abs=1e-4)


def test_the_most_that_the_market_maker_loses_is_b_ln_2():
    b = 10_000.0
    for sold in (0, 1_000, 100_000, 1_000_000):
        paid = lmsr_cost(b, sold, 0) - lmsr_cost(b, 0, 0)
        assert sold - paid <= b * math.log(2) + 1e-6


def test_extreme_numbers_of_shares_do_not_overflow():
    assert lmsr_price(100.0, 0, 10**9) == 0.0
    assert lmsr_price(100.0, 10**9, 0) == 1.0
    assert lmsr_cost(100.0, 10**9, 0) == 10**9
    assert lmsr_shares(100.0, 0, 0, 10**9) == pytest.approx(10**9, rel=1e-6)
    assert math.isfinite(lmsr_shares(100.0, 0, 10**6, 5))
