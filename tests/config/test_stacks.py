"""Stacks from YAML: what is accepted, and what an error says."""

import pytest

from rlforge.config.plugins import FINAL_REWARDS, SAMPLING_REWARDS, STEP_REWARDS
from rlforge.config.stacks import build_stack
from rlforge.errors import ConfigError
from rlforge.rewards.final import Clamp, RoleAdvantage, Scale
from rlforge.rewards.sampling import Normalize


def build_final(*entries):
    return build_stack(list(entries), FINAL_REWARDS, "rewards.final")


def test_transforms_keep_the_order_and_the_parameters_of_the_entries():
    stack = build_final(
        {"name": "scale", "alpha": 2},
        {"name": "clamp", "min_r": -0.5, "max_r": 0.5},
        {"name": "role_advantage", "decay": 0.5, "order": "update_then_subtract"},
    )
    assert stack == [Scale(2), Clamp(-0.5, 0.5), RoleAdvantage(0.5, "update_then_subtract")]


@pytest.mark.parametrize("kind", [FINAL_REWARDS, STEP_REWARDS, SAMPLING_REWARDS])
def test_every_transform_can_be_built_from_its_name_alone(kind):
    stack = build_stack([{"name": name} for name in kind.names()], kind, "p")
    assert [type(transform) for transform in stack] == [kind.find(name) for name in kind.names()]


def test_a_flag_must_be_a_flag_and_a_discount_at_most_one():
    with pytest.raises(ConfigError, match=r"p\[0\]\.z_score: 1 must be true or false"):
        build_stack([{"name": "normalize", "z_score": 1}], SAMPLING_REWARDS, "p")
    stack = build_stack([{"name": "normalize", "z_score": True}], SAMPLING_REWARDS, "p")
    assert stack == [Normalize(z_score=True)]
    with pytest.raises(ConfigError, match=r"rewards\.final\[0\]: 'scale' names no reward"):
        build_final("scale")
    with pytest.raises(ConfigError, match=r"p\[0\]\.alpha: nan must be a finite"):
        build_stack([{"name": "scale", "alpha": float("nan")}], FINAL_REWARDS, "p")
    with pytest.raises(ConfigError, match=r"p\[0\]\.gamma: 1.1 is outside"):
        build_stack([{"name": "discount", "gamma": 1.1}], STEP_REWARDS, "p")


@pytest.mark.parametrize("kind", [STEP_REWARDS, SAMPLING_REWARDS])
def test_clamps_refuse_an_empty_interval(kind):
    with pytest.raises(ConfigError, match=r"p\[0\]\.min_r: 1 is above max_r 0"):
        build_stack([{"name": "clamp", "min_r": 1, "max_r": 0}], kind, "p")
