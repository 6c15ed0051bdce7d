"""Which version answers a request: decided once, at its beginning."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from rlforge.engines.base import Engine, OnTokens
from rlforge.serving.records import Deployment
from rlforge.serving.traffic import Trial
from rlforge.types import Completion, PolicyRef, SamplingParams, value


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
        self._engine = engine
        self._leases: Counter[str] = Counter()

    @property
    def leased(self) -> Collection[str]:
        """Versions with requests under way: the engine may have to read their files again."""
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
        with self._lease(policy.uid):
            return await self._engine.generate(prompt_token_ids, params, policy, on_tokens)

    async def load(self, policy: PolicyRef) -> None:
        """Make ``policy`` resident in the engine."""
        await self._engine.load(policy)

    @contextlib.contextmanager
    def _lease(self, uid: str) -> Iterator[None]:
        self._leases[uid] += 1
        try:
            yield
        finally:
            self._leases[uid] -= 1
            if not self._leases[uid]:
                del self._leases[uid]
