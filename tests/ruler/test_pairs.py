from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from rlforge.ruler.pairs import generate_pairs

# Quarters are exact, so that differences are too.
REWARDS = st.lists(
    st.one_of(st.none(), st.just(float("nan")), st.integers(-8, 8).map(lambda n: n / 4)),
    max_size=12,
)


def _set(rewards: list[float | None], margin: float, most: int, seed: int = 0) -> list[tuple]:
    pairs = generate_pairs(rewards, margin=margin, max_pairs=most, seed=seed)
    return list(zip(pairs.better.tolist(), pairs.worse.tolist(), strict=True))


def _all(rewards: list[float | None], margin: float) -> set[tuple[int, int]]:
    known = [(i, r) for i, r in enumerate(rewards) if r is not None and r == r]
    return {(i, j) for (i, a), (j, b) in permutations(known, 2) if a - b > margin}


@given(REWARDS, st.integers(0, 4).map(lambda n: n / 4))
def test_all_pairs_that_differ_by_more_than_the_margin(rewards: list, margin: float) -> None:
    found = _set(rewards, margin, 10_000)
    assert len(found) == len(set(found))
    assert set(found) == _all(rewards, margin)


@given(REWARDS, st.integers(1, 20), st.integers(0, 5))
def test_a_bounded_draw_without_repeats(rewards: list, most: int, seed: int) -> None:
    found, every = _set(rewards, 0.25, most, seed), _all(rewards, 0.25)
    assert len(found) == len(set(found)) == min(most, len(every))
    assert set(found) <= every
    assert found == _set(rewards, 0.25, most, seed)


def test_the_draw_is_uniform_and_follows_the_seed() -> None:
    rewards = [0.0, 1.0, 2.0, 3.0]
    counts = dict.fromkeys(_all(rewards, 0.0), 0)
    for seed in range(600):
        for pair in _set(rewards, 0.0, 2, seed):
            counts[pair] += 1
    assert len(counts) == 6
    assert all(150 <= count <= 250 for count in counts.values())  # 200 expected, 11.5 deviation
