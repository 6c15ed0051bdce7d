"""TrueSkill ratings of all policies (Herbrich, Minka and Graepel 2006)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import trueskill

from rlforge.types import Winners

#: Rewards that agree to this many decimals tie: means of floats must not decide a rank.
TIE_DECIMALS = 9

#: Mean rating of a newcomer, and its uncertainty.
MU, SIGMA = 25.0, 25 / 3
#: Skill difference that wins about 76 % of games, unless ``pool.rating_beta`` says otherwise.
BETA = SIGMA / 2
#: Uncertainty added before each game.
TAU = MU / 300
#: Expected share of draws.
DRAW_PROBABILITY = 0.1
# Above 1, so that a version's own games soon part its rating from the parent's.
#: Uncertainty of a new version's rating, as a multiple of its parent's and at most ``SIGMA``.
INHERITED_SIGMA = 2.0


class Rating(NamedTuple):
    """A belief about a policy's skill: a normal distribution.

    Example:
        >>> Rating(mu=25.0, sigma=8.333).mu
        25.0
    """

    mu: float
    sigma: float


def mean_rewards(outcome: Sequence[tuple[str, float]]) -> dict[str, float]:
    """The mean reward of each uid over its seats, rounded to ``TIE_DECIMALS``.

    Example:
        >>> mean_rewards([("step-3", 1.0), ("random_legal", -1.0), ("step-3", 0.0)])
        {'step-3': 0.5, 'random_legal': -1.0}
    """
    rewards: dict[str, list[float]] = {}
    for uid, reward in outcome:
        rewards.setdefault(uid, []).append(reward)
    # The order of the seats must not change the mean, so its sum is exact.
    return {uid: round(math.fsum(own) / len(own), TIE_DECIMALS) for uid, own in rewards.items()}


class RatingTable:
    """Ratings by policy uid, updated game by game.

    Until its own first rated game, a child has the mean of its nearest ancestor that has played,
    and ``INHERITED_SIGMA`` times its deviation, at most a newcomer's.
    """

    def __init__(self, beta: float = BETA) -> None:
        self._skill = trueskill.TrueSkill(MU, SIGMA, beta, TAU, DRAW_PROBABILITY)
        # A rating is inherited when it is asked for, so that a version that has not played yet
        # profits from games of its parent that finish late, such as those of an evaluation.
        self._parents: dict[str, str | None] = {}
        self._own: dict[str, Rating] = {}
        #: Games whose outcome was too unlikely for double precision; they changed no rating.
        self.out_of_range = 0

    def add(self, uid: str, parent: str | None = None) -> None:
        """Register ``uid`` as a child of ``parent``, or with a newcomer's rating."""
        if uid in self._parents:
            raise ValueError(f"{uid!r} is rated already")
        if parent is not None and parent not in self._parents:
            raise KeyError(parent)
        self._parents[uid] = parent

    def rating(self, uid: str) -> Rating:
        ancestor: str | None = uid
        while ancestor is not None and ancestor not in self._own:
            ancestor = self._parents[ancestor]
        if ancestor is None:
            return Rating(MU, SIGMA)
        return self._own[uid] if ancestor == uid else self._inherited(self._own[ancestor])

    def ratings(self) -> dict[str, Rating]:
        # One pass, as parents are registered before their children: asking for each rating would
        # walk the whole chain where no version has played.
        nearest: dict[str, Rating] = {}
        table: dict[str, Rating] = {}
        for uid, parent in self._parents.items():
            if uid in self._own:
                nearest[uid] = table[uid] = self._own[uid]
            elif parent is not None and parent in nearest:
                nearest[uid], table[uid] = nearest[parent], self._inherited(nearest[parent])
            else:
                table[uid] = Rating(MU, SIGMA)
        return table

    def _inherited(self, rating: Rating) -> Rating:
        most = max(rating.sigma, SIGMA)
        return Rating(rating.mu, min(most, INHERITED_SIGMA * rating.sigma))

    def quality(self, first: str, second: str) -> float:
        """Match quality of a game of two, in [0, 1]: draw probability relative to its maximum."""
        # Herbrich, Minka and Graepel 2006, section 4: sqrt(2 beta^2 / c^2) exp(-(mu_1 - mu_2)^2 /
        # (2 c^2)), c^2 = 2 beta^2 + sigma_1^2 + sigma_2^2. The library's is 100 times slower.
        one, two = self.rating(first), self.rating(second)
        noise = 2 * self._skill.beta**2
        spread = noise + one.sigma**2 + two.sigma**2
        return math.sqrt(noise / spread) * math.exp(-((one.mu - two.mu) ** 2) / (2 * spread))

    def record(self, outcome: Sequence[tuple[str, float]], winners: Winners = "one") -> bool:
        """Rate one finished game, given (uid, reward) per seat; False where no rating changed.

        A higher reward is a better rank; equal rewards draw. winners: ``EnvSpec.won_by`` of the
        game.
        """
        # A uid enters once, because its seats are not independent evidence.
        rewards = mean_rewards(outcome)
        if len(rewards) < 2 or winners == "all":
            return False
        teams = [[uid] for uid in rewards]
        if winners == "team" and len(set(rewards.values())) > 1:
            teams = [
                [uid for uid in rewards if rewards[uid] == reward]
                for reward in dict.fromkeys(rewards.values())
            ]
        # The library takes the lowest rank for the best.
        ranks = [-rewards[team[0]] for team in teams]
        before = [tuple(trueskill.Rating(*self.rating(uid)) for uid in team) for team in teams]
        # The library adds up the skills of a team: with their mean, a larger one is no stronger.
        weights = [(1 / len(team),) * len(team) for team in teams]
        try:
            after = self._skill.rate(before, ranks=ranks, weights=weights)
        except (FloatingPointError, ValueError):
            # Means more than about 35 deviations apart underflow in the library: the outcome
            # either confirms such ratings or has a probability of practically 0.
            self.out_of_range += 1
            return False
        for team, rated in zip(teams, after, strict=True):
            for uid, one in zip(team, rated, strict=True):
                self._own[uid] = Rating(one.mu, one.sigma)
        return True

    def state_dict(self) -> dict[str, Any]:
        return {
            "parents": dict(self._parents),
            "own": {uid: list(rating) for uid, rating in self._own.items()},
            "out_of_range": self.out_of_range,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._parents = dict(state["parents"])
        self._own = {uid: Rating(*own) for uid, own in state["own"].items()}
        self.out_of_range = state["out_of_range"]
