"""The budget of API players: what closes it, what is left out, and that a resume keeps it."""

from __future__ import annotations

import pytest
from tests.factories import game_spec, scripted, seat

from rlforge.config.pool import ApiConfig, ApiSettings
from rlforge.league.budget import ApiBudget, ApiSpending
from rlforge.record.results import ApiUsage
from rlforge.types import EnvSpec, PolicyRef

API = PolicyRef(uid="openai:m", kind="api")


def game(*players):
    seats = [seat(place, player) for place, player in enumerate(players)]
    return game_spec("g", EnvSpec(id="Game-v0", num_players=len(seats)), seats)


def test_so_many_games_begin_and_games_of_others_always_do():
    budget = ApiBudget(ApiConfig(max_games=2))
    assert [budget.admit(game(API, scripted())) for _ in range(4)] == [True, True, False, False]
    assert budget.admit(game(scripted(), scripted()))
    assert (budget.games, budget.declined) == (2, 2)
    assert budget.closed == "pool.api.max_games=2 is used: $0.00 in 2 games"


def test_a_game_of_two_api_players_is_one_game():
    budget = ApiBudget(ApiConfig(max_games=2))
    other = PolicyRef(uid="openai:n", kind="api")
    budget.begin(game(API, other, API))
    assert budget.closed is None
    assert {one.uid: one.games for one in budget.players} == {"openai:m": 1, "openai:n": 1}


def test_money_closes_it_once_it_is_spent():
    budget = ApiBudget(ApiConfig(max_cost=1.0))
    budget.spend([ApiUsage(uid="openai:m", cost=0.6)])
    assert budget.admit(game(API, scripted()))
    budget.spend([ApiUsage(uid="openai:n", cost=0.4)])
    assert not budget.admit(game(API, scripted()))


@pytest.mark.parametrize(("limits", "closes"), [({"max_cost": 1.0}, True), ({}, False)])
def test_an_unknown_price_closes_a_budget_of_money_only(limits, closes):
    budget = ApiBudget(ApiConfig(**limits))
    budget.spend([ApiUsage(uid="litellm:x/y", requests=1, unpriced=1)])
    assert (budget.closed is not None) is closes
    assert not closes or "litellm:x/y is not known; set pool.api.prices" in budget.closed


def test_what_was_spent_stays_spent_whatever_state_a_run_goes_on_from(tmp_path):
    budget = ApiBudget(ApiConfig(max_games=3), tmp_path / "api.json")
    for _ in range(2):
        budget.begin(game(API, scripted()))
    budget.spend([ApiUsage(uid="openai:m", requests=5, cost=0.25, seconds=2.0)])
    budget.save()
    again = ApiBudget(ApiConfig(max_games=3), tmp_path / "api.json")
    assert (again.players, again.games) == (budget.players, 2)
    assert again.admit(game(API, scripted()))
    assert not again.admit(game(API, scripted()))


def test_without_games_requests_are_counted_under_the_keys_of_their_group():
    spending = ApiSpending(ApiSettings(max_cost=1.0), keys="traders.api")
    spending.spend([ApiUsage(uid="openai:m", requests=3, cost=0.75)])
    assert spending.closed is None
    spending.spend([ApiUsage(uid="openai:m", requests=1, cost=0.25)])
    assert spending.closed == "traders.api.max_cost=1 is used: $1.00 in 4 requests"
