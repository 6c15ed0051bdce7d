"""Settings of store, windows and reward: every slip is named with its key."""

import pytest
from omegaconf import OmegaConf

from rlforge.config.keys import conf_dir
from rlforge.config.rules import changed, read
from rlforge.continuous.config.continuous import DECISION_BYTES, ContinuousConfig, WindowConfig


@pytest.mark.parametrize("group", ["store", "window", "decision_reward"])
def test_shipped_options_fit_their_class_and_pass(group):
    for file in (conf_dir() / group).glob("*.yaml"):
        kind = type(getattr(ContinuousConfig(), group))
        assert list(read(kind, OmegaConf.to_container(OmegaConf.load(file))).problems()) == []


@pytest.mark.parametrize(
    ("settings", "waited", "staleness"),
    [
        ({}, 2, 3),  # hours, and episodes of two
        ({"completeness": 0.0}, 0, 1),
        ({"clock": "simulated"}, 2, 3),
        ({"clock": "simulated", "minutes": 240.0}, 0, 1),
        ({"minutes": 240.0}, 1, 2),  # by the wall clock, episodes begin with the run
        ({"grace_seconds": 0.0}, 0, 1),
        ({"grace_seconds": 3601.0}, 2, 3),
    ],
)
def test_decisions_may_be_as_old_as_the_wait_for_their_outcomes_makes_them(
    settings, waited, staleness
):
    config = ContinuousConfig(window=WindowConfig(**settings))
    assert (config.windows_waited, config.max_staleness) == (waited, staleness)
    assert changed(config, ["continuous.max_staleness=7"]).max_staleness == 7


@pytest.mark.parametrize(
    ("lines", "windows", "versions"),
    [
        (["continuous.windows=8"], None, None),
        ([], 336, 72),
        (["store.keep_windows=9", "learner.keep_checkpoints=0"], 9, 0),
        # Outcomes of so many windows may still come.
        (["window.minutes=0.1"], 1201, 72),
        (["continuous.source=store"], None, None),
    ],
)
def test_a_run_without_an_end_keeps_so_many_windows_and_versions(lines, windows, versions):
    config = changed(ContinuousConfig(), ["continuous.windows=null", *lines])
    assert (config.keep_windows, config.keep_checkpoints) == (windows, versions)


def test_the_growth_of_a_store_is_that_of_its_decisions():
    config = changed(ContinuousConfig(), ["market.tick_minutes=5", "continuous.agents=10"])
    traders = 10 + config.continuous.control_agents + sum(config.market.traders.values())
    assert config.bytes_a_day == traders * 288 * DECISION_BYTES
    assert changed(config, ["continuous.source=requests"]).bytes_a_day is None
