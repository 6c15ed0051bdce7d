"""What is expected of collection before it begins."""

import re

import pytest

from rlforge.config.compose import compose
from rlforge.rollout.expected import buffer_settings, forecast


def settings_of(*overrides):
    return buffer_settings(compose(list(overrides)).config, "")


def test_the_quick_start_knows_what_its_games_cost_in_age():
    config = compose(["+experiment=qwen3_1p7b_simpletak"]).config
    assert "up to 384 games" in forecast(config)
    [age] = re.findall(r"mean age of (\d\.\d) updates", forecast(config))
    assert float(age) == pytest.approx(3.7, abs=0.7)  # 384 games of about 7.5 learned turns


def test_games_that_find_no_place_in_the_engines_are_counted():
    small = forecast(compose(["+experiment=qwen3_1p7b_simpletak", "hardware=gpu_16gb"]).config)
    said = "for 12 places in the engines (engine.max_parallel_seq); 372 requests wait for one"
    assert said in small
    assert " wait for one" not in forecast(compose(["+experiment=kuhn_grpo"]).config)


def test_one_seat_brings_half_the_turns_of_both():
    both = settings_of("+experiment=qwen3_1p7b_simpletak_tuned")
    one = settings_of("+experiment=qwen3_1p7b_simpletak_tuned", "collector.learned_seats=one")
    turns = [sum(turns for _, turns in each.games) for each in (both, one)]
    assert turns[1] == pytest.approx(turns[0] / 2, rel=0.05)


def test_an_episode_is_one_sample_of_many_turns():
    games = settings_of("+experiment=simpletak_mirror").games
    assert {samples for samples, _ in games} == {2}
    assert min(turns for _, turns in games) > 4


def test_workers_are_those_of_all_collectors():
    two = ["collector.num_collectors=2", "collector.num_train_workers=8"]
    assert settings_of("+experiment=tictactoe_mirror", *two).workers == 16
    assert settings_of("+experiment=tictactoe_mirror").workers is None


def test_strictly_on_policy_games_are_played_in_rounds():
    config = compose(["+experiment=tictactoe_mirror", "buffer.max_staleness=0"]).config
    assert forecast(config) == "games are played in rounds, each for the next update"
