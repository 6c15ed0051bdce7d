"""What each buffer keeps, draws, evicts and drops."""

import json

import pytest
from tests.buffer.games import joined, make_game

from rlforge.buffer import BufferSettings, EpisodeBuffer, Shaped, StepBuffer
from rlforge.errors import CheckpointError


def buffer_of(kind, **settings):
    defaults = {"max_size": 100, "max_staleness": 1, "batch_size": 2, "batch_delay": 1.0, "seed": 0}
    return kind(BufferSettings(**{**defaults, **settings}))


def restored(buffer, **settings):
    """A buffer with the state of another, as a checkpoint holds it."""
    again = buffer_of(type(buffer), **settings)
    again.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
    return again


@pytest.fixture(params=[StepBuffer, EpisodeBuffer])
def kind(request):
    return request.param


def texts(samples):
    return sorted(f"{sample.origin} at {sample.turn_index}" for sample in samples)


def test_a_step_buffer_counts_steps_and_ignores_groups():
    buffer = buffer_of(StepBuffer, batch_size=3, batch_delay=1.5)
    buffer.add([make_game("a", (0, 0, 0))])
    assert (buffer.size(), buffer.drawable(), buffer.ready()) == (3, 3, False)
    buffer.add([make_game("b", (0, 0))])
    assert buffer.ready()
    buffer.add(group_game("x", 0))
    buffer.add([Shaped([], "x", 2)])
    assert buffer.drawable() == 9


def test_drawn_steps_are_gone():
    buffer = buffer_of(StepBuffer)
    with pytest.raises(ValueError, match="at least 1"):
        buffer.draw(0, version=0)
    buffer.add([make_game("a", (0, 1)), make_game("b", (1,))])
    first = buffer.draw(2, version=1)
    second = buffer.draw(1, version=1)
    assert texts(first.samples + second.samples) == ["a at 0", "a at 1", "b at 0"]
    assert not first.whole_episodes
    assert buffer.size() == 0
    assert buffer.draw(1, version=1) is None
    buffer.add([make_game("c", (2, 1, 3))])
    batch = buffer.draw(3, version=4)
    about = {"min_version": 1, "max_version": 3, "dropped_stale": 0}
    assert batch.facts == {"whole_episodes": False, **about}


def test_stale_steps_are_dropped_counted_and_refused():
    buffer = buffer_of(StepBuffer)
    buffer.add([make_game("a", (0, 0)), make_game("b", (2,))])
    assert buffer.set_version(2) == 2
    buffer.add([make_game("c", (0, 0))])
    assert buffer.size() == 1
    batch = buffer.draw(1, version=3)
    assert (texts(batch.samples), batch.dropped_stale) == (["b at 0"], 4)
    buffer.add([make_game("d", (3,))])
    assert buffer.draw(1, version=3).dropped_stale == 0


def test_updates_without_a_version_make_no_game_stale(kind):
    """Neither while they last nor at the version after them; the state knows of them."""
    buffer = buffer_of(kind, batch_size=1)
    buffer.set_version(2)
    for update in range(3, 9):
        buffer.add([make_game(f"old {update}", (2,))])
        assert buffer.draw(1, version=2, update=update).dropped_stale == 0
        buffer.skipped(update)
    buffer.add([make_game("old", (2,))])
    buffer = restored(buffer, batch_size=1)
    assert buffer.set_version(9) == 0
    assert texts(buffer.draw(1, version=9).samples) == ["old at 0"]
    buffer.add([make_game("older", (1, 1)), make_game("new", (9,))])
    batch = buffer.draw(1, version=9)
    assert (texts(batch.samples), batch.dropped_stale) == (["new at 0"], 2)


def test_the_batch_of_an_update_without_a_version_gives_room_at_once(kind):
    """In rounds, where only room lets games start; twice as many updates as may be unpublished."""
    buffer = buffer_of(kind, max_staleness=1)
    for update in range(1, 5):
        games = buffer.reserve(100)
        assert games >= 1
        buffer.add([make_game(f"{update}-{number}", (0,)) for number in range(games)])
        buffer.release(games)
        while not buffer.ready():
            buffer.reserve(1)
            buffer.add([make_game(f"{update}-more-{buffer.size()}", (0,))])
            buffer.release(1)
        assert buffer.draw(2, version=0, update=update) is not None
        buffer.skipped(update)


def test_a_draw_takes_nothing_when_too_few_fresh_steps_are_left():
    buffer = buffer_of(StepBuffer)
    buffer.add([make_game("a", (0,)), make_game("b", (2,))])
    assert buffer.draw(2, version=2) is None
    assert buffer.size() == 1


@pytest.mark.parametrize(("kind", "samples"), [(StepBuffer, 4), (EpisodeBuffer, 2)])
def test_all_turns_of_a_game_are_as_old_as_its_newest_one(kind, samples):
    """Else early turns of long games, and seats whose game went on without them, would be lost."""
    buffer = buffer_of(kind)
    buffer.set_version(3)
    buffer.add([joined(make_game("a", (0, 1, 3)), make_game("a", (0,), [1]))])
    assert buffer.size() == samples
    again = restored(buffer)
    for each in (buffer, again):
        assert each.set_version(4) == 0
        assert each.draw(samples, version=4).facts["min_version"] == 0
    assert again.set_version(5) == 0
    again.add([make_game("b", (1, 4)), make_game("c", (2, 3))])
    assert again.draw(1, version=5).dropped_stale == 2


def test_on_policy_a_game_is_as_old_as_its_oldest_turn(kind):
    buffer = buffer_of(kind, max_staleness=0)
    buffer.add([make_game("a", (1, 2)), make_game("b", (2,))])
    assert buffer.set_version(2) == 2
    assert buffer.size() == 1
    buffer.add([joined(make_game("c", (2, 2)), make_game("c", (1,), [1]))])
    assert buffer.size() == 1


def test_on_policy_the_learner_waits_for_the_games_in_progress(kind):
    buffer = buffer_of(kind, max_staleness=0, samples_per_game=1.0)
    assert buffer.reserve(2) == 2
    buffer.add([make_game(f"g{index}") for index in range(4)])
    buffer.release(1)
    assert (buffer.drawable(), buffer.ready()) == (4, False)
    buffer.release(1)
    assert buffer.ready()


def test_the_learner_may_be_ahead_of_the_published_version():
    buffer = buffer_of(StepBuffer)
    buffer.add([make_game("a", (2, 2))])
    assert buffer.draw(1, version=3) is not None
    buffer.set_version(2)
    assert buffer.version == 3


def test_a_full_buffer_evicts_and_clear_empties_it(kind):
    buffer = buffer_of(kind, max_size=3)
    buffer.add([make_game(origin) for origin in "abcde"])
    assert (buffer.size(), buffer.drawable()) == (3, 3)
    buffer.add([make_game("f", (0, 0)), make_game("g", group_id="grp", group_size=2)])
    buffer.clear()
    assert (buffer.size(), buffer.drawable()) == (0, 0)


def test_episodes_stay_whole_adjacent_and_in_order():
    buffer = buffer_of(EpisodeBuffer, batch_size=3)
    buffer.add([make_game(origin, (0,) * 3, (0, 1)) for origin in "ab"])
    batch = buffer.draw(3, version=0)
    assert batch.whole_episodes
    assert len(batch.samples) == 9
    for start in (0, 3, 6):
        episode = batch.samples[start : start + 3]
        assert len({sample.episode for sample in episode}) == 1
        assert [sample.turn_index for sample in episode] == [0, 1, 2]


def group_game(group, game, version=0, size=2, seats=2):
    return [make_game(f"{group}-{game}", (version, version), range(seats), group, size)]


def test_a_group_is_drawn_only_when_all_its_games_are_there():
    buffer = buffer_of(EpisodeBuffer)
    buffer.add(group_game("x", 0))
    assert (buffer.size(), buffer.drawable()) == (2, 0)
    buffer.add(group_game("y", 0))
    assert buffer.draw(1, version=0) is None
    buffer.add(group_game("x", 1))
    assert (buffer.size(), buffer.drawable()) == (6, 4)
    batch = buffer.draw(4, version=0)
    assert {sample.group_id for sample in batch.samples} == {"x"}
    assert len({sample.episode for sample in batch.samples}) == 4


def test_groups_are_drawn_whole_until_the_batch_is_full_and_evicted_whole():
    buffer, small = buffer_of(EpisodeBuffer), buffer_of(EpisodeBuffer, max_size=9)
    for group in "abc":
        for game in range(2):
            for each in (buffer, small):
                each.add(group_game(group, game))
    assert len({s.episode for s in buffer.draw(8, version=0).samples}) == 8
    assert len({s.episode for s in buffer.draw(3, version=0).samples}) == 4
    assert small.size() == 8
    assert len({s.group_id for s in small.draw(8, version=0).samples}) == 2


def test_a_group_that_is_not_complete_takes_no_room_and_is_not_evicted():
    buffer = buffer_of(EpisodeBuffer, max_size=3)
    buffer.add(group_game("x", 0))
    buffer.add([make_game("a"), make_game("b")])
    assert (buffer.size(), buffer.drawable()) == (4, 2)
    buffer.add(group_game("x", 1))  # now the group is four episodes, and too many to stay
    assert buffer.size() == buffer.drawable() <= 3


def test_later_games_of_a_group_that_was_dropped_are_refused_and_counted():
    buffer = buffer_of(EpisodeBuffer)
    buffer.add(group_game("x", 0, version=0))
    dropped = buffer.set_version(3)
    buffer.add(group_game("x", 1, version=3))
    buffer.add([make_game(str(number), (3, 3)) for number in range(8)])
    assert (buffer.size(), dropped > 0) == (8, True)
    buffer.draw(8, version=3)
    assert buffer.losses.stale == 2 * dropped


def test_a_group_is_as_old_as_its_last_game():
    buffer = buffer_of(EpisodeBuffer)
    buffer.add(group_game("x", 0, version=0))
    assert buffer.set_version(1) == 0
    buffer.add(group_game("x", 1, version=1))
    buffer.add(group_game("y", 0, version=0))
    assert buffer.set_version(2) == 4
    assert buffer.size() == 4
    buffer.add(group_game("y", 1, version=2))
    assert buffer.size() == 4


def test_on_policy_a_group_is_dropped_whole_when_one_of_its_games_is_stale():
    buffer = buffer_of(EpisodeBuffer, max_staleness=0)
    buffer.add(group_game("x", 0, version=0, size=3))
    buffer.add(group_game("x", 1, version=2, size=3))
    buffer.add(group_game("y", 0, version=0))
    buffer.add(group_game("y", 1, version=2))
    assert buffer.set_version(2) == 16
    assert buffer.size() == 0
    buffer.add(group_game("x", 2, version=2, size=3))
    assert buffer.size() == 0


def test_on_policy_a_late_stale_episode_drops_its_group():
    buffer = buffer_of(EpisodeBuffer, max_staleness=0)
    buffer.set_version(2)
    buffer.add(group_game("x", 0, version=2))
    buffer.add(group_game("x", 1, version=0))
    assert buffer.size() == 0
    buffer.add([make_game("a", (2,))])
    # The stored game's four samples, and those of the late game.
    assert buffer.draw(1, version=2).dropped_stale == 8


def test_a_group_is_complete_without_the_games_that_are_passed_over():
    buffer = buffer_of(EpisodeBuffer)
    buffer.add([Shaped([], "x", 3)])
    buffer.add(group_game("x", 0, size=3))
    assert buffer.drawable() == 0
    buffer.add(group_game("x", 1, size=3, seats=1))
    assert (buffer.size(), buffer.drawable()) == (3, 3)
    buffer.add(group_game("y", 0))
    buffer.add([Shaped([], "y", 2)])
    assert buffer.drawable() == 5
    for _ in range(2):
        buffer.add([Shaped([], "none of it", 2)])
    assert (buffer.size(), buffer.state_dict()["given_up"]) == (5, {})


def test_refused_groups_are_forgotten_once_they_would_be_stale():
    buffer = buffer_of(EpisodeBuffer)
    buffer.add(group_game("x", 0))
    buffer.clear()
    buffer.add(group_game("x", 1))
    assert buffer.size() == 0
    buffer.add([Shaped([], "x", 2)])
    buffer.set_version(1)
    assert buffer.state_dict()["given_up"] == {"x": 0}
    buffer.set_version(2)
    assert buffer.state_dict()["given_up"] == {}


def scored_group(group, rewards):
    """Two games of a group; ``rewards``: for each the rewards of its seats."""
    return [
        joined(*(make_game(f"{group}-{game}", (0,), [n], group, 2, r) for n, r in enumerate(seats)))
        for game, seats in enumerate(rewards)
    ]


def test_groups_of_equal_scores_are_left_out_and_counted():
    buffer = buffer_of(EpisodeBuffer, max_replaced=100)
    buffer.add(scored_group("equal", [(1.0, -1.0), (1.0, -1.0)]))
    assert (buffer.size(), buffer.drawable()) == (0, 0)
    buffer.add(scored_group("one seat", [(0.3, -1.0), (0.1 + 0.2, 1.0)]))
    assert (buffer.size(), buffer.drawable()) == (4, 4)
    assert {sample.group_id for sample in buffer.draw(4, version=0).samples} == {"one seat"}
    assert buffer.replaced == 4
    # A score is the mean reward of the turns.
    buffer.add([make_game(f"g{n}", (0,) * n, [0], "x", 2, reward=0.7) for n in (1, 3)])
    assert buffer.size() == 0


def test_beyond_the_limit_groups_of_equal_scores_fill_the_batch():
    buffer = buffer_of(EpisodeBuffer, max_replaced=8)
    for index in range(3):
        buffer.add(scored_group(f"equal {index}", [(0.0, 0.0)] * 2))
    assert buffer.drawable() == 4
    assert buffer.draw(4, version=0) is not None
    assert buffer.replaced == 8
    buffer.add(scored_group("next batch", [(0.0, 0.0)] * 2))
    assert buffer.size() == 0
    buffer.add([make_game("a"), make_game("b")])  # of no group
    assert buffer.drawable() == 2


def test_a_restored_buffer_goes_on_counting_what_it_left_out():
    buffer = buffer_of(EpisodeBuffer, max_replaced=6)
    buffer.add(scored_group("equal", [(0.0, 0.0)] * 2))
    again = restored(buffer, max_replaced=6)
    again.add(scored_group("as equal", [(0.0, 0.0)] * 2))
    assert again.drawable() == 4


def test_a_restored_buffer_makes_the_same_draws(kind):
    buffer = buffer_of(kind, max_size=30)
    for index in range(40):
        buffer.add([make_game(f"g{index}", (0, index % 3))])
        buffer.add(group_game(f"grp{index // 2}", index % 2, version=1))
    buffer.add(group_game("open", 0, version=1))
    buffer.set_version(1)
    buffer.add([Shaped([], "short", 2)])
    again = restored(buffer, max_size=30, seed=9)
    assert json.dumps(again.state_dict()) == json.dumps(buffer.state_dict())
    for each in (buffer, again):
        each.add(group_game("open", 1, version=1))
        each.add(group_game("short", 0, version=1))
    assert again.draw(8, version=2) == buffer.draw(8, version=2)
    assert again.size() == buffer.size()


def test_the_state_of_another_kind_is_refused():
    state = buffer_of(StepBuffer).state_dict()
    with pytest.raises(CheckpointError, match=r"resume with buffer\.kind=step"):
        buffer_of(EpisodeBuffer).load_state_dict(state)


def test_the_state_of_an_earlier_version_is_refused(kind):
    state = buffer_of(kind).state_dict()
    del state["form"]
    with pytest.raises(CheckpointError, match=r"earlier version of rlforge; go on with that"):
        buffer_of(kind).load_state_dict(state)


def test_the_seed_decides_the_draw(kind):
    def drawn(seed):
        buffer = buffer_of(kind, seed=seed)
        buffer.add([make_game(f"g{index}") for index in range(50)])
        return buffer.draw(10, version=0)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_updates_of_other_policies_make_nothing_stale(kind):
    buffer = buffer_of(kind, batch_size=1, wait=3)  # its own updates are 1, 4 and 7
    buffer.add([make_game("a", (1,)), make_game("b", (4,))])
    buffer.set_version(4)
    assert texts(buffer.draw(1, version=4).samples) == ["a at 0"]
    buffer.set_version(8)
    assert buffer.draw(1, version=8) is None
    assert buffer.size() == 0


def test_a_policy_that_begins_anew_learns_from_no_former_version(kind):
    buffer = buffer_of(kind, batch_size=1, max_staleness=9)
    buffer.add([make_game("a", (3,))])
    buffer.begin_anew(5)
    assert buffer.size() == 0
    buffer.add([make_game("late", (3, 4))])
    assert buffer.size() == 0
    buffer.add([make_game("new", (4, 5))])
    for each in (buffer, restored(buffer, batch_size=1, max_staleness=9)):
        before = each.size()
        each.add([make_game("later", (4,))])
        assert each.size() == before > 0
        drawn = each.draw(2 if kind is StepBuffer else 1, version=5)
        assert texts(drawn.samples) == ["new at 0", "new at 1"]
