"""The statistics of a ladder: from its games to its card.

Two games with the same seed and the seats swapped are a pair, the unit of evidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rlforge.errors import RlforgeError
from rlforge.lab.ladder.record import (
    Ending,
    Estimate,
    LadderCard,
    LadderMember,
    LadderPairing,
    LadderRating,
    LadderRules,
    Neighbours,
)
from rlforge.lab.ladder.strengths import (
    bradley_terry,
    confidence_sequence,
    cyclic_part,
    cyclic_shares,
    rating_test,
    score_draws,
    score_mean,
    strength_intervals,
)
from rlforge.league.payoff import nash_equilibrium
from rlforge.league.ratings import RatingTable
from rlforge.league.run_ladder import ELO
from rlforge.record.game_files import GameIndex
from rlforge.types import value

#: Pairs that a pairing plays before its interval is looked at again.
ROUND_PAIRS = 10

_POINTS = {"win": 1.0, "draw": 0.5, "loss": 0.0}
_MOST_GAMES = 1_000_000
_ERROR, _POWER = 0.05, 0.8


def game_id(pairing: int, pair: int, swapped: bool) -> str:
    """The id of a game. pairing: number among the combinations of members."""
    return f"ladder-{pairing:04d}-{pair:05d}-{int(swapped)}"


@value
class _Pair:
    """Two mirrored games."""

    score: float  #: of the first member, free of the advantage of a seat and of the cards dealt
    first_move: float  #: how much more reward seat 0 got, mean
    games: tuple[GameIndex, GameIndex]


@value
class _Met:
    """The games of two members."""

    pairs: tuple[_Pair, ...]
    planned: int  #: pairs that were begun, as far as is known
    failed: int
    unpaired: int

    @property
    def scores(self) -> list[float]:
        return [pair.score for pair in self.pairs]


def ending(low: float, high: float, planned: int, rules: LadderRules) -> Ending:
    """Why a pairing needs no further games; ``open`` where it does.

    low, high: the confidence sequence of its score. planned: pairs that were begun.
    """
    if low > 0.5 or high < 0.5:
        return "separated"
    if high - low <= rules.precision:
        return "precise"
    return "maximum" if 2 * planned >= rules.games else "open"


def open_pairings(
    games: Sequence[GameIndex], members: Sequence[str], rules: LadderRules
) -> list[tuple[int, int]]:
    """The number and the begun pairs of each pairing that needs further games."""
    left = []
    for number, met in enumerate(_meetings(games, members)):
        low, high = confidence_sequence(met.scores)[-1]
        if ending(low, high, met.planned, rules) == "open":
            left.append((number, met.planned))
    return left


def make_card(
    games: Sequence[GameIndex],
    members: Sequence[LadderMember],
    rules: LadderRules,
    versions: Mapping[str, Any],
) -> LadderCard:
    """The card of ``games`` between ``members``; RlforgeError for games of another ladder."""
    uids = [member.uid for member in members]
    met = _meetings(games, uids)
    draws = score_draws([each.scores for each in met], len(uids), seed=rules.seed)
    scores = score_mean([each.scores for each in met], len(uids))
    cyclic = cyclic_part(np.log(scores / scores.T))
    share, p = (None, None) if len(uids) < 3 else cycles(scores, draws)
    ratings = _ratings(met, uids, scores, draws)
    return LadderCard(
        rules=rules,
        members=tuple(members),
        pairings=tuple(
            _pairing(uids[i], uids[j], each, rules, float(cyclic[i, j]))
            for (i, j), each in zip(combinations(range(len(uids)), 2), met, strict=True)
        ),
        ratings=ratings,
        cyclic_share=share,
        cyclic_p=p,
        first_move=first_move([[pair.first_move for pair in each.pairs] for each in met]),
        neighbours=_neighbours([rating.uid for rating in ratings], uids, met, scores),
        games=sum(game.error is None for game in games),
        unpaired=sum(each.unpaired for each in met),
        versions=versions,
    )


def _meetings(games: Sequence[GameIndex], uids: Sequence[str]) -> list[_Met]:
    pairings = [*combinations(uids, 2)]
    found: dict[tuple[int, int], dict[bool, GameIndex]] = {}
    for game in games:
        try:
            _, pairing, pair, swapped = game.spec.game_id.split("-")
            key, side = (int(pairing), int(pair)), bool(int(swapped))
            expected = pairings[key[0]][:: -1 if side else 1]
        except (ValueError, IndexError):
            raise RlforgeError(f"{game.spec.game_id} is no game of this ladder") from None
        seated = tuple(seat.policy.uid for seat in game.spec.seats)
        if seated != expected:
            who, due = " against ".join(seated), " against ".join(expected)
            raise RlforgeError(f"game {game.spec.game_id} is {who}, and should be {due}")
        if side in found.setdefault(key, {}):
            raise RlforgeError(f"game {game.spec.game_id} is recorded twice")
        found[key][side] = game
    return [_met(number, found) for number in range(len(pairings))]


def _met(number: int, found: Mapping[tuple[int, int], Mapping[bool, GameIndex]]) -> _Met:
    own = sorted((pair, sides) for (pairing, pair), sides in found.items() if pairing == number)
    # A game counts with its mirror game only: alone it would carry the advantage of its seat.
    whole, lost, unpaired = [], 0, 0
    for _, sides in own:
        finished = [game for game in sides.values() if game.error is None]
        lost += len(sides) - len(finished)
        if len(finished) < 2:
            unpaired += len(finished)
            continue
        one, other = sides[False], sides[True]
        if one.spec.seed != other.spec.seed:
            raise RlforgeError(f"game {other.spec.game_id} has another seed than its mirror game")
        points = [
            _POINTS[game.spec.env.outcome(game.rewards, seat)]
            for seat, game in enumerate((one, other))
        ]
        gaps = [game.rewards[0] - game.rewards[1] for game in (one, other)]
        whole.append(_Pair(score=sum(points) / 2, first_move=sum(gaps) / 2, games=(one, other)))
    planned = max((pair + 1 for pair, _ in own), default=0)
    return _Met(pairs=tuple(whole), planned=planned, failed=lost, unpaired=unpaired)


def _pairing(
    first: str, second: str, met: _Met, rules: LadderRules, cyclic: float
) -> LadderPairing:
    outcomes = Counter(
        game.spec.env.outcome(game.rewards, seat)
        for pair in met.pairs
        for seat, game in enumerate(pair.games)
    )
    low, high = confidence_sequence(met.scores)[-1]
    return LadderPairing(
        first=first,
        second=second,
        pairs=len(met.pairs),
        wins=outcomes["win"],
        draws=outcomes["draw"],
        losses=outcomes["loss"],
        score=float(np.mean(met.scores)) if met.pairs else None,
        low=float(low),
        high=float(high),
        ended=ending(low, high, met.planned, rules),
        failed=met.failed,
        cyclic=cyclic,
    )


def _ratings(
    met: Sequence[_Met],
    uids: Sequence[str],
    scores: NDArray[np.float64],
    draws: NDArray[np.float64],
) -> tuple[LadderRating, ...]:
    elo = ELO * bradley_terry(scores)
    low, high = ELO * strength_intervals(draws)
    nash = np.array(nash_equilibrium(scores - scores.T))
    against = scores @ nash
    table, counts = RatingTable(), _counts(met)
    for uid in uids:
        table.add(uid)
    played = [(number, pair) for each in met for number, pair in enumerate(each.pairs)]
    # TrueSkill depends on the order, so pairs go as they were played: round by round.
    for _, pair in sorted(played, key=lambda one: one[0]):
        for game in pair.games:
            seats = game.spec.seats
            table.record([(seat.policy.uid, game.rewards[seat.player_id]) for seat in seats])
    return tuple(
        LadderRating(
            uid=uids[i],
            elo=float(elo[i]),
            low=float(low[i]),
            high=float(high[i]),
            mu=table.rating(uids[i]).mu,
            sigma=table.rating(uids[i]).sigma,
            nash=float(nash[i]),
            nash_score=float(against[i]),
            wins=counts[uids[i], "win"],
            forfeits_won=counts[uids[i], "win", "forfeit"],
            draws=counts[uids[i], "draw"],
            losses=counts[uids[i], "loss"],
            forfeits_lost=counts[uids[i], "loss", "forfeit"],
        )
        for i in np.argsort(-elo, kind="stable")
    )


def _counts(met: Sequence[_Met]) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for game in (game for each in met for pair in each.pairs for game in pair.games):
        for seat in game.spec.seats:
            outcome = game.spec.env.outcome(game.rewards, seat.player_id)
            # Games that an invalid move ended count apart: they were not won by play.
            forfeit = game.invalid_by is not None and outcome != "draw"
            counts[(seat.policy.uid, outcome, *(["forfeit"] if forfeit else []))] += 1
    return counts


def cycles(
    scores: NDArray[np.float64], draws: NDArray[np.float64]
) -> tuple[Estimate | None, float]:
    """The cyclic share of the log-odds (None for noise) and the p-value of a rating."""
    odds = np.log(scores / scores.T)
    sampled = np.log(draws / draws.transpose(0, 2, 1))
    noise = sampled.var(axis=0)
    measured = cyclic_shares(odds[None], noise)[0]
    share = None
    if not np.isnan(measured):
        # A bootstrap draw has the noise of the measurement and its own.
        found = cyclic_shares(sampled, 2 * noise)
        found = np.where(np.isnan(found), measured, found)
        low, high = np.quantile(found, [_ERROR / 2, 1 - _ERROR / 2])
        share = Estimate(mean=float(measured), low=float(low), high=float(high))
    return share, rating_test(odds, noise)


def first_move(gaps: Sequence[Sequence[float]]) -> Estimate | None:
    """The mean reward of seat 0 minus that of seat 1, over pairings of two pairs and more.

    gaps: gaps of the pairs of each pairing.
    """
    known = [np.array(own) for own in gaps if len(own) > 1]
    if not known:
        return None
    mean = float(np.mean([own.mean() for own in known]))
    parts = np.array([own.var(ddof=1) / len(own) for own in known]) / len(known) ** 2
    variance = float(parts.sum())
    if variance == 0:
        return Estimate(mean=mean, low=mean, high=mean)
    # Pairings differ in variance and size, so the degrees of freedom are those of Welch (1947).
    freedom = variance**2 / sum(
        part**2 / (len(own) - 1) for part, own in zip(parts, known, strict=True)
    )
    half = float(stats.t.ppf(1 - _ERROR / 2, freedom)) * math.sqrt(variance)
    return Estimate(mean=mean, low=mean - half, high=mean + half)


def _neighbours(
    ranked: Sequence[str], uids: Sequence[str], met: Sequence[_Met], scores: NDArray[np.float64]
) -> tuple[Neighbours, ...]:
    pairings = dict(zip(combinations(uids, 2), met, strict=True))
    z = float(stats.norm.ppf(1 - _ERROR / 2) + stats.norm.ppf(_POWER))
    found = []
    for stronger, weaker in pairwise(ranked):
        one, other = uids.index(stronger), uids.index(weaker)
        score = float(scores[one, other])
        of_both = pairings[(stronger, weaker) if one < other else (weaker, stronger)]
        # Equal scores would have no variance, so a pair won and a pair lost are added.
        variance = float(np.var([*of_both.scores, 0.0, 1.0]))
        # The test of a mean needs n = V (z₀.₉₇₅ + z₀.₈)² / (score − 1/2)² pairs of variance V.
        gap, games = score - 0.5, None
        if 2 * variance * z**2 <= _MOST_GAMES * gap**2:
            games = 2 * math.ceil(float(variance * z**2 / gap**2))
        found.append(Neighbours(stronger=stronger, weaker=weaker, score=score, games=games))
    return tuple(found)
