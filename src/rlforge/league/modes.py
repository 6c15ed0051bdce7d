"""Sampling modes: how the pool draws the learner's next opponent.

A mode is a function from a :class:`PoolView` to a weight per uid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field

from rlforge.errors import RunError
from rlforge.league import payoff
from rlforge.league.ratings import BETA
from rlforge.types import value

Weights = dict[str, float]


@value
class PoolView:
    """The pool as a mode sees it.

    Example:
        >>> view = PoolView(
        ...     current="step-2", past=("step-1",), fixed=("random_legal",), lag_range=(1, 5),
        ...     temperature=1.0, mu=lambda uid: 25.0, quality=lambda uid: 1.0,
        ...     diversity=lambda uid: 1.0,
        ... )
        >>> view.everyone, view.opponents
        (('random_legal', 'step-2', 'step-1'), ('random_legal', 'step-1'))
        >>> lagged(view)
        {'step-1': 1.0}
    """

    current: str  #: uid of the learner's newest version
    past: tuple[str, ...]  #: uids of the other active checkpoints, newest first
    fixed: tuple[str, ...]  #: uids of the fixed opponents
    lag_range: tuple[int, int]
    temperature: float  #: of the softmaxes, above 0
    mu: Callable[[str], float]  #: mean rating of a uid
    quality: Callable[[str], float]  #: match quality of a uid against the current one, in (0, 1]
    #: expected diversity of the states that a uid leads to, in (0, 1]
    diversity: Callable[[str], float]
    #: of several policies, the newest versions of those that are met; None: of its own
    newest: tuple[str, ...] | None = None
    include_current: bool = False
    weighting: str = "hard"
    power: float = 2.0
    #: that the learner wins against a uid, in (0, 1)
    win_probability: Callable[[str], float] = field(default_factory=lambda: lambda uid: 0.5)
    #: of a uid against another one, in (-1, 1)
    payoff: Callable[[str, str], float] = field(default_factory=lambda: lambda one, other: 0.0)

    @property
    def rivals(self) -> tuple[str, ...]:
        """The newest versions of the policies that the learner meets."""
        return (self.current,) if self.newest is None else self.newest

    @property
    def everyone(self) -> tuple[str, ...]:
        """Fixed opponents and active checkpoints, the newest ones included."""
        return (*self.fixed, *self.rivals, *self.past)

    @property
    def opponents(self) -> tuple[str, ...]:
        """Candidates of a draw: all but the current version, unless ``pool.include_current``."""
        others = tuple(uid for uid in self.everyone if uid != self.current)
        # Where there is no other opponent, the current version plays itself.
        return others if others and not self.include_current else self.everyone


Mode = Callable[[PoolView], Weights]


def softmax(scores: Sequence[float], temperature: float) -> list[float]:
    """exp(score / temperature), normalised.

    Example:
        >>> softmax([1.0, 1.0], temperature=0.5)
        [0.5, 0.5]
    """
    # The largest score is subtracted, so that no power overflows.
    top = max(scores)
    powers = [math.exp((score - top) / temperature) for score in scores]
    total = math.fsum(powers)
    return [power / total for power in powers]


def default_temperature(mode: str) -> float:
    """Softmax temperature of a mode in the unit of its score, for ``pool.temperature`` null."""
    # A level opponent is drawn about e times as often as one that is 0.2 below it in match quality
    # or diversity, which lie in (0, 1], or BETA rating points away.
    return {"match_quality": 0.2, "exploration": 0.2, "ts_dist": BETA}.get(mode, 1.0)


def fixed(view: PoolView) -> Weights:
    """Uniform over the fixed opponents."""
    return _uniform(view.fixed)


def mirror(view: PoolView) -> Weights:
    """Always the current version: self-play. Of several policies, each equally."""
    return _uniform(view.rivals)


def lagged(view: PoolView) -> Weights:
    """Uniform over active versions that are lag_range[0] to lag_range[1] versions behind."""
    low, high = view.lag_range
    versions = (*view.rivals, *view.past)
    # While no version is old enough the oldest is drawn: else there would be no opponent.
    return _uniform(versions[low : high + 1] or versions[-1:])


def random(view: PoolView) -> Weights:
    """Uniform over the fixed opponents and the active checkpoints but the current one."""
    return _uniform(view.opponents)


def match_quality(view: PoolView) -> Weights:
    """Softmax of the TrueSkill match quality against the current version: balanced games first."""
    return _softmax_over(view, view.quality)


def ts_dist(view: PoolView) -> Weights:
    """Softmax of -|mu_current - mu_opponent|: opponents of similar mean rating first."""
    own = view.mu(view.current)
    return _softmax_over(view, lambda uid: -abs(own - view.mu(uid)))


def exploration(view: PoolView) -> Weights:
    """Softmax of the expected diversity of the states that an opponent leads to."""
    return _softmax_over(view, view.diversity)


def prioritized(view: PoolView) -> Weights:
    """In proportion to f(p), p being the learner's probability to win against an opponent.

    Prioritized fictitious self-play of AlphaStar (Vinyals et al. 2019, Methods). Weighting
    ``hard``: f(p) = (1 - p)^power; ``even``: p (1 - p).
    """
    chances = [view.win_probability(uid) for uid in view.opponents]
    if view.weighting == "even":
        logs = [math.log(chance) + math.log1p(-chance) for chance in chances]
    else:
        logs = [view.power * math.log1p(-chance) for chance in chances]
    # The softmax takes logarithms, because powers of small numbers may all underflow to 0.
    return dict(zip(view.opponents, softmax(logs, 1.0), strict=True))


def fictitious(view: PoolView) -> Weights:
    """Uniform over the active versions, the current one included.

    Fictitious self-play (Heinrich, Lanctot and Silver 2015): a response to the average strategy so
    far.
    """
    return _uniform((*view.rivals, *view.past))


def nash(view: PoolView) -> Weights:
    """The Nash equilibrium, nearest to uniform, of the games between opponents.

    The meta-strategy of policy-space response oracles (Lanctot et al. 2017).
    """
    shares = payoff.nash_equilibrium(_payoffs(view))
    return dict(zip(view.opponents, shares, strict=True))


def alpha_rank(view: PoolView) -> Weights:
    """Alpha-rank of the opponents by the games between them; alpha is 1 / temperature.

    The meta-strategy of alpha-PSRO (Muller et al. 2020, arXiv:1909.12823).
    """
    shares = payoff.alpha_rank(_payoffs(view), alpha=1 / view.temperature)
    return dict(zip(view.opponents, shares, strict=True))


def probabilities(weights: Weights, view: PoolView, mode: str) -> Weights:
    """Weights that a mode returned, divided by their sum.

    Raises RunError where they are no weights of opponents.
    """
    total = 0.0
    for uid, weight in weights.items():
        if uid not in view.everyone:
            raise RunError(f"pool.mode={mode} draws {uid!r}, which is not in the pool")
        if not (math.isfinite(weight) and weight >= 0):
            raise RunError(f"pool.mode={mode} gives {uid} the weight {weight}")
        total += weight
    if total <= 0:
        raise RunError(f"pool.mode={mode} gives every opponent the weight 0")
    return {uid: weight / total for uid, weight in weights.items()}


def _uniform(uids: Sequence[str]) -> Weights:
    return {uid: 1 / len(uids) for uid in uids}


def _payoffs(view: PoolView) -> list[list[float]]:
    return [[view.payoff(row, column) for column in view.opponents] for row in view.opponents]


def _softmax_over(view: PoolView, score: Callable[[str], float]) -> Weights:
    uids = view.opponents
    return dict(zip(uids, softmax([score(uid) for uid in uids], view.temperature), strict=True))
