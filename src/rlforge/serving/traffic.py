"""Who gets the new version in a trial: sticky by user, a growing share, one verdict."""

from __future__ import annotations

import hashlib
import secrets

from rlforge.config.serving import AbTestConfig
from rlforge.serving.records import Deployment
from rlforge.serving.sequential import Arm, MixtureSprt


def place(user: str, salt: str) -> float:
    """Where ``user`` stands in [0, 1), the same for ever and different with every ``salt``."""
    digest = hashlib.blake2b(f"{salt}/{user}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


class Trial:
    """A new version beside the current one.

    Each user has a fixed place in [0, 1); those below ``share`` get the new version, so a growing
    share moves users from the current version to the new one and never back. Requests without a
    user are shared out one by one.
    """

    def __init__(self, deployment: Deployment, config: AbTestConfig) -> None:
        self.deployment = deployment
        self._config = config
        self.test = MixtureSprt(
            alpha=config.alpha, effect=config.effect, min_outcomes=config.min_outcomes
        )

    @property
    def share(self) -> float:
        """Share of users with the new version: the next one after each ``step_outcomes``."""
        step = self.test.arms["new"].count // self._config.step_outcomes
        return self._config.shares[min(step, len(self._config.shares) - 1)]

    def arm(self, user: str | None) -> Arm:
        """Which version ``user`` gets; None: an anonymous request."""
        name = secrets.token_hex(8) if user is None else user
        return "new" if place(name, self.deployment.uid) < self.share else "current"

    @property
    def ending(self) -> str | None:
        """``promote`` or ``roll_back`` once that is decided."""
        if self.test.verdict is not None:
            return "promote" if self.test.verdict == "new_is_better" else "roll_back"
        if self.test.arms["new"].count >= self._config.max_outcomes:
            return "promote" if self._config.undecided == "promote" else "roll_back"
        return None

    def __str__(self) -> str:
        current, new = self.test.arms["current"], self.test.arms["new"]
        return (
            f"mean reward {new.mean:.3f} of {new.count} outcomes against {current.mean:.3f} of "
            f"{current.count} (p {self.test.p_value:.3g}, alpha {self._config.alpha:g})"
        )
