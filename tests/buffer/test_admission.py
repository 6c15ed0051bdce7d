"""How many games may start."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.buffer.games import make_game

from rlforge.buffer import BUFFERS, BufferSettings, EpisodeBuffer, StepBuffer
from rlforge.buffer.admission import Admission, Yield


def buffer_of(kind, **settings):
    defaults = {"max_size": 10_000, "max_staleness": 0, "batch_delay": 1.0, "seed": 0}
    return kind(BufferSettings(**{**defaults, **settings}))


def admission_of(*, samples_per_game=1.0, **settings):
    defaults = {"max_size": 1000, "max_staleness": 1, "batch_size": 10, "batch_delay": 1.0}
    return Admission(BufferSettings(**defaults | settings, seed=0), samples_per_game)


def test_the_kind_in_the_configuration_is_the_one_in_a_checkpoint():
    assert all(BUFFERS[kind].kind == kind for kind in ("step", "episode"))


def test_the_initial_estimate_of_samples_per_game_is_configurable():
    def first_grant(**guess):
        return buffer_of(StepBuffer, batch_size=64, **guess).reserve(1000)

    assert first_grant() == 8
    assert first_grant(samples_per_game=16.0) == 4


def test_stored_and_expected_samples_fill_one_batch():
    admission = admission_of(samples_per_game=2.0)
    assert admission.reserve(100, stored=3, lacks=10) == 3
    assert admission.reserve(100, stored=3, lacks=10) == 0
    admission.drawn(13, version=0)
    admission.release(3)
    assert admission.reserve(100, stored=0, lacks=10) == 3


def test_no_more_is_expected_than_is_kept():
    assert admission_of(max_size=8).reserve(100, stored=0, lacks=10) == 8


def test_the_expectation_is_that_of_a_game_in_progress():
    """At a random moment a game of 30 turns is in progress ten times as often as one of 3."""
    admission = admission_of(samples_per_game=50.0)
    assert admission.samples_per_game == 50
    admission.observe(Yield(0, 0, 0))
    assert admission.samples_per_game == 50
    for samples in (3, 0, 30):
        admission.observe(Yield(samples, samples, 0))
    assert admission.samples_per_game == pytest.approx((1 * 3 + 10 * 30) / 11)


def test_games_played_before_the_start_are_the_first_expectation():
    assert admission_of(games=((2, 2), (0, 0), (4, 4))).samples_per_game == pytest.approx(20 / 6)


def test_rounding_of_the_mean_yield_does_not_cost_a_game():
    admission = admission_of(batch_size=29)
    for samples in (2, 5):  # 29 / 7 a game
        admission.observe(Yield(samples, samples, 0))
    assert admission.reserve(100, stored=0, lacks=10) == 7


def test_one_game_may_start_when_none_runs_and_a_batch_is_incomplete():
    admission = admission_of(samples_per_game=100.0)
    assert admission.reserve(5, stored=8, lacks=0) == 0
    assert admission.reserve(0, stored=8, lacks=10) == 0
    assert admission.reserve(5, stored=8, lacks=10) == 1
    assert admission.reserve(5, stored=8, lacks=10) == 0


def test_a_batch_counts_until_the_version_made_of_it_is_published():
    admission = admission_of(max_staleness=0)
    admission.drawn(10, version=0)
    assert admission.reserve(5, stored=0, lacks=10) == 0
    admission.published(0)
    assert admission.reserve(5, stored=0, lacks=10) == 0
    admission.published(1)
    admission.drawn(5, version=1)
    assert admission.reserve(100, stored=0, lacks=10) == 5
    admission.published(1)  # the newer batch goes on counting
    assert admission.reserve(100, stored=0, lacks=10) == 0


def test_impossible_numbers_are_refused():
    admission = admission_of()
    admission.reserve(2, stored=0, lacks=10)
    for games in (-1, 3):
        with pytest.raises(ValueError, match="cannot release"):
            admission.release(games)
    with pytest.raises(ValueError, match="cannot reserve -1"):
        admission.reserve(-1, 0, 1)
    with pytest.raises(ValueError, match="must be above 0"):
        admission_of(samples_per_game=0.0)


def play_updates(buffer, batch_size, updates, game, rng, workers=50):
    """Collect and learn in turn, games ending in random order; returns the unused samples."""
    waste = games = 0
    for version in range(updates):
        buffer.set_version(version)
        under_way = []
        while not buffer.ready():
            granted = buffer.reserve(workers - len(under_way))
            for _ in range(granted):
                under_way.append(game(f"g{games}", version))
                games += 1
            assert under_way, "nothing is under way, and nothing may start"
            buffer.add(under_way.pop(rng.randrange(len(under_way))))
            buffer.release(1)
        assert buffer.draw(batch_size, version) is not None
        waste += buffer.size()
        for ended in under_way:
            buffer.add(ended)
            size = len if buffer.kind == "step" else bool
            waste += sum(size(episode) for game in ended for episode in game.episodes)
            buffer.release(1)
        assert buffer.reserve(workers) == 0, "a game would be too old for the next update"
    return waste


@given(seats=st.integers(1, 4), batches=st.integers(1, 8), workers=st.integers(1, 40))
def test_strictly_on_policy_episodes_meet_the_batch_exactly(seats, batches, workers):
    batch_size = 4 * seats * batches
    buffer = buffer_of(EpisodeBuffer, batch_size=batch_size, samples_per_game=float(seats))

    def game(origin, version):
        return [make_game(origin, (version,), range(seats))]

    assert play_updates(buffer, batch_size, 3, game, random.Random(1), workers) == 0


def test_strictly_on_policy_groups_meet_the_batch_exactly():
    buffer = buffer_of(EpisodeBuffer, batch_size=32)

    def game(origin, version):
        group = f"grp{int(origin[1:]) // 4}"
        return [make_game(origin, (version,), (0, 1), group, 4)]

    assert play_updates(buffer, 32, 5, game, random.Random(1)) == 0


@given(equal=st.floats(0, 0.8), seed=st.integers(0, 100), staleness=st.integers(0, 2))
def test_replaced_groups_leave_whole_batches_with_advantages(equal, seed, staleness):
    rng = random.Random(seed)
    buffer = buffer_of(
        EpisodeBuffer, batch_size=16, max_staleness=staleness, max_replaced=10**6, seed=seed
    )
    constant, under_way, games, most = {}, [], 0, 16 * (staleness + 1)
    for version in range(4):
        buffer.set_version(version)
        while under_way or not buffer.ready():
            for _ in range(buffer.reserve(50)):
                group = f"grp{games // 4}"
                constant.setdefault(group, rng.random() < equal)
                under_way.append((f"g{games}", group, version, 0.0 if constant[group] else games))
                games += 1
            assert buffer.size() + 2 * len(under_way) <= most
            name, group, by, reward = under_way.pop(rng.randrange(len(under_way)))
            buffer.add([make_game(name, (by,), (0, 1), group, 4, reward)])
            buffer.release(1)
        batch = buffer.draw(16, version)
        assert batch is not None
        assert len(batch.samples) == 16
        assert batch.dropped_stale == 0
        assert not any(constant[sample.group_id] for sample in batch.samples)
    assert buffer.in_flight == 0


def test_a_wrong_initial_estimate_wastes_samples_of_one_update_only():
    buffer = buffer_of(EpisodeBuffer, batch_size=40, samples_per_game=1.0)

    def game(origin, version):
        return [make_game(origin, (version,), (0, 1))]

    rng = random.Random(1)
    assert play_updates(buffer, 40, 1, game, rng) == 40
    buffer = buffer_of(EpisodeBuffer, batch_size=40, samples_per_game=1.0)
    assert play_updates(buffer, 40, 10, game, rng) == 40


def test_strictly_on_policy_steps_waste_less_than_a_tenth():
    rng = random.Random(0)
    buffer = buffer_of(StepBuffer, batch_size=384)

    def game(origin, version):
        turns = rng.randrange(3, 10)
        return [make_game(origin, (version,) * turns, (0, 1))]

    waste = play_updates(buffer, 384, 20, game, rng, workers=100)
    assert waste < 0.1 * 20 * 384


@given(failing=st.floats(0, 0.9), seed=st.integers(0, 100))
def test_failing_games_do_not_stop_collection(failing, seed):
    rng = random.Random(seed)
    buffer = buffer_of(EpisodeBuffer, batch_size=8)

    def game(origin, version):
        return [] if rng.random() < failing else [make_game(origin, (version,))]

    play_updates(buffer, 8, 2, game, rng)


def test_with_staleness_games_start_while_the_learner_works():
    buffer = buffer_of(EpisodeBuffer, batch_size=8, max_staleness=1, samples_per_game=1.0)
    assert buffer.reserve(100) == 8
    buffer.add([make_game(f"g{i}") for i in range(8)])
    buffer.release(8)
    assert buffer.draw(8, version=0) is not None
    assert buffer.reserve(100) == 8
    assert buffer.reserve(100) == 0
    buffer.set_version(1)
    assert buffer.reserve(100) == 0


@settings(max_examples=40)
@given(
    staleness=st.integers(1, 3),
    delay=st.integers(0, 3),
    seed=st.integers(0, 10_000),
    kind=st.sampled_from([StepBuffer, EpisodeBuffer]),
)
def test_no_game_goes_stale_in_any_order_of_playing_learning_publishing(
    staleness, delay, seed, kind
):
    rng = random.Random(seed)
    buffer = buffer_of(
        kind, batch_size=8, max_size=64, max_staleness=staleness, samples_per_game=2.0, seed=seed
    )
    under_way, unpublished, version, published, games, dropped = [], [], 0, 0, 0, 0.0
    for _ in range(400):
        for _ in range(buffer.reserve(rng.randrange(1, 9))):
            under_way.append((f"g{games}", published))
            games += 1
        # Games end in any order, but all before the next draw.
        rng.shuffle(under_way)
        keep = rng.randrange(len(under_way) + 1)
        while len(under_way) > keep:
            origin, by = under_way.pop()
            buffer.add([make_game(origin, (by,), (0, 1))])
            buffer.release(1)
        if buffer.ready() and not under_way and len(unpublished) < 2:
            batch = buffer.draw(8, version)
            assert batch is not None
            dropped += batch.dropped_stale
            version += 1
            unpublished.append(version)
        if unpublished and rng.randrange(delay + 1) == 0:
            published = unpublished.pop(0)
            buffer.set_version(published)
    assert version > 10
    assert dropped == 0


def test_games_in_progress_do_not_survive_a_restart():
    buffer = buffer_of(StepBuffer, batch_size=8, samples_per_game=1.0)
    buffer.reserve(8)
    buffer.add([make_game("g", (0, 0))])
    again = buffer_of(StepBuffer, batch_size=8, samples_per_game=1.0)
    again.reserve(5)
    again.load_state_dict(buffer.state_dict())
    assert again.in_flight == 0
    assert again.reserve(100) == 3  # room for 6 samples, at the 2 a game that were seen


@given(
    save_every=st.integers(1, 4),
    batch_size=st.integers(8, 64),
    turns=st.lists(st.integers(1, 12), min_size=1, max_size=20),
    workers=st.integers(1, 20),
)
def test_the_learner_never_waits_for_ever_between_two_published_versions(
    save_every, batch_size, turns, workers
):
    buffer = buffer_of(
        StepBuffer, batch_size=batch_size, max_staleness=save_every - 1, save_every=save_every
    )
    games = published = 0
    for version in range(3 * save_every):
        under_way = []
        while not buffer.ready():
            under_way += [published] * buffer.reserve(workers - len(under_way))
            assert under_way, "nothing is under way, and nothing may start"
            played = (under_way.pop(),) * turns[games % len(turns)]
            buffer.add([make_game(f"g{games}", played)])
            buffer.release(1)
            games += 1
        assert buffer.draw(batch_size, version) is not None
        buffer.release(len(under_way))
        if (version + 1) % save_every == 0:
            published = version + 1
            buffer.set_version(published)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", [StepBuffer, EpisodeBuffer])
@pytest.mark.parametrize(("staleness", "update"), [(0, 30), (1, 1), (2, 30)])
def test_long_games_are_learned_from_as_often_as_they_are_played(kind, staleness, update):
    """One game in ten has 100 turns, the others 5; a tick is a turn of each game in progress.

    An update takes ``update`` ticks, so that a long game may last many updates.
    """
    rng = random.Random(0)
    size = 256 if kind is StepBuffer else 18
    buffer = buffer_of(kind, batch_size=size, max_staleness=staleness)
    games, under_way, played, learned, ages = {}, {}, Counter(), Counter(), set()
    version, ends, tick = 0, None, 0.0
    while version < 160:
        tick += 1
        if ends == 0:
            buffer.set_version(version)
        ends = None if ends is None or ends == 0 else ends - 1
        for _ in range(buffer.reserve(200 - len(under_way), tick)):
            name = f"g{len(games)}"
            games[name], under_way[name] = rng.choice([5] * 9 + [100]), []
        for name, versions in list(under_way.items()):
            versions.append(buffer.version)
            if len(versions) == games[name]:
                buffer.add([make_game(name, tuple(under_way.pop(name)))])
                buffer.release(1, float(games[name]))
                played[games[name]] += games[name] * (version >= 30)
        if ends is None and buffer.ready() and (batch := buffer.draw(size, version)) is not None:
            ages |= {version - sample.policy_version for sample in batch.samples}
            learned.update(games[sample.origin] for sample in batch.samples if version >= 30)
            version, ends = version + 1, update
    assert learned[5] / learned.total() == pytest.approx(played[5] / played.total(), abs=0.02)
    assert ages == {0} if staleness == 0 else max(ages) > staleness
