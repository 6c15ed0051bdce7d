import itertools

import pytest
import trueskill
from hypothesis import assume, given
from hypothesis import strategies as st

from rlforge.league.payoff import ResultTable
from rlforge.league.ratings import Rating, RatingTable

REFERENCE = trueskill.TrueSkill(mu=25.0, sigma=25 / 3, beta=25 / 6, tau=25 / 300)

rewards = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0])
games_of_two = st.lists(
    st.tuples(st.sampled_from(list(itertools.permutations("abc", 2))), rewards, rewards),
    max_size=12,
)


def table(*uids: str) -> RatingTable:
    ratings = RatingTable()
    for uid in uids:
        ratings.add(uid)
    return ratings


def same(rating: Rating, reference: trueskill.Rating) -> bool:
    return tuple(rating) == pytest.approx((reference.mu, reference.sigma), abs=1e-9)


@given(games_of_two)
def test_two_player_games_are_rated_as_by_rate_1vs1(games):
    ratings = table("a", "b", "c")
    reference = {uid: REFERENCE.create_rating() for uid in "abc"}
    for (first, second), reward, other in games:
        ratings.record([(first, reward), (second, other)])
        winner, loser = (second, first) if other > reward else (first, second)
        reference[winner], reference[loser] = trueskill.rate_1vs1(
            reference[winner], reference[loser], drawn=reward == other, env=REFERENCE
        )
    for uid in "abc":
        assert same(ratings.rating(uid), reference[uid])


@given(st.permutations(["a", "b", "c", "d"]), st.lists(rewards, min_size=3, max_size=4))
def test_games_of_many_are_rated_by_rank_and_equal_rewards_tie(uids, seat_rewards):
    uids = uids[: len(seat_rewards)]
    ratings = table(*uids)
    ratings.record(list(zip(uids, seat_rewards, strict=True)))
    better = [sum(other > own for other in seat_rewards) for own in seat_rewards]
    groups = REFERENCE.rate([(REFERENCE.create_rating(),) for _ in uids], ranks=better)
    for uid, (expected,) in zip(uids, groups, strict=True):
        assert same(ratings.rating(uid), expected)


@given(games_of_two)
def test_winners_rise_and_losers_fall(games):
    ratings = table("a", "b", "c")
    for (first, second), reward, other in games:
        assume(reward != other)
        winner, loser = (first, second) if reward > other else (second, first)
        before = ratings.ratings()
        ratings.record([(first, reward), (second, other)])
        assert ratings.rating(winner).mu > before[winner].mu
        assert ratings.rating(loser).mu < before[loser].mu


@given(st.lists(rewards, min_size=1, max_size=5))
def test_playing_only_oneself_rates_nobody(seat_rewards):
    ratings = table("a")
    assert not ratings.record([("a", reward) for reward in seat_rewards])
    assert ratings.state_dict()["own"] == {}


def test_a_uid_on_several_seats_enters_once_with_its_mean_reward():
    ratings = table("a", "b", "c")
    # Means: a 0, b 0.1 (three tenths over three seats, inexact in binary), c 0.1: b and c tie.
    ratings.record([("a", 1.0), ("b", 0.3), ("a", -1.0), ("b", 0.0), ("b", 0.0), ("c", 0.1)])
    groups = [(REFERENCE.create_rating(),) for _ in "abc"]
    for uid, (expected,) in zip("abc", REFERENCE.rate(groups, ranks=[1, 0, 0]), strict=True):
        assert same(ratings.rating(uid), expected)


def test_members_of_a_winning_team_rise_and_are_no_rivals():
    won = [("a", 1.0), ("b", 1.0), ("c", -1.0), ("d", -1.0)]
    ratings, results = table(*"abcd"), ResultTable()
    assert ratings.record(won, "team")
    results.record(won, "team")
    mus = [ratings.rating(uid).mu for uid in "abcd"]
    assert mus[0] == mus[1] > 25 > mus[2] == mus[3]
    assert (results.between("a", "b").games, results.between("a", "c").wins) == (0, 1)


def test_a_team_of_all_is_not_rated():
    ratings, results = table(*"ab"), ResultTable()
    assert not ratings.record([("a", 1.0), ("b", 0.0)], "all")
    results.record([("a", 1.0), ("b", 0.0)], "all")
    assert results.between("a", "b").games == 0


def test_a_child_has_its_parents_rating_until_its_own_first_game(monkeypatch):
    monkeypatch.setattr("rlforge.league.ratings.INHERITED_SIGMA", 1.0)
    ratings = table("old", "rival")
    ratings.record([("old", 1), ("rival", -1)])
    ratings.add("new", parent="old")
    ratings.add("newest", parent="new")
    assert ratings.rating("newest") == ratings.rating("old")
    ratings.record([("old", 1), ("rival", -1)])  # late games of the parent still count
    assert ratings.rating("newest") == ratings.rating("old")
    inherited = ratings.rating("old")
    ratings.record([("new", -1), ("rival", 1)])
    assert ratings.rating("old") == inherited
    assert ratings.rating("new").mu < inherited.mu
    assert ratings.rating("newest") == ratings.rating("new")
    assert ratings.ratings() == {uid: ratings.rating(uid) for uid in ratings.ratings()}


def test_a_child_is_less_certain_than_its_parent_and_at_most_like_a_newcomer():
    ratings = table("old", "rival")
    ratings.record([("old", 1), ("rival", -1)])
    ratings.add("new", parent="old")
    ratings.add("newest", parent="new")
    mu, sigma = ratings.rating("old")
    assert ratings.rating("new") == ratings.rating("newest") == (mu, min(25 / 3, 2 * sigma))
    for _ in range(30):
        ratings.record([("old", 0), ("rival", 0)])
    mu, sigma = ratings.rating("old")
    assert ratings.ratings()["newest"] == (mu, 2 * sigma)
    before = dict(ratings.ratings())
    ratings.record([("new", 0), ("rival", 1)])
    assert ratings.rating("newest").sigma == 2 * ratings.rating("new").sigma
    assert ratings.rating("old") == before["old"]


def test_games_of_its_own_part_a_version_from_a_parent_that_has_played_much(monkeypatch):
    """After 300 games a rating hardly moves; its child's does."""

    def moved(inherited_sigma: float) -> float:
        monkeypatch.setattr("rlforge.league.ratings.INHERITED_SIGMA", inherited_sigma)
        ratings = table("old", "rival")
        for game in range(300):
            ratings.record([("old", game % 2), ("rival", 1 - game % 2)])
        ratings.add("new", parent="old")
        for _ in range(10):
            ratings.record([("new", 1), ("rival", 0)])
        return ratings.rating("new").mu - ratings.rating("old").mu

    assert moved(2.0) > 2 * moved(1.0) > 0


@given(st.floats(-5, 5), st.integers(0, 5))
def test_quality_is_that_of_the_library(reward, wins):
    ratings = table("a", "b")
    first, second = REFERENCE.create_rating(), REFERENCE.create_rating()
    for _ in range(wins):
        ratings.record([("a", reward + 1), ("b", reward)])
        first, second = trueskill.rate_1vs1(first, second, env=REFERENCE)
    expected = trueskill.quality_1vs1(first, second, env=REFERENCE)
    assert ratings.quality("a", "b") == pytest.approx(expected)
    assert ratings.quality("a", "b") == pytest.approx(ratings.quality("b", "a"))


def test_outcomes_beyond_double_precision_leave_the_ratings_alone():
    ratings = table("a", "b")
    ratings.load_state_dict(
        {
            "parents": {"a": None, "b": None},
            "own": {"a": [500.0, 0.1], "b": [0.0, 0.1]},
            "out_of_range": 0,
        }
    )
    assert not ratings.record([("a", -1), ("b", 1)])
    assert ratings.rating("a") == (500.0, 0.1)
    assert ratings.out_of_range == 1


def test_the_state_restores_every_rating():
    ratings = table("a", "b")
    ratings.add("c", parent="a")
    ratings.record([("a", 1), ("b", 0)])
    restored = RatingTable()
    restored.load_state_dict(ratings.state_dict())
    for rated in (ratings, restored):
        rated.record([("c", 0), ("b", 1)])
    assert restored.ratings() == ratings.ratings()


def test_registering_twice_or_under_an_unknown_parent_is_refused():
    ratings = table("a")
    with pytest.raises(ValueError, match="'a' is rated already"):
        ratings.add("a")
    with pytest.raises(KeyError):
        ratings.add("b", parent="unknown")


def test_beta_says_what_a_difference_of_skill_is_worth():
    ratings = RatingTable(beta=4.0)
    for uid in ("a", "b"):
        ratings.add(uid)
    ratings.record([("a", 1.0), ("b", -1.0)])
    other = trueskill.TrueSkill(beta=4.0)
    [(winner,), (loser,)] = other.rate([(other.create_rating(),), (other.create_rating(),)])
    assert same(ratings.rating("a"), winner)
    assert same(ratings.rating("b"), loser)
