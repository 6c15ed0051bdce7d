"""Which version answers a request: decided once, when the request begins.

In a trial each user has a fixed place; a growing share of the users gets the new version.
"""

from __future__ import annotations

import hashlib
import secrets

from rlforge.continuous.config.serving import AbTestConfig
from rlforge.continuous.serving.records import Arm, Deployment
from rlforge.continuous.serving.statistics import MixtureSprt
from rlforge.types import PolicyRef, value

#: Difference of mean rewards for which a trial is most powerful (sd of the normal mixture).
EFFECT = 0.03
#: Outcomes of each version before a trial may give a verdict.
MIN_OUTCOMES = 50


def place(user: str, salt: str) -> float:
    """The place of ``user`` in [0, 1): uniform over users, fixed for each ``salt``."""
    digest = hashlib.blake2b(f"{salt}/{user}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


class Trial:
    """A comparison of a new version with the current one on the requests of users.

    Each user has a fixed place in [0, 1); those below ``share``, which grows with the number of
    outcomes, get the new version. A request without a user gets a random place.

    Example:
        >>> new = Deployment(number=2, phase="trial", strategy="ab_test", source="step-40")
        >>> trial = Trial(new, AbTestConfig(shares=[0.1, 0.5], step_outcomes=2))
        >>> trial.share, trial.arm("agent-1"), trial.arm("agent-2")
        (0.1, 'current', 'current')
        >>> trial.add("current", 0.3)
        >>> trial.add("new", 0.7)
        >>> trial.share, trial.arm("agent-1"), trial.arm("agent-2")
        (0.5, 'current', 'new')
    """

    def __init__(self, deployment: Deployment, config: AbTestConfig) -> None:
        self.deployment = deployment
        self._config = config
        self.test = MixtureSprt(alpha=config.alpha, effect=EFFECT, min_outcomes=MIN_OUTCOMES)

    @property
    def share(self) -> float:
        """Share of users with the new version; the next of ``shares`` every ``step_outcomes``."""
        step = self.test.outcomes // self._config.step_outcomes
        return self._config.shares[min(step, len(self._config.shares) - 1)]

    def arm(self, user: str | None) -> Arm:
        """The version of ``user``; None: a request without a user."""
        name = secrets.token_hex(8) if user is None else user
        return "new" if place(name, self.deployment.uid) < self.share else "current"

    def add(
        self, arm: Arm, reward: float, *, cluster: str | None = None, stage: str | None = None
    ) -> None:
        """Include an outcome. stage: None takes stretches of ``MIN_OUTCOMES`` outcomes."""
        if stage is None:
            stage = str(self.test.outcomes // MIN_OUTCOMES)
        self.test.add(arm, reward, cluster=cluster, stage=stage)
        if self.test.outcomes >= self._config.max_outcomes:
            self.test.look()

    @property
    def ending(self) -> str | None:
        """``promote`` or ``roll_back`` once the test or ``max_outcomes`` has decided."""
        if self.test.verdict is not None:
            return "promote" if self.test.verdict == "new_is_better" else "roll_back"
        if self.test.outcomes >= self._config.max_outcomes:
            return "promote" if self._config.undecided == "promote" else "roll_back"
        return None

    def __str__(self) -> str:
        current, new = self.test.arms["current"], self.test.arms["new"]
        return (
            f"mean reward {new.mean:.3f} of {new.count} outcomes against {current.mean:.3f} of "
            f"{current.count}, {self.test.difference:+.3f} within stages (p "
            f"{self.test.p_value:.3g}, alpha {self._config.alpha:g})"
        )


@value
class Live:
    """The versions that are served: the current one, and during a trial a new one. Immutable."""

    current: Deployment
    trial: Trial | None = None

    def served(self) -> tuple[Deployment, ...]:
        """The versions that requests may name."""
        return (self.current, *((self.trial.deployment,) if self.trial is not None else ()))

    def route(self, user: str | None) -> PolicyRef:
        """The version of ``user`` now; None: a request without a user."""
        if self.trial is not None and self.trial.arm(user) == "new":
            return self.trial.deployment.policy()
        return self.current.policy()
