"""Evaluates the versions of a run while it trains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rlforge.config.schema import RunConfig
from rlforge.run.actors.cluster import RunActors
from rlforge.run.collection import Collection
from rlforge.run.evaluations import Evaluations
from rlforge.run.observers import Observers
from rlforge.run.policies import Policies


class Measuring:
    """The evaluations of a run at its start, every ``eval.every`` updates, and at its end."""

    def __init__(
        self,
        config: RunConfig,
        actors: RunActors,
        collection: Collection,
        policies: Policies,
        observers: Observers,
        part: int,
    ) -> None:
        self._config, self._policies, self._collection = config, policies, collection
        collectors = list(actors.replicas("collector"))
        #: What is played and recorded; the controller begins and closes it.
        self.evaluations = Evaluations(
            config,
            collectors,
            collection.evaluate,
            collection.evaluated,
            observers.evaluated,
            observers.evaluating,
            part=part,
        )

    async def started(self, version: int, published: Callable[[], Awaitable[None]]) -> None:
        """Evaluate what the run begins with. version: 0, or that of the state it goes on from."""
        if version == 0:
            self.evaluations.evaluate(self._policies.seated(), published, edge=True)
        else:
            await self.updated(version, published)
            self.evaluations.follow(self._policies.seated())
        await self._settled()

    async def updated(self, version: int, published: Callable[[], Awaitable[None]]) -> None:
        """After an update: evaluate its version where ``eval.every`` says so.

        The last version is evaluated at the end.
        """
        settings, last = self._config.eval, version == self._config.learner.total_updates
        due = settings.every and version % settings.every == 0
        if due and not last and not settings.continuous:
            self.evaluations.evaluate(self._policies.seated(), published, edge=False)
        await self._settled()

    async def _settled(self) -> None:
        if self._collection.in_order:
            await self.evaluations.finish()

    def published(self, version: int) -> None:
        """The engines have a version; 0 has the evaluation of the start."""
        if version:
            self.evaluations.follow(self._policies.seated())

    async def end(self, published: Callable[[], Awaitable[None]], *, interrupted: bool) -> None:
        """Evaluate the last version after all others; nothing more where it is interrupted."""
        if interrupted:
            self.evaluations.cancel()
            return
        self.evaluations.close()
        await self.evaluations.finish()
        self.evaluations.evaluate(self._policies.seated(), published, edge=True)
        await self.evaluations.finish()
