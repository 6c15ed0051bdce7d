"""Order in which stored items are taken and evicted."""

import random
from collections import Counter
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.buffer.base import VersionQueue


def queue_of(versions, seed=0):
    bag = VersionQueue(itemgetter(0), random.Random(seed))
    bag.add((version, index) for index, version in enumerate(versions))
    return bag


@given(st.lists(st.integers(3, 8), max_size=30), st.integers(0, 100))
def test_the_oldest_is_taken_first_and_everything_once(versions, seed):
    bag = queue_of(versions, seed)
    taken = [bag.take() for _ in versions]
    assert [version for version, _ in taken] == sorted(versions)
    assert {index for _, index in taken} == set(range(len(versions)))
    assert len(bag) == 0
    with pytest.raises(ValueError, match="empty"):
        bag.take()


@given(st.lists(st.integers(0, 6), max_size=30), st.integers(0, 7))
def test_drop_older_removes_and_returns_only_older_versions(versions, oldest):
    bag = queue_of(versions)
    gone = bag.drop_older(oldest)
    assert all(version < oldest for version, _ in gone)
    assert all(version >= oldest for version, _ in bag)
    assert sorted([*gone, *bag], key=itemgetter(1)) == [(v, i) for i, v in enumerate(versions)]
    assert len(bag) == len(list(bag))


def test_items_of_one_version_are_taken_in_random_order():
    orders = Counter(
        tuple(bag.take()[1] for _ in range(3))
        for bag in (queue_of([5, 5, 5], seed) for seed in range(600))
    )
    assert len(orders) == 6
    assert min(orders.values()) > 60


def test_eviction_is_independent_of_version():
    evicted = Counter(queue_of([1, 2, 2, 2], seed).evict()[0] for seed in range(800))
    assert 140 < evicted[1] < 260
