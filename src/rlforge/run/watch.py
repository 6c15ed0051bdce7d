"""Reports of a run besides its updates: the load of engines, API players, shares."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from itertools import chain

from rlforge.config.per_policy import of_policy, policy_names
from rlforge.config.schema import RunConfig
from rlforge.rollout.lineup import eval_pairings, fixed_opponents
from rlforge.run.actors.calls import ActorCalls
from rlforge.run.actors.cluster import RunActors
from rlforge.run.actors.engine import EngineReport
from rlforge.system.utilisation import Span, Utilisation

POLL_S = 5.0
"""Seconds between reports of the engines, and of API players."""


class Watch:
    """Polls engines and API players for the tracker, and measures who works when."""

    def __init__(
        self,
        config: RunConfig,
        actors: RunActors,
        calls: ActorCalls,
        note: Callable[[str], None],
        started: float,
    ) -> None:
        """Take as ``started`` when the run began, in seconds of the wall clock."""
        self._actors, self._calls, self._note = actors, calls, note
        self._started, self._places = started, config.engine.max_parallel_seq
        self._reports: dict[str, tuple[float, EngineReport]] = {}
        self._utilisation = Utilisation(time.time())
        #: By engine, the mean share of its places in use.
        self._occupied: dict[str, float] = {}
        met = [pairing.opponents for pairing in eval_pairings(config)]
        met += [fixed_opponents(of_policy(config, name)) for name in policy_names(config)]
        self._api_plays = any(policy.kind == "api" for policy in chain(*met))
        #: Whether it was said that no game with API players may begin any more.
        self._api_closed = False

    def begin(self) -> None:
        """Count shares of time from now on."""
        self._utilisation = Utilisation(time.time())

    def learner_worked(self, span: Span) -> None:
        self._utilisation.learner_worked(span)

    def shares(self) -> dict[str, float]:
        """Shares of the time in which engines, learner, and neither worked."""
        return self._utilisation.shares(time.time())

    def figures(self) -> dict[str, float]:
        """``shares``, and the mean occupancy of the engines once it is known."""
        occupied = self._occupied.values()
        return self.shares() | ({"engine_occupancy": statistics.mean(occupied)} if occupied else {})

    async def engine(self, name: str) -> None:
        """Report on an engine while it is there."""
        while True:
            await self._calls.back(name)
            await self._look_at(name)
            await asyncio.sleep(POLL_S)

    async def api(self) -> None:
        while self._api_plays:
            await self._look_at_api()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """Report once on everything that is there."""
        await asyncio.gather(*map(self._look_at, self._actors.present("engine")))
        if self._api_plays:
            await self._look_at_api()

    async def _look_at(self, engine: str) -> None:
        report: EngineReport | None = await self._calls.ask(engine, "report")
        if report is None:
            return
        now = time.time()
        then, before = self._reports.get(engine, (self._started, None))
        self._reports[engine] = now, report
        self._utilisation.engines_worked(report.spans)
        if report.restarted_since(before):
            self._calls.count_restart(engine)
        load = report.throughput(before, now - then)
        self._actors.tracker.log_inference.remote(engine, load)
        if before is not None:
            in_use = load["sequences"] / self._places
            # The mean moves slowly, because a single report varies with the games that begin.
            mean = self._occupied.setdefault(engine, in_use)
            self._occupied[engine] = mean + 0.3 * (in_use - mean)

    async def _look_at_api(self) -> None:
        players, figures, closed = await self._actors.pool.api_usage.remote()
        self._actors.tracker.log_api.remote(players, figures)
        if closed is not None and not self._api_closed:
            self._api_closed = True
            self._note(f"{closed}; no further game with API players begins, and the run goes on")
