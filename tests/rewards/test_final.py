"""Final transforms on the rewards of all players of a game."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.rewards.final import Clamp, RoleAdvantage, RoleAdvantageByEnv, Scale, WinDrawLoss

games = st.lists(st.dictionaries(st.sampled_from([0, 1]), st.floats(-2, 2)), max_size=20)


@pytest.mark.parametrize(
    ("raw", "shaped"),
    [
        ({0: 0.3, 1: 0.7}, {0: -1, 1: 1}),
        ({0: -1, 1: -1}, {0: 0, 1: 0}),
        ({0: 1, 1: 0, 2: -1}, {0: 1, 1: -1, 2: -1}),
        ({0: 1, 1: 1, 2: -1}, {0: 0, 1: 0, 2: -1}),
        ({0: 0.5}, {0: 1}),
        ({0: 0}, {0: 0}),
        ({0: -0.2}, {0: -1}),
    ],
)
def test_win_draw_loss(raw, shaped):
    assert WinDrawLoss()(raw, "env") == shaped


def test_win_draw_loss_with_other_values():
    transform = WinDrawLoss(win=3, draw=1, loss=0)
    assert transform({0: 1, 1: -1}, "env") == {0: 3, 1: 0}
    assert transform({0: 0, 1: 0}, "env") == {0: 1, 1: 1}


def test_scale_and_clamp_leave_their_input_alone():
    raw = {0: 4.0, 1: -4.0}
    assert Scale(0.5)(raw, "env") == {0: 2.0, 1: -2.0}
    assert Clamp(-1, 3)(raw, "env") == {0: 3, 1: -1}
    assert raw == {0: 4.0, 1: -4.0}


def test_role_advantage_by_hand_subtracting_first():
    transform = RoleAdvantage(decay=0.5)
    assert transform({0: 1, 1: -1}, "a") == {0: 1, 1: -1}  # baselines 0 and 0
    assert transform({0: 1, 1: -1}, "a") == {0: 0.5, 1: -0.5}  # baselines 0.5 and -0.5
    assert transform({0: -1, 1: 1}, "a") == {0: -1.75, 1: 1.75}  # baselines 0.75 and -0.75


def test_role_advantage_by_hand_updating_first():
    transform = RoleAdvantage(decay=0.5, order="update_then_subtract")
    assert transform({0: 1, 1: -1}, "a") == {0: 0.5, 1: -0.5}
    assert transform({0: 1, 1: -1}, "a") == {0: 0.25, 1: -0.25}


@given(games, st.floats(0, 0.99))
def test_updating_first_shrinks_every_advantage_by_the_decay(history, decay):
    first = RoleAdvantage(decay=decay)
    other = RoleAdvantage(decay=decay, order="update_then_subtract")
    for rewards in history:
        before, after = first(rewards, "a"), other(rewards, "a")
        assert after == pytest.approx({role: decay * x for role, x in before.items()}, abs=1e-12)


def test_the_default_decay_is_that_of_spiral():
    assert RoleAdvantageByEnv() == RoleAdvantageByEnv(decay=0.95, order="subtract_then_update")


def test_baselines_by_env_do_not_mix_and_others_do():
    by_env, shared = RoleAdvantageByEnv(decay=0.5), RoleAdvantage(decay=0.5)
    for transform in (by_env, shared):
        transform({0: 1.0}, "a")
    assert by_env({0: 1.0}, "b") == {0: 1.0}
    assert by_env({0: 1.0}, "a") == {0: 0.5}
    assert shared({0: 1.0}, "b") == {0: 0.5}


@given(games, games)
def test_baselines_survive_a_round_trip_through_json(before, after):
    kept, restored = RoleAdvantageByEnv(), RoleAdvantageByEnv()
    for index, rewards in enumerate(before):
        kept(rewards, f"env{index % 2}")
    restored.load_state_dict(json.loads(json.dumps(kept.state_dict())))
    for index, rewards in enumerate(after):
        assert restored(rewards, f"env{index % 3}") == kept(rewards, f"env{index % 3}")
