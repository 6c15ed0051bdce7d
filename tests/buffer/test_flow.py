"""How many games are in progress, by a simulated clock."""

import pytest
from tests.buffer.simulation import LENGTHS, buffer_for, simulate

from rlforge.buffer import EpisodeBuffer, StepBuffer
from rlforge.buffer.admission import expected_age

BATCH = 192
#: An update needs 384 turns where one seat of two is learned from.
ENGINE_BOUND = {"turns_per_s": 100.0, "turn_s": 1.0, "update_s": 0.5}
LEARNER_BOUND = {"turns_per_s": 100.0, "turn_s": 0.5, "update_s": 7.5}
SLOW_LEARNER = {"turns_per_s": 400.0, "turn_s": 0.02, "update_s": 10.0}


def play(
    lengths, machine, *, kind=StepBuffer, workers=192, updates=60, batch_size=BATCH, **settings
):
    """The outcome, and the buffer, with room for two batches unless ``settings`` say otherwise."""
    settings = {"batch_size": batch_size, "max_size": 2 * batch_size} | settings
    buffer = buffer_for(lengths, workers, kind, **settings)
    outcome = simulate(
        buffer,
        workers=workers or 10_000,
        batch_size=batch_size,
        lengths=lengths,
        updates=updates,
        **machine,
    )
    return outcome, buffer


@pytest.mark.parametrize("lengths", LENGTHS)
def test_where_the_engines_are_the_bottleneck_all_workers_play(lengths):
    outcome, buffer = play(lengths, ENGINE_BOUND, max_staleness=3)
    ramp = round(192 * outcome.per_game / BATCH)
    assert outcome.mean("in_progress", ramp) >= 0.9 * 192
    bound = 1.1 * expected_age(192, outcome.per_game, BATCH) + 1 + 1
    assert outcome.mean("age", 10) <= bound
    assert max(update.age for update in outcome.updates) <= 1.1 * bound
    assert outcome.lost(0, 10) < 0.15
    assert outcome.lost(20) < 0.05
    flow = buffer.flow
    assert flow.waiting > 0.5
    assert flow.age == pytest.approx(expected_age(192, outcome.per_game, BATCH), rel=0.15)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("delay", "batch_size", "update_s"), [(1.0, 192, 7.5), (1.5, 384, 15.0)])
def test_where_the_learner_is_the_bottleneck_no_more_games_play_than_keep_it_busy(
    lengths, delay, batch_size, update_s
):
    """With the delay the buffer has room for a third more than an update waits for only."""
    machine = LEARNER_BOUND | {"update_s": update_s}
    settings = {"batch_size": batch_size, "batch_delay": delay, "max_staleness": 3, "updates": 80}
    outcome, buffer = play(lengths, machine, **settings)
    assert outcome.waiting(40) < 0.05
    assert outcome.lost(0, 10) < 0.15
    assert outcome.lost(40) < 0.05
    games = outcome.mean("in_progress", 40)
    assert games < 0.5 * 192
    age = expected_age(games, outcome.per_game, batch_size)
    assert outcome.mean("age", 40) < 1.1 * age + delay + 1
    assert buffer.flow.waiting < 0.05


@pytest.mark.parametrize("lengths", LENGTHS)
def test_games_shorter_than_an_update_are_played_while_it_is_made(lengths):
    outcome, _ = play(lengths, SLOW_LEARNER, updates=40)
    assert outcome.waiting(10) < 0.05
    assert outcome.lost(0) < 0.05
    assert outcome.mean("age", 10) < 1.3


def test_auto_takes_the_games_that_give_a_mean_age_of_one_update():
    outcome, buffer = play("fixed", ENGINE_BOUND, workers=None)
    assert buffer.flow.workers == pytest.approx(2 * BATCH / outcome.per_game, abs=1)
    assert outcome.mean("age", 10) < 1.1 + 1 + 1
    assert outcome.lost(0) < 0.02


def test_what_passes_the_largest_age_is_dropped_by_whole_games_and_counted():
    """Games of 60 turns last six times as long as those the bound is made for."""
    outcome, _ = play("half_and_half", ENGINE_BOUND, updates=40, max_age=8)
    assert max(update.oldest for update in outcome.updates) <= 8
    assert outcome.lost(0) > 0.1


@pytest.mark.one_in(4)
@pytest.mark.parametrize("delay", [1.0, 1.5])
@pytest.mark.parametrize("save_every", [2, 3])
@pytest.mark.parametrize("update_s", [0.5, 12.0])
def test_with_a_version_published_every_few_updates_little_is_lost(save_every, delay, update_s):
    """Engine-bound and learner-bound: one update more than that may games be old."""
    machine = LEARNER_BOUND | {"update_s": update_s, "save_every": save_every}
    settings = {"max_staleness": save_every + 1, "save_every": save_every, "batch_delay": delay}
    settings |= {"workers": 384, "batch_size": 384, "updates": 50}
    outcome, _ = play("uniform", machine, **settings)
    assert outcome.lost(0, 10) < 0.15
    assert outcome.lost(10) < 0.05
    if update_s > 1:
        assert outcome.waiting(25) < 0.05


def test_games_of_several_batches_are_as_many_as_the_learner_needs():
    machine = ENGINE_BOUND | {"turn_s": 0.05}
    settings = {"workers": 96, "batch_size": 96, "max_size": 2000, "max_staleness": 10}
    outcome, _ = play("long", machine, updates=100, **settings)
    assert outcome.turns / outcome.updates[-1].time > 0.85 * 100
    assert outcome.lost(0) < 0.05


@pytest.mark.one_in(4)
@pytest.mark.parametrize("group_size", [4, 8])
@pytest.mark.parametrize("update_s", [2.0, 20.0])
def test_of_groups_little_is_lost(group_size, update_s):
    machine = {"turns_per_s": 100.0, "turn_s": 0.05, "update_s": update_s, "group_size": group_size}
    settings = {"kind": EpisodeBuffer, "workers": 64, "batch_size": 32, "games": ()}
    outcome, _ = play("uniform", machine, **settings)
    assert outcome.lost(20) < 0.05
    if update_s > 10:
        assert outcome.waiting(20) < 0.05
    else:
        assert outcome.mean("in_progress", 20) > 0.9 * 64


def test_a_group_waits_for_its_last_game_and_the_wait_is_known():
    settings = {"kind": EpisodeBuffer, "workers": 64, "batch_size": 16, "max_size": 64}
    settings |= {"max_staleness": 3, "games": (), "updates": 30}
    outcome, buffer = play("half_and_half", ENGINE_BOUND | {"group_size": 4}, **settings)
    assert buffer.group_wait > 0.5
    assert outcome.mean("in_progress", 20) > 0.9 * 64
