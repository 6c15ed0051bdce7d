"""In any order of calls: no sample is lost, duplicated, stale or preferred."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.buffer import games

from rlforge.buffer import BufferSettings, EpisodeBuffer, Shaped, StepBuffer

MAX_SIZE, MAX_STALENESS, GROUP_SIZE = 12, 1, 2


def make_game(origin, versions, seats=1, group_id=None):
    size = 1 if group_id is None else GROUP_SIZE
    return games.make_game(origin, versions, range(seats), group_id, size)


def keys(samples):
    return [(sample.origin, sample.player_id, sample.turn_index) for sample in samples]


class BufferMachine(RuleBasedStateMachine):
    """Adds, draws, evictions, version changes and restarts, against a simple reference count."""

    kind = StepBuffer

    def __init__(self):
        super().__init__()
        self.buffer = self.kind(self.settings())
        self.offered, self.drawn = [], []
        self.stored = self.evicted = self.dropped = 0
        self.games = 0
        self.passed_over = Counter()
        self.version = 0

    def settings(self):
        return BufferSettings(
            max_size=MAX_SIZE, max_staleness=MAX_STALENESS, batch_size=4, batch_delay=1.0, seed=1
        )

    def samples(self, samples):
        if self.kind is StepBuffer:
            return len(samples)
        return len({sample.episode for sample in samples})

    def versions_that_count(self, samples):
        """The versions that staleness counts from: the newest of a game, or of a stored group."""
        newest = {}
        for sample in self.offered if self.kind is StepBuffer else samples:
            unit = self.unit(sample)
            newest[unit] = max(sample.policy_version, newest.get(unit, 0))
        return [newest[self.unit(sample)] for sample in samples]

    def unit(self, sample):
        return sample.origin if self.kind is StepBuffer else sample.group_id or sample.origin

    def add(self, game):
        before, refused = self.buffer.size(), self.is_refused(game)
        self.buffer.add([game])
        turns = [turn for episode in game.episodes for turn in episode]
        self.offered += turns
        stored = 0 if refused else self.samples(turns)
        evicted = before + stored - self.buffer.size()
        # Only what may be drawn counts, before something is evicted.
        excess = max(0, self.buffer.drawable() + evicted - MAX_SIZE)
        # Samples go one at a time, groups whole.
        whole = 0 if self.kind is StepBuffer else GROUP_SIZE * 2 - 1
        assert excess <= evicted <= (excess + whole if excess else 0)
        self.stored += stored
        self.evicted += evicted

    def is_refused(self, game):
        """Whether a game is stale, or its group is dropped."""
        newest = max(turn.policy_version for episode in game.episodes for turn in episode)
        group_id = game.episodes[0][0].group_id
        if self.kind is EpisodeBuffer and group_id is not None:
            state = self.buffer.state_dict()
            if group_id in state["given_up"]:
                return True
            for group in state["groups"]:
                if group["group_id"] == group_id and 0 < len(group["played"]) < group["games"]:
                    newest = max(newest, group["stamp"][0] - MAX_STALENESS)
        return newest < self.version - MAX_STALENESS

    @rule(turns=st.lists(st.integers(0, 2), min_size=1, max_size=4), seats=st.integers(1, 2))
    def add_game(self, turns, seats):
        self.games += 1
        versions = [max(0, self.version - age) for age in sorted(turns, reverse=True)]
        self.add(make_game(f"g{self.games}", versions, seats))

    @rule(group=st.integers(0, 3), age=st.integers(0, 2))
    def add_game_of_a_group(self, group, age):
        self.games += 1
        version = max(0, self.version - age)
        self.add(make_game(f"g{self.games}", [version], 2, f"group{group} of {self.version}"))

    @rule(group=st.integers(0, 3))
    def pass_over(self, group):
        before = self.buffer.size()
        self.buffer.add([Shaped([], f"group{group} of {self.version}", GROUP_SIZE)])
        self.evicted += before - self.buffer.size()
        self.passed_over[f"group{group} of {self.version}"] += 1

    @rule(n=st.integers(1, 6), newer=st.booleans())
    def draw(self, n, newer):
        self.version += newer
        before = self.buffer.drawable()
        batch = self.buffer.draw(n, self.version)
        if batch is None:
            assert self.buffer.drawable() < n
            return
        assert n <= self.samples(batch.samples) < n + GROUP_SIZE * 2
        assert self.buffer.drawable() <= before - n
        ages = self.version - np.array(self.versions_that_count(batch.samples))
        assert ages.max() <= MAX_STALENESS
        self.drawn += batch.samples
        self.dropped += batch.dropped_stale
        for group_id in {sample.group_id for sample in batch.samples} - {None}:
            if self.kind is EpisodeBuffer:
                games = {s.origin for s in batch.samples if s.group_id == group_id}
                assert len(games) >= GROUP_SIZE - self.passed_over[group_id]

    @rule()
    def publish(self):
        self.version += 1
        self.buffer.set_version(self.version)

    @rule()
    def restart(self):
        state = self.buffer.state_dict()
        self.buffer = self.kind(self.settings())
        self.buffer.load_state_dict(state)

    @invariant()
    def nothing_is_drawn_twice_or_invented(self):
        counts = Counter(keys(self.drawn))
        assert set(counts.values()) <= {1}
        assert counts.keys() <= set(keys(self.offered))

    @invariant()
    def the_limit_holds(self):
        assert 0 <= self.buffer.drawable() <= min(MAX_SIZE, self.buffer.size())

    def teardown(self):
        """At the end every sample was drawn, evicted or dropped, or is stored."""
        inside = self.buffer.state_dict()
        if self.kind is StepBuffer:
            left = inside["turns"]
            # Every sample that is not stored, drawn or evicted was dropped as stale.
            self.dropped += inside["losses"]["stale"]
            total = len(self.drawn) + self.evicted + self.dropped + len(left)
            assert total == len(self.offered)
        else:
            episodes = [e for g in inside["groups"] for game in g["played"] for e in game]
            left = [turn for episode in episodes for turn in episode]
            assert len(episodes) == self.buffer.size()
            accounted = self.samples(self.drawn) + self.evicted + len(episodes)
            assert accounted <= self.stored
        seen = Counter(keys(self.drawn))
        seen.update(
            (sample["origin"], sample["player_id"], sample["turn_index"]) for sample in left
        )
        assert set(seen.values()) <= {1}
        # Samples of fresh games without a group are only missing if they were evicted.
        oldest = self.version - MAX_STALENESS
        newest = {s.origin: s.policy_version for s in self.offered}
        stale = {origin for origin, version in newest.items() if version < oldest}
        fresh = [s for s in self.offered if s.origin not in stale and s.group_id is None]
        gone = [sample for sample in fresh if keys([sample])[0] not in seen]
        assert self.samples(gone) <= self.evicted
        super().teardown()


class EpisodeBufferMachine(BufferMachine):
    kind = EpisodeBuffer


TestStepBuffer = BufferMachine.TestCase
TestEpisodeBuffer = EpisodeBufferMachine.TestCase
TestStepBuffer.settings = settings(max_examples=60, stateful_step_count=40)
TestEpisodeBuffer.settings = TestStepBuffer.settings


# Upper 0.1 % point of chi-square with 19 degrees of freedom.
CHI_SQUARE_19 = 43.82


def chi_square(counts, categories):
    expected = sum(counts.values()) / categories
    return sum((counts[each] - expected) ** 2 / expected for each in range(categories))


@pytest.mark.parametrize("kind", [StepBuffer, EpisodeBuffer])
@pytest.mark.parametrize("at_once", [True, False])
def test_eviction_and_draws_are_uniform(kind, at_once):
    """Of 20 games for 19 places each is as likely to be evicted, and to be drawn first."""
    evicted, first = Counter(), Counter()
    seeds = random.Random(7)
    played = [make_game(str(game), (0,)) for game in range(20)]
    for _ in range(2000):
        fixed = {"max_size": 19, "max_staleness": 0, "batch_size": 1, "batch_delay": 1.0}
        buffer = kind(BufferSettings(**fixed, seed=seeds.getrandbits(32)))
        for together in [played] if at_once else ([game] for game in played):
            buffer.add(together)
        batch = buffer.draw(19, version=0)
        (missing,) = set(range(20)) - {int(sample.origin) for sample in batch.samples}
        evicted[missing] += 1
        first[int(batch.samples[0].origin)] += 1
    assert chi_square(evicted, 20) < CHI_SQUARE_19
    assert chi_square(first, 20) < CHI_SQUARE_19
