"""Final transforms on the rewards of all players of a game."""

import json
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import factories

from rlforge.rewards.final import Clamp, RoleAdvantage, RoleAdvantageByEnv, Scale, WinDrawLoss
from rlforge.types import EnvSpec

games = st.lists(st.dictionaries(st.sampled_from([0, 1]), st.floats(-2, 2)), max_size=20)


def shaped(transform, rewards, env_id="env", learned=None, win_score=1.0):
    """What the transform makes of a game; learned None: every player is learned from."""
    spec = factories.game_spec(env=EnvSpec(id=env_id, win_score=win_score), seats=())
    record = factories.game_record(spec, (), rewards)
    return transform.of_game(rewards, record, rewards if learned is None else learned)


@pytest.mark.parametrize(
    ("raw", "paid"),
    [
        ({0: 0.3, 1: 0.7}, {0: -1, 1: 1}),
        ({0: -1, 1: -1}, {0: 0, 1: 0}),
        ({0: 1, 1: 0, 2: -1}, {0: 1, 1: -1, 2: -1}),
        ({0: 1, 1: 1, 2: -1}, {0: 0, 1: 0, 2: -1}),
        ({0: 1}, {0: 1}),
        ({0: 0.95}, {0: -1}),
        ({0: 0}, {0: -1}),
    ],
)
def test_win_draw_loss(raw, paid):
    assert shaped(WinDrawLoss(), raw) == paid


def test_win_draw_loss_with_other_values():
    transform = WinDrawLoss(win=3, draw=1, loss=0)
    assert shaped(transform, {0: 1, 1: -1}) == {0: 3, 1: 0}
    assert shaped(transform, {0: 0, 1: 0}) == {0: 1, 1: 1}


@given(
    st.dictionaries(st.integers(0, 3), st.sampled_from([-1.0, 0.0, 0.05, 0.5, 1.0]), min_size=1),
    st.sampled_from([0.05, 0.5, 1.0]),
)
def test_a_seat_is_paid_for_what_its_game_is_counted_as(rewards, win_score):
    env = EnvSpec(id="Game-v0", win_score=win_score)
    worth = {"win": 1, "draw": 0, "loss": -1}
    counted = {player: worth[env.outcome(rewards, player)] for player in rewards}
    assert shaped(WinDrawLoss(), rewards, win_score=win_score) == counted


def test_scores_of_single_players_may_stay_as_they_are():
    transform = WinDrawLoss(single_player="score")
    assert shaped(transform, {0: 0.05}) == {0: 0.05}
    assert shaped(transform, {0: 0.05, 1: 0.3}) == {0: -1, 1: 1}


def test_scale_and_clamp_leave_their_input_alone():
    raw = {0: 4.0, 1: -4.0}
    assert Scale(0.5)(raw, "env") == {0: 2.0, 1: -2.0}
    assert Clamp(-1, 3)(raw, "env") == {0: 3, 1: -1}
    assert raw == {0: 4.0, 1: -4.0}


def test_role_advantage_by_hand_subtracting_first():
    transform = RoleAdvantage(decay=0.5)
    assert shaped(transform, {0: 1, 1: -1}) == {0: 1, 1: -1}  # baselines 0 and 0
    assert shaped(transform, {0: 1, 1: -1}) == {0: 0.5, 1: -0.5}  # baselines 0.5 and -0.5
    assert shaped(transform, {0: -1, 1: 1}) == {0: -1.75, 1: 1.75}  # baselines 0.75 and -0.75


@given(games, st.floats(0, 0.99))
def test_updating_first_shrinks_every_advantage_by_the_decay(history, decay):
    first = RoleAdvantage(decay=decay)
    other = RoleAdvantage(decay=decay, order="update_then_subtract")
    for rewards in history:
        before, after = shaped(first, rewards), shaped(other, rewards)
        assert after == pytest.approx({role: decay * x for role, x in before.items()}, abs=1e-12)


@pytest.mark.parametrize("order", ["subtract_then_update", "update_then_subtract"])
def test_a_learner_that_always_loses_to_an_untrained_opponent_has_no_advantage(order):
    """The seats alternate: were the opponent's wins averaged too, the baselines would stay at 0."""
    transform, newest = RoleAdvantageByEnv(order=order), deque(maxlen=100)
    for game in range(400):
        learner = game % 2
        newest.append(shaped(transform, {learner: -1, 1 - learner: 1}, learned=[learner])[learner])
    assert newest[0] == pytest.approx(0, abs=1e-3)
    assert transform.state_dict() == {
        "baselines": [["env", role, pytest.approx(-1, abs=1e-3)] for role in (0, 1)]
    }


def test_the_default_decay_is_that_of_spiral():
    assert RoleAdvantageByEnv() == RoleAdvantageByEnv(decay=0.95, order="subtract_then_update")


def test_baselines_by_env_do_not_mix_and_others_do():
    by_env, common = RoleAdvantageByEnv(decay=0.5), RoleAdvantage(decay=0.5)
    for transform in (by_env, common):
        shaped(transform, {0: 1.0}, "a")
    assert shaped(by_env, {0: 1.0}, "b") == {0: 1.0}
    assert shaped(by_env, {0: 1.0}, "a") == {0: 0.5}
    assert shaped(common, {0: 1.0}, "b") == {0: 0.5}


@given(games, games)
def test_baselines_survive_a_round_trip_through_json(before, after):
    kept, restored = RoleAdvantageByEnv(), RoleAdvantageByEnv()
    for index, rewards in enumerate(before):
        shaped(kept, rewards, f"env{index % 2}")
    restored.load_state_dict(json.loads(json.dumps(kept.state_dict())))
    for index, rewards in enumerate(after):
        env_id = f"env{index % 3}"
        assert shaped(restored, rewards, env_id) == shaped(kept, rewards, env_id)
