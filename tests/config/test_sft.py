"""``rlforge sft``: what it takes from an experiment of games, and what it has of its own."""

import dataclasses

import pytest
from tests.harness.composed import composed

from rlforge.config.compose import to_yaml
from rlforge.config.roots import compose_run, kind_of_run, read_run
from rlforge.config.rules import changed
from rlforge.config.schema import GamesConfig, RunConfig
from rlforge.config.sft import DataConfig, SftConfig
from rlforge.config.training import SupervisedConfig
from rlforge.errors import ConfigError


def test_an_experiment_of_games_gives_games_model_and_engine_but_not_the_learner():
    lines = ["+experiment=tictactoe_mirror", "data=random_legal", "learner.batch_size=8"]
    found = composed(*lines, root=SftConfig)
    games = composed("+experiment=tictactoe_mirror").config
    config = found.config
    for group in ("env", "model", "engine", "collector", "eval"):
        assert getattr(config, group) == getattr(games, group)
    assert config.name == "tictactoe_mirror_sft"
    assert (config.learner.batch_size, config.learner.learning_rate) == (8, 2e-4)
    assert isinstance(config.algorithm, SupervisedConfig)
    assert found.origin("learner.batch_size") == "command line, learner.batch_size=8"
    assert found.origin("env.train") == "conf/env/tictactoe.yaml"


def test_changes_on_the_command_line_count_more_than_the_experiment():
    lines = ["+experiment=simpletak_mirror", "env=tictactoe", "name=mine", "engine.max_tokens=9"]
    config = compose_run([*lines, "data.games=7"], None, SftConfig).config
    assert config.env.train[0].id == "TicTacToe-v0-train"
    assert (config.name, config.engine.max_tokens, config.data.games) == ("mine", 9, 7)


def test_the_memory_settings_of_a_card_reach_the_learner(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "big.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /hardware: gpu_24gb\n"
        "  - override /rewards: none\nkind: games\nname: big\nlearner: {learning_rate: 1.0}\n"
    )
    config = compose_run(["+experiment=big", "data=random_legal"], tmp_path, SftConfig).config
    assert config.hardware.name == "gpu_24gb"
    assert config.learner.gradient_checkpointing
    assert config.learner.learning_rate == 2e-4


def test_an_experiment_of_a_continuous_run_gives_market_model_and_prompts(tmp_path):
    lines = ["+experiment=smollm2_market", "data=value_trader", "market.predictions=2"]
    config = compose_run(lines, None, SftConfig).config
    theirs = composed("+experiment=smollm2_market").config
    assert config.market == dataclasses.asdict(theirs.market) | {"predictions": 2}
    for group in ("model", "engine", "prompts", "hardware"):
        assert getattr(config, group) == getattr(theirs, group)
    assert (config.name, config.data.players) == ("smollm2_market_sft", ["value_trader"])
    assert config.learner.batch_size == 64
    assert type(composed("kind=sft", *lines).config) is SftConfig
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert kind_of_run(tmp_path) is SftConfig
    assert read_run(tmp_path, SftConfig) == config


def test_a_supervised_run_is_read_where_games_are_played(tmp_path):
    assert type(composed().config) is RunConfig
    config = composed("+experiment=tictactoe_mirror", "kind=sft", "data=random_legal").config
    assert type(config) is SftConfig
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert kind_of_run(tmp_path) is SftConfig
    assert read_run(tmp_path, SftConfig) == read_run(tmp_path, GamesConfig) == config
    with pytest.raises(ConfigError, match="is a supervised run; this command is for a run that"):
        read_run(tmp_path, RunConfig)


def test_the_number_of_updates_follows_from_epochs_and_samples():
    config = SftConfig(data=DataConfig(epochs=2.5))
    assert config.total_updates is None
    assert changed(config, ["data.max_samples=1000"]).total_updates == round(2500 / 64)
    assert changed(config, ["data.max_samples=1"]).total_updates == 1
