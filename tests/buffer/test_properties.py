"""In any order of calls: no sample is lost, duplicated, stale or preferred."""

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.buffer.episodes import make_episode

from rlforge.buffer import BufferSettings, EpisodeBuffer, StepBuffer

MAX_SIZE, MAX_STALENESS, GROUP_SIZE = 12, 1, 2


def make_game(game_id, versions, seats=1, group_id=None):
    size = 1 if group_id is None else GROUP_SIZE
    return [make_episode(game_id, versions, seat, group_id, size) for seat in range(seats)]


def keys(steps):
    return [(step.game_id, step.player_id, step.turn_index) for step in steps]


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

    def samples(self, steps):
        if self.kind is StepBuffer:
            return len(steps)
        return len({(step.game_id, step.player_id) for step in steps})

    def versions_that_count(self, steps):
        """The versions that staleness counts from: the newest of a game, or of a stored group."""
        newest = {}
        for step in self.offered if self.kind is StepBuffer else steps:
            unit = self.unit(step)
            newest[unit] = max(step.policy_version, newest.get(unit, 0))
        return [newest[self.unit(step)] for step in steps]

    def unit(self, step):
        return step.game_id if self.kind is StepBuffer else step.group_id or step.game_id

    def add(self, episodes):
        before, refused = self.buffer.size(), self.is_refused(episodes)
        self.buffer.add(episodes)
        steps = [step for episode in episodes for step in episode.steps]
        self.offered += steps
        stored = 0 if refused else self.samples(steps)
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
        newest, group_id = max(s.policy_version for e in game for s in e.steps), game[0].group_id
        if self.kind is EpisodeBuffer and group_id is not None:
            state = self.buffer.state_dict()
            if group_id in state["given_up"]:
                return True
            for group in state["groups"]:
                games = {episode["game_id"] for episode in group["episodes"]}
                if group["group_id"] == group_id and 0 < len(games) < group["games"]:
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
        self.buffer.pass_over(f"group{group} of {self.version}", GROUP_SIZE)
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
        assert n <= self.samples(batch.steps) < n + GROUP_SIZE * 2
        assert self.buffer.drawable() <= before - n
        assert batch.min_version == min(step.policy_version for step in batch.steps)
        assert batch.max_version == max(step.policy_version for step in batch.steps)
        ages = self.version - np.array(self.versions_that_count(batch.steps))
        assert ages.max() <= MAX_STALENESS
        self.drawn += batch.steps
        self.dropped += batch.dropped_stale
        for group_id in {step.group_id for step in batch.steps} - {None}:
            if self.kind is EpisodeBuffer:
                games = {s.game_id for s in batch.steps if s.group_id == group_id}
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
            left = inside["steps"]
            # Every step that is not stored, drawn or evicted was dropped as stale.
            self.dropped += inside["losses"]["stale"]
            total = len(self.drawn) + self.evicted + self.dropped + len(left)
            assert total == len(self.offered)
        else:
            left = [s for g in inside["groups"] for e in g["episodes"] for s in e["steps"]]
            episodes = sum(len(group["episodes"]) for group in inside["groups"])
            assert episodes == self.buffer.size()
            accounted = self.samples(self.drawn) + self.evicted + episodes
            assert accounted <= self.stored
        seen = Counter(keys(self.drawn))
        seen.update((step["game_id"], step["player_id"], step["turn_index"]) for step in left)
        assert set(seen.values()) <= {1}
        # Samples of fresh games without a group are only missing if they were evicted.
        oldest = self.version - MAX_STALENESS
        newest = {s.game_id: s.policy_version for s in self.offered}
        stale = {game_id for game_id, version in newest.items() if version < oldest}
        fresh = [s for s in self.offered if s.game_id not in stale and s.group_id is None]
        gone = [step for step in fresh if keys([step])[0] not in seen]
        assert self.samples(gone) <= self.evicted
        super().teardown()


class EpisodeBufferMachine(BufferMachine):
    kind = EpisodeBuffer


TestStepBuffer = BufferMachine.TestCase
TestEpisodeBuffer = EpisodeBufferMachine.TestCase
TestStepBuffer.settings = settings(max_examples=60, stateful_step_count=40)
TestEpisodeBuffer.settings = TestStepBuffer.settings


@pytest.mark.parametrize("kind", [StepBuffer, EpisodeBuffer])
def test_concurrent_collectors_and_a_learner_lose_and_duplicate_no_step(kind):
    """Each method under one lock, as an actor runs them, from five threads."""
    buffer = kind(
        BufferSettings(max_size=10_000, max_staleness=10**6, batch_size=8, batch_delay=1.0, seed=0)
    )
    lock, drawn, failed = threading.Lock(), [], threading.Event()
    games_each, collectors = 150, 4
    total = games_each * collectors * 2 * 2

    def collect(name):
        for index in range(games_each):
            with lock:
                buffer.add(make_game(f"{name}-{index}", (0, 0), seats=2))

    def learn():
        version = 0
        while len(drawn) < total and not failed.is_set():
            with lock:
                batch = buffer.draw(8, version)
            if batch is not None:
                drawn.extend(batch.steps)
                version += 1

    with ThreadPoolExecutor(collectors + 1) as pool:
        learner = pool.submit(learn)
        try:
            for done in [pool.submit(collect, name) for name in range(collectors)]:
                done.result(timeout=60)
            learner.result(timeout=60)
        finally:
            failed.set()
    assert len(drawn) == total
    assert len(set(keys(drawn))) == total
    assert buffer.size() == 0


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
    games = [make_game(str(game), (0,)) for game in range(20)]
    for _ in range(2000):
        fixed = {"max_size": 19, "max_staleness": 0, "batch_size": 1, "batch_delay": 1.0}
        buffer = kind(BufferSettings(**fixed, seed=seeds.getrandbits(32)))
        for together in [sum(games, [])] if at_once else games:  # noqa: RUF017
            buffer.add(together)
        batch = buffer.draw(19, version=0)
        (missing,) = set(range(20)) - {int(step.game_id) for step in batch.steps}
        evicted[missing] += 1
        first[int(batch.steps[0].game_id)] += 1
    assert chi_square(evicted, 20) < CHI_SQUARE_19
    assert chi_square(first, 20) < CHI_SQUARE_19
