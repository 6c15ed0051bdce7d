"""Which version answers a request: decided once, at its beginning.

In a trial each user has a fixed place; a growing share of the users gets the new version.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from rlforge.config.serving import AbTestConfig
from rlforge.engines.base import Engine, OnTokens
from rlforge.serving.records import Deployment
from rlforge.serving.statistics import Arm, MixtureSprt
from rlforge.types import Completion, PolicyRef, SamplingParams, value


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


@value
class Live:
    """What is served: a version, and perhaps one on trial. Replaced whole, never changed."""

    current: Deployment
    trial: Trial | None = None

    def served(self) -> tuple[Deployment, ...]:
        """The versions that requests may name."""
        return (self.current, *((self.trial.deployment,) if self.trial is not None else ()))


class Router:
    """Sends requests to versions on ``engine``; ``live`` is assigned to change what is served.

    The event loop runs nothing between reading ``live`` and choosing a version by it, so each
    request sees one state of it and finishes on the version that it began with.
    """

    live: Live

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._leases: Counter[str] = Counter()

    @property
    def leased(self) -> Collection[str]:
        """Paths of versions with requests under way: the engine may read their files again."""
        return set(self._leases)

    def route(self, user: str | None) -> PolicyRef:
        """The version that ``user`` gets now; None: a request without a user."""
        live = self.live
        if live.trial is not None and live.trial.arm(user) == "new":
            return live.trial.deployment.policy()
        return live.current.policy()

    async def answer(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        policy: PolicyRef,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """Ask the engine; the files of ``policy`` stay on disk until it has answered."""
        with self._lease(policy.path_or_name or ""):
            return await self.engine.generate(prompt_token_ids, params, policy, on_tokens)

    @contextlib.contextmanager
    def _lease(self, path: str) -> Iterator[None]:
        self._leases[path] += 1
        try:
            yield
        finally:
            self._leases[path] -= 1
            if not self._leases[path]:
                del self._leases[path]
