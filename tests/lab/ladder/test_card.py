"""The card of a ladder, from games whose results are made up."""

import dataclasses
import itertools
import random

import numpy as np
import pytest
from scipy import stats
from tests.factories import game_spec, scripted, seat

from rlforge.errors import RlforgeError
from rlforge.lab.ladder.card import ending, first_move, game_id, make_card, open_pairings
from rlforge.lab.ladder.record import LadderCard, LadderMember, LadderRules, first_difference
from rlforge.record.game_files import GameIndex
from rlforge.types import EnvSpec

ENV = EnvSpec(id="kuhn_poker", source="openspiel")
RULES = LadderRules(env_id=ENV.id, seed=3, games=40, precision=0.1)


def game(uids, number, pair, swapped, reward, invalid_by=None, error=None) -> GameIndex:
    """A game of pairing ``number``; reward: of the first of ``uids``."""
    seats = [
        seat(place, scripted(uid)) for place, uid in enumerate(uids[::-1] if swapped else uids)
    ]
    own = -reward if swapped else reward
    name = game_id(number, pair, swapped)
    return GameIndex(
        spec=game_spec(name, ENV, seats, seed=pair, purpose="eval"),
        num_turns=2,
        rewards={} if error else {0: own, 1: -own},
        end_reason="error" if error else "finished",
        invalid_by=invalid_by,
        error=error,
        written_at=0.0,
    )


def league(*rewards: list[float], names: str = "abc") -> list[GameIndex]:
    """Games of every pairing; both games of a pair have the reward that is listed for it."""
    return [
        game(uids, number, pair, swapped, reward)
        for number, (uids, own) in enumerate(
            zip(itertools.combinations(names, 2), rewards, strict=True)
        )
        for pair, reward in enumerate(own)
        for swapped in (False, True)
    ]


def members(names: str = "abc") -> list[LadderMember]:
    return [
        LadderMember(uid=name, kind="scripted", source=name, about="", files=()) for name in names
    ]


def card_of(games: list[GameIndex], names: str = "abc") -> LadderCard:
    return make_card(games, members(names), RULES, {})


WON, EVEN = [1.0] * 20, [1.0, -1.0] * 10


def test_a_cycle_is_all_cyclic_and_its_nash_equilibrium_is_uniform():
    mostly = [1.0] * 16 + [-1.0] * 4
    card = card_of(league(mostly, [-one for one in mostly], mostly))
    assert card.cyclic_share is not None
    assert card.cyclic_share.mean == pytest.approx(1)
    assert card.cyclic_p is not None
    assert card.cyclic_p < 0.001
    assert [one.nash for one in card.ratings] == pytest.approx([1 / 3] * 3, abs=1e-4)
    assert [one.nash_score for one in card.ratings] == pytest.approx([0.5] * 3, abs=1e-4)
    assert all(one.low < 0 < one.high for one in card.ratings)


def test_a_member_that_beats_all_others_is_first_and_the_whole_equilibrium():
    card = card_of(league(WON, WON, EVEN))
    assert card.ratings[0].uid == "a"
    assert card.ratings[0].nash == pytest.approx(1)
    assert card.ratings[0].low > card.ratings[1].high
    assert card.ratings[0].mu > card.ratings[1].mu
    assert [one.ended for one in card.pairings] == ["separated", "separated", "maximum"]
    assert card.neighbours[0].games is not None
    assert card.neighbours[0].games < 30
    assert card.neighbours[1].games is None


def test_the_order_of_the_games_does_not_matter():
    games = league(WON, EVEN, [1.0, 0.0] * 10)
    shuffled = random.Random(0).sample(games, len(games))
    assert first_difference(card_of(games), card_of(shuffled)) is None


def test_the_first_difference_of_two_cards_is_named_with_both_values():
    card = card_of(league(WON, WON, EVEN))
    *others, last = card.pairings
    changed = dataclasses.replace(last, wins=22, losses=18)
    found = first_difference(card, dataclasses.replace(card, pairings=(*others, changed)))
    assert found == "pairings.2.wins: 20 on the page, 22 by its games"


def test_wins_by_an_invalid_move_are_counted_apart():
    uids = ("a", "b")
    games = [
        game(uids, 0, 0, False, 1.0, invalid_by=1),
        game(uids, 0, 0, True, 1.0),
        game(uids, 0, 1, False, -1.0),
        game(uids, 0, 1, True, 1.0, invalid_by=0),
    ]
    ratings = {one.uid: one for one in card_of(games, "ab").ratings}
    first, second = ratings["a"], ratings["b"]
    assert (first.wins, first.forfeits_won, first.losses, first.forfeits_lost) == (1, 2, 1, 0)
    assert (second.wins, second.forfeits_won, second.losses, second.forfeits_lost) == (1, 0, 1, 2)


def test_games_without_their_mirror_game_count_nowhere_and_failed_ones_are_counted():
    uids = ("a", "b")
    games = [
        *league([1.0], names="ab"),
        game(uids, 0, 1, False, 1.0),
        game(uids, 0, 1, True, 1.0, error="GameError: damaged"),
        game(uids, 0, 2, False, 1.0),
    ]
    card = card_of(games, "ab")
    [pairing] = card.pairings
    assert (pairing.pairs, pairing.wins, pairing.failed, card.unpaired) == (1, 2, 1, 2)
    assert card.cyclic_share is None
    assert card.cyclic_p is None
    assert open_pairings(games, ["a", "b"], RULES) == [(0, 3)]
    unknown = card_of([])
    assert unknown.first_move is None
    assert [(one.score, one.low, one.high) for one in unknown.pairings] == [(None, 0.0, 1.0)] * 3
    assert [one.elo for one in unknown.ratings] == pytest.approx([0] * 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda games: [*games, games[0]], "is recorded twice"),
        (lambda games: [*games, game(("c", "b"), 0, 99, False, 1.0)], "should be a against b"),
        (lambda games: [*games, game(("a", "b"), 7, 0, False, 1.0)], "no game of this ladder"),
    ],
)
def test_games_of_another_ladder_are_refused(change, message):
    with pytest.raises(RlforgeError, match=message):
        card_of(change(league(WON, WON, EVEN)))  # type: ignore[operator]


def test_the_interval_of_the_first_move_is_that_of_students_t_for_one_pairing():
    gaps = np.random.default_rng(0).normal(0.3, 1, 25)
    found = first_move([gaps.tolist()])
    low, high = stats.t.interval(0.95, 24, gaps.mean(), stats.sem(gaps))
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((gaps.mean(), low, high))


def test_a_pairing_ends_at_its_precision_or_with_its_last_pair():
    assert ending(0.46, 0.54, 5, RULES) == "precise"
    assert ending(0.3, 0.7, 19, RULES) == "open"
    assert ending(0.3, 0.7, 20, RULES) == "maximum"
    assert ending(0.1, 0.49, 20, RULES) == "separated"
