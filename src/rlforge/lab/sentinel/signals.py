"""The sentinel: notices when training collapses, and says which signal changed since when.

Each signal has a test of its own, a cumulative sum of log likelihood ratios (Page 1954). With the
deviation d of an observation from what was expected, its variance s² and the change c that matters,

    S ← max(0, S + c / s² (d − c / 2))

and an alarm where S passes log(rarity): at most one in ``rarity`` observations is false (Lorden
1971, theorem 2). Expected is the ``course`` of signals that change as training goes on (their
exponential average), the ``best`` of it for scores, or, against the own past, the ``target`` 1/2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from rlforge.config.sentinel import SentinelConfig, Signal
from rlforge.record.results import Alarm, ExactResult
from rlforge.types import EvalResult, value

Expectation = Literal["course", "best", "target"]

#: Weight of a new observation in the variance, and standard deviations that it counts at most.
_VARIANCE, _OUTLIER = 0.05, 3.0
#: Share of an alarm that one observation of a course may bring: one batch alone is no collapse.
_MOST_AT_ONCE = 0.45
#: Least share of the change that matters which is taken for noise, as a standard deviation.
_LEAST_NOISE = 0.1
#: Entropies are compared as logarithms of themselves plus this, in nats.
_NO_ENTROPY = 0.01


@value
class Shift:
    """A change for the worse."""

    since: int  #: the observation with which it began
    good: int  #: the one before
    observed: float
    expected: float


@dataclasses.dataclass
class _Learned:
    """The state of a test after ``seen`` observations."""

    seen: int = 0
    level: float = 0.0  #: the smoothed course
    variance: float = 0.0  #: of observations around their course
    last: float = 0.0  #: the observation before
    best: float = 0.0  #: the least level
    sum: float = 0.0  #: S
    since: int | None = None  #: the step at which S left 0
    good: int = 0  #: the last step at which S was 0


class ShiftTest:
    """Tests whether numbers, larger for worse, have shifted upwards by ``change``."""

    def __init__(
        self, expectation: Expectation, *, change: float, rarity: float, warmup: int, rate: float
    ) -> None:
        self._expectation = expectation
        self._change, self._rate, self._warmup = change, rate, warmup
        self._threshold = math.log(rarity)
        self.restart()

    def restart(self) -> None:
        self.now = _Learned()

    def add(self, step: int, observed: float, noise: float = 0.0) -> Shift | None:
        """Judge one observation and learn from it; after an alarm all is learned anew.

        noise: variance that it is known to have.
        """
        judged = self.now.seen >= self._warmup
        if judged and (found := self._judge(step, observed, noise)) is not None:
            self.restart()
            return found
        self._learn(observed)
        if self.now.since is None:
            self.now.good = step
        return None

    def _expected(self) -> float:
        if self._expectation == "target":
            return 0.5
        return self.now.best if self._expectation == "best" else self.now.level

    def _judge(self, step: int, observed: float, noise: float) -> Shift | None:
        now, expected = self.now, self._expected()
        least = (_LEAST_NOISE * self._change) ** 2
        # The variance is around the course, so that a fast but steady one makes no alarm likelier.
        variance = max(noise, now.variance, least)
        gain = self._change / variance * (observed - expected - self._change / 2)
        if self._expectation == "course":
            gain = min(gain, _MOST_AT_ONCE * self._threshold)
        now.sum = max(0.0, now.sum + gain)
        if now.sum == 0.0:
            now.since = None
        elif now.since is None:
            now.since = step
        if now.sum <= self._threshold:
            return None
        assert now.since is not None
        return Shift(since=now.since, good=now.good, observed=observed, expected=expected)

    def _learn(self, observed: float) -> None:
        now = self.now
        now.seen += 1
        if now.seen == 1:
            now.level = now.last = observed
        # Only jumps for the worse count, so that learning is no noise: half of all jumps, with
        # twice the variance of a score.
        score = self._expectation == "best"
        around = max(0.0, observed - now.last) if score else abs(observed - self._expected())
        if now.seen > self._warmup and now.variance > 0:
            around = min(around, _OUTLIER * math.sqrt(now.variance))
        # A change that has begun must not be learned as noise.
        doubtful = not score and now.sum > self._threshold / 4
        if now.seen > 1 and not doubtful:
            now.variance += max(_VARIANCE, 1 / (now.seen - 1)) * (around**2 - now.variance)
        now.level += max(self._rate, 1 / now.seen) * (observed - now.level)
        now.last = observed
        now.best = now.level if now.seen == 1 else min(now.best, now.level)


class Sentinel:
    """Tests all watched signals of one run; methods take what happens and return alarms."""

    def __init__(self, config: SentinelConfig) -> None:
        self._config = config
        self._tests: dict[tuple[str, ...], ShiftTest] = {}
        # The pool gives totals of games and points, so the last ones are kept to subtract.
        self._past = (0, 0.0)

    def learned(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        alarms = []
        if (entropy := metrics.get("entropy")) is not None:
            worse = -math.log(max(entropy, 0.0) + _NO_ENTROPY)
            alarms += self._judge(("entropy",), step, worse, lambda x: math.exp(-x) - _NO_ENTROPY)
        if (share := metrics.get("no_advantage_share")) is not None:
            alarms += self._judge(("no_advantage",), step, share)
        if (gap := metrics.get("seat_gap")) is not None:
            # A gap is worse in either direction, and a test looks upwards only.
            alarms += self._judge(("seat_gap", "up"), step, gap)
            alarms += self._judge(("seat_gap", "down"), step, -gap, lambda x: -x)
        return alarms

    def evaluated(self, result: EvalResult) -> list[Alarm]:
        if not result.games:
            return []
        points = result.wins + result.draws / 2
        return self._judge(
            ("score", f"{result.env_id} against {result.opponent}"),
            result.step,
            1 - points / result.games,
            lambda x: 1 - x,
            noise=result.score * (1 - result.score) / result.games,
        )

    def measured(self, result: ExactResult) -> list[Alarm]:
        return self._judge(("exploitability", result.env_id), result.step, result.nash_conv)

    def met_past(self, step: int, games: int, points: float) -> list[Alarm]:
        """Judge games against earlier versions. games, points: totals, points of the newer one."""
        new, won = games - self._past[0], points - self._past[1]
        if new < 1:
            return []
        self._past = games, points
        return self._judge(("past",), step, 1 - won / new, lambda x: 1 - x, noise=0.25 / new)

    def good(self) -> set[int]:
        """The last step of each test at which nothing was in doubt."""
        return {test.now.good for test in self._tests.values()}

    def restart(self) -> None:
        for test in self._tests.values():
            test.restart()

    def _judge(
        self,
        key: tuple[str, ...],
        step: int,
        worse: float,
        reading: Callable[[float], float] = lambda x: x,
        noise: float = 0.0,
    ) -> list[Alarm]:
        """Give an observation to the test of ``key``: its signal, and what tells it from others.

        worse: larger is worse. reading: turns such numbers back.
        """
        signal = cast("Signal", key[0])
        if signal not in self._config.watch:
            return []
        shift = self._test(key).add(step, worse, noise)
        if shift is None:
            return []
        observed, expected = reading(shift.observed), reading(shift.expected)
        about = key[1] if signal in ("score", "exploitability") else ""
        return [
            Alarm(
                step=step,
                signal=signal,
                about=about,
                since=shift.since,
                good=shift.good,
                observed=observed,
                expected=expected,
            )
        ]

    def _test(self, key: tuple[str, ...]) -> ShiftTest:
        if key not in self._tests:
            shift = self._config.shift
            # By signal: what is expected, the change that matters (half of the entropy; turns;
            # rewards; points; NashConv), the rate of its course, which lets fast learning pass
            # (benchmarks/sentinel.py says what is missed).
            kinds: dict[str, tuple[Expectation, float, float]] = {
                "entropy": ("course", -math.log(0.5), 0.07),
                "no_advantage": ("course", 0.4, 0.07),
                "seat_gap": ("course", 0.5, 0.03),
                "past": ("target", shift, 1.0),
                "exploitability": ("best", 0.2, 0.1),
            }
            expectation, change, rate = kinds.get(key[0], ("best", shift, 0.1))
            self._tests[key] = ShiftTest(
                expectation,
                change=change,
                rate=rate,
                rarity=self._config.rarity,
                warmup=1 if expectation == "best" else self._config.warmup,
            )
        return self._tests[key]

    def state_dict(self) -> dict[str, Any]:
        return {
            "past": list(self._past),
            "tests": [
                [list(key), dataclasses.asdict(test.now)] for key, test in self._tests.items()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        games, points = state["past"]
        self._past = games, points
        for key, learned in state["tests"]:
            self._test(tuple(key)).now = _Learned(**learned)
