"""The market as a game: turns, answers in both forms, forfeits, rewards."""

import math

import pytest
from tests.factories import scripted_game

from rlforge.continuous.config.market import STARTING_BALANCE, MarketConfig
from rlforge.continuous.market import game as market
from rlforge.continuous.market.game import load_market
from rlforge.continuous.market.world import World
from rlforge.errors import ConfigError
from rlforge.games.players import check_player
from rlforge.games.registry import check_env, env_ids, make_game
from rlforge.types import EnvSpec

SMALL = EnvSpec(id="market-small", source="market")


def test_an_episode_gives_every_seat_every_round_and_the_start_changes():
    game, order = make_game(SMALL, 1), []
    while not game.done:
        order.append(game.view().player_id)
        game.step("[hold]")
    assert game.result().end_reason == "finished"
    assert order == [0, 1, 1, 0] * 6


def test_games_follow_from_seeds():
    env = EnvSpec(id="market-small", source="market", num_players=3)
    names = ("random_legal", "value_trader", "noise_trader")
    rewards = [scripted_game(env, names, seed).result().rewards for seed in (1, 1, 2)]
    assert rewards[0] == rewards[1] != rewards[2]
    assert list(rewards[0]) == [0, 1, 2]


def test_holding_scores_nothing_and_profit_is_squashed(monkeypatch):
    worlds = []
    monkeypatch.setattr(market, "World", lambda *a: worlds.append(World(*a)) or worlds[-1])
    game = make_game(SMALL, 3)
    while not game.done:
        before = game.view()
        game.step("[hold]" if before.player_id == 0 else before.legal_actions[-1])
    rewards = game.result().rewards
    assert rewards[0] == 0.0
    (profit,) = worlds[0].episode_profits("player-1")
    assert rewards[1] == math.tanh(profit / STARTING_BALANCE) != 0.0


def test_json_and_words_are_both_understood():
    game = make_game(SMALL, 0)
    action = '{"type": "BUY_SHARES", "marketId": "market-1", "outcome": "YES", "amount": 40}'
    game.step(f"I think so: {action}")
    assert game.accepted
    game.step("hold")
    game.step(f"[{action}]")
    game.step("[hold]")
    state = game.view().state
    assert state["portfolio"]["balance"] == 960.0
    assert len(state["portfolio"]["positions"]) == 1


def test_a_view_has_prose_a_compact_board_and_words():
    view = make_game(SMALL, 0).view()
    assert view.observation.startswith("You are player-0.\n\n")
    assert "\n\n12 rounds are left.\n\n" in view.observation
    assert "BUY_SHARES" in view.observation
    assert all(word in view.observation for word in view.legal_actions)
    assert view.board.startswith("market bet p5 ")
    assert view.board.endswith(" go")


@pytest.mark.parametrize(
    ("answer", "feedback"),
    [
        ("[sell]", "[sell] is not possible now"),
        ("I would rather wait", "held no JSON action"),
        ('{"type": "CLOSE_POSITION", "positionId": "p"}', "no perpetual position 'p'"),
    ],
)
def test_an_invalid_answer_may_be_taken_back_once_and_then_forfeits(answer, feedback):
    game = make_game(SMALL, 0)
    game.step(answer)
    assert not game.accepted
    view = game.view()
    assert view.retry
    assert view.player_id == 0
    assert feedback in view.observation
    game.step("[hold]")
    assert game.accepted
    assert not game.view().retry
    game.step(answer)
    game.step(answer)
    result = game.result()
    assert (result.end_reason, result.invalid_by) == ("invalid_move", 1)
    assert result.rewards == {0: 0.0, 1: -1.0}


def test_a_game_that_is_cut_scores_what_everybody_has():
    env = EnvSpec(id="market-small", source="market", max_turns=3)
    game = make_game(env, 0)
    game.step("[yes3]")
    game.step("[hold]")
    game.step("[hold]")
    result = game.result()
    assert result.end_reason == "turn_limit"
    assert result.rewards[0] != 0.0
    assert result.rewards[1] == 0.0
    with pytest.raises(ValueError, match="not over"):
        make_game(SMALL, 0).result()


def test_the_source_knows_its_ids_and_checks_them():
    assert env_ids("market") == [
        *("market", "market-crowd", "market-prose", "market-small", "market-tiny")
    ]
    for name in env_ids("market"):
        check_env(EnvSpec(id=name, source="market"))
    with pytest.raises(ConfigError, match="did you mean market"):
        check_env(EnvSpec(id="markt", source="market"))
    with pytest.raises(ConfigError, match="num_players must be 1 or more"):
        check_env(EnvSpec(id="market", source="market", num_players=0))


def test_traders_sit_at_markets_only():
    check_player("value_trader", SMALL)
    with pytest.raises(ConfigError, match="trades on markets only"):
        check_player("value_trader", EnvSpec(id="TicTacToe-v0-train"))
    with pytest.raises(ConfigError, match="minimax knows OpenSpiel games, TicTacToe"):
        check_player("minimax", SMALL)


def test_the_presets_load_and_the_default_is_the_schema():
    assert load_market("market") == MarketConfig()
    assert load_market("market-small").tickers == ["ACME"]
    assert sum(load_market("market-crowd").traders.values()) == 100
    with pytest.raises(ConfigError, match="did you mean market-small"):
        load_market("market-smal")
