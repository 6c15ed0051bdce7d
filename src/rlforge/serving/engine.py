"""The engine of a service: actors in processes of their own, which Ray restarts when they die."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import ray

from rlforge.actors.engine import EngineActor
from rlforge.actors.engine_client import RemoteEngine
from rlforge.actors.process import restarted
from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.engines.base import EngineStats, OnTokens
from rlforge.errors import EngineDeadError, EngineError, RunError
from rlforge.system.utilisation import Span
from rlforge.types import Completion, PolicyRef, SamplingParams

log = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between looks at the actors."""

RETRIES = 1
"""How often a request whose engine died is asked again: one that kills engines must end."""

_NOTHING = EngineStats(
    queued=0,
    running=0,
    requests=0,
    prompt_tokens=0,
    generated_tokens=0,
    busy_s=0.0,
    resident=(),
)


class ActorEngine:
    """The engine protocol over engine actors (see ``rlforge.engines.base``).

    A request or a loading whose actor died is asked again once Ray has brought it back.
    ``stats`` are those of the last look. A Ray must be running.
    """

    def __init__(self, actors: Sequence[Any], *, client: str, timeout_s: float) -> None:
        self._actors = list(actors)
        self._remote = RemoteEngine(actors, client, timeout_s=timeout_s, retries=RETRIES)
        self._stats = [_NOTHING] * len(self._actors)
        self._spans: list[Span] = []
        self._here = [True] * len(self._actors)
        self._gone = asyncio.Event()
        self._watch = asyncio.get_running_loop().create_task(self._look_for_ever())

    @property
    def ready(self) -> bool:
        """Whether an actor answered the last look."""
        return any(self._here)

    async def gone(self) -> None:
        """Returns when an actor is dead for good."""
        await self._gone.wait()

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        policy: PolicyRef,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        return await self._remote.generate(prompt_token_ids, params, policy, on_tokens)

    async def load(self, policy: PolicyRef) -> None:
        await asyncio.gather(*(self._load(index, policy) for index in range(len(self._actors))))

    async def _load(self, index: int, policy: PolicyRef) -> None:
        actor = self._actors[index]
        for _ in range(RETRIES + 1):
            try:
                return await actor.load.remote(policy)  # type: ignore[no-any-return]
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, EngineError):  # without Ray's stack around it
                    raise error.cause from None
                raise
            except ray.exceptions.RayActorError as error:
                last = error
            try:
                await restarted(actor, f"engine-{index}")
            except (ray.exceptions.RayActorError, RunError):
                break
        raise EngineDeadError(f"the engine died while loading {policy.uid}: {last}")

    def stats(self) -> EngineStats:
        numbers = [dataclasses.asdict(stats) for stats in self._stats]
        resident = {uid for stats in self._stats for uid in stats.resident}
        keys = numbers[0].keys() - {"resident"}
        return EngineStats(
            **{key: sum(each[key] for each in numbers) for key in keys},
            resident=tuple(sorted(resident)),
        )

    def take_busy_spans(self) -> list[Span]:
        spans, self._spans = self._spans, []
        return spans

    async def close(self) -> None:
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        ends = [actor.close.remote() for actor in self._actors]
        await asyncio.gather(*ends, return_exceptions=True)

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.gather(*(self._look(index) for index in range(len(self._actors))))
            await asyncio.sleep(POLL_S)

    async def _look(self, index: int) -> None:
        try:
            report = await self._actors[index].report.remote()
        except ray.exceptions.ActorUnavailableError as error:
            if self._here[index]:
                log.warning("engine-%d died and is restarted: %s", index, error)
            self._here[index] = False
            return
        except ray.exceptions.RayActorError as error:
            log.error("engine-%d is gone for good: %s", index, error)
            self._here[index] = False
            self._gone.set()
            return
        self._here[index], self._stats[index] = True, report.stats
        # Nobody needs to take them: only the newest are kept.
        self._spans = [*self._spans, *report.spans][-1000:]


async def start_engine(
    config: PolicyConfig, hardware: HardwareConfig, folder: str, *, max_restarts: int
) -> ActorEngine:
    """``engine.num_engines`` actors with their model loaded; their logs are in ``folder``/logs.

    Raises what an actor's constructor raised, wrapped by Ray (see
    ``rlforge.actors.cluster.reason``).
    """
    made: Any = ray.remote(EngineActor)
    actors = [
        made.options(
            name=f"engine-{index}",
            num_cpus=1,
            num_gpus=hardware.engine_gpus,
            max_restarts=max_restarts,
            max_concurrency=1000,
        ).remote(config, hardware, f"engine-{index}", folder)
        for index in range(config.engine.num_engines)
    ]
    await asyncio.gather(*(actor.__ray_ready__.remote() for actor in actors))
    return ActorEngine(actors, client="service", timeout_s=config.engine.request_timeout_s)
