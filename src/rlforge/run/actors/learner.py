"""The learner's ranks as actors that write checkpoints, and a client that calls them as one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from rlforge.config.per_policy import policy_names
from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.errors import CheckpointError, ConfigError, RlforgeError, RunError
from rlforge.record.forms import checked
from rlforge.run.actors.folder import RunFolder
from rlforge.run.actors.process import DEATHS, begin, limit_threads, turn_file
from rlforge.samples import TrainBatch, UpdateResult
from rlforge.system.checkpoint import STATE, extend_checkpoint, step_name, write_checkpoint
from rlforge.system.files import reading
from rlforge.system.packages import statistics_hidden
from rlforge.system.utilisation import Span
from rlforge.types import Checkpoint

# Only the actors import torch, which takes seconds, and not the process that starts them.
if TYPE_CHECKING:
    from rlforge.learner import Learners

DEATH_REPORTED_S = 5.0
"""Seconds to wait for Ray's report of a dead rank."""


class LearnerActor:
    """One rank of the learner; rank 0 writes the checkpoints."""

    _learners: Learners

    def __init__(
        self,
        config: PolicyConfig,
        hardware: HardwareConfig,
        name: str,
        rank: int,
        folder: RunFolder,
    ) -> None:
        begin(name, folder.open())
        limit_threads(hardware.threads)
        self._folder = folder
        self._config, self._hardware, self._rank = config, hardware, rank
        self._kept: dict[str, Any] = {}

    def host(self) -> tuple[str, int]:
        """Open the store through which the ranks connect; returns address and port."""
        from rlforge.learner.ranks import meeting_point

        # Our own Ray has only this machine: no other machine may reach the ranks.
        address = "127.0.0.1"
        if self._hardware.ray_address is not None:
            address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._meeting_point = meeting_point(address, self._config.learner.num_learners)
        return address, self._meeting_point.port

    def start(self, meeting: tuple[str, int] | None) -> None:
        """Connect to other ranks at ``meeting``, and load the model."""
        with statistics_hidden():
            from rlforge.learner import make_learners
            from rlforge.learner.ranks import ConnectedRanks, Ranks, join, stay_local
            from rlforge.models.devices import exact_kernels, resolve_device

        if self._config.strict:
            exact_kernels()
        device, size = resolve_device(self._hardware.device), self._config.learner.num_learners
        ranks = Ranks()
        if meeting is not None:
            stay_local(meeting[0])
            store = join(*meeting, size) if self._rank else self._meeting_point
            ranks = ConnectedRanks(store, self._rank, size, device)
        # transformers imports the module of the model's architecture only here.
        with statistics_hidden():
            self._learners = make_learners(self._config, device, ranks, self._here)
        if self._hardware.alternate:
            self._learners.rest(offload=self._hardware.offload_learner)

    def _here(self, folder: str) -> str:
        found = self._folder.fetched(folder)
        return folder if found is None else ray.get(found)

    def begin_turn(self) -> None:
        turn_file(self._folder.path).touch()

    def end_turn(self) -> None:
        turn_file(self._folder.path).unlink(missing_ok=True)

    def update(
        self, batch: TrainBatch, name: str = "", number: int | None = None
    ) -> tuple[UpdateResult, Span]:
        """Learn from ``batch``; also returns start and end, in seconds of the wall clock.

        ``name`` is that of the policy, one of several. ``number`` counts the updates of all of
        them; None: the next one.
        """
        with self._awake():
            started = time.time()
            learner = self._learners.turn(name)
            if number is not None:
                learner.version = number - 1
            update = learner.update_with_digests if self._noted else learner.update
            result, ended = update(batch), time.time()
        return result, (started, ended)

    @property
    def _noted(self) -> bool:
        """Whether updates have digests of the weights."""
        # Digests of whole models would take seconds in each update.
        whole = self._config.learner.train == "full" and not self._config.strict
        return not (whole or self._config.learner.shard_weights)

    @contextlib.contextmanager
    def _awake(self) -> Iterator[None]:
        # With ``hardware.alternate`` the engines have the device after the block.
        if not self._hardware.alternate:
            yield
            return
        self._learners.wake()
        try:
            yield
        finally:
            self._learners.rest(offload=self._hardware.offload_learner)

    def measure(self, batch: TrainBatch) -> list[float]:
        """Log-probs of the answers in ``batch``."""
        return self._learners.turn().measure(batch.samples)

    def apply(self, function: Callable[..., Any], name: str, *arguments: Any) -> Any:
        """Call ``function(learner, rank, kept, *arguments)`` with the learner of a policy.

        ``kept`` is a mapping that the calls of this actor share.
        """
        with self._awake():
            return function(self._learners.turn(name), self._rank, self._kept, *arguments)

    def take_smaller_steps(self, factor: float, name: str = "") -> None:
        self._learners.turn(name).take_smaller_steps(factor)

    def refresh_reference(self, name: str = "") -> None:
        self._learners.turn(name).refresh_reference()

    def go_back(self, version: int, name: str = "") -> None:
        """Train a policy on from its saved version; updates are counted on."""
        # Without a folder version 0 was not saved: it is the model without an adapter.
        folder = self._folder.checkpoint(step_name(version, name))
        self._learners.turn(name).go_back(folder, version)

    def begin_anew(self, name: str, number: int, like: str | None) -> dict[str, str]:
        """Give one of several policies the weights of its start, or of the policy ``like``.

        That counts as the update ``number`` of the run. Returns digests of the new state.
        """
        learner = self._learners.turn(name)
        learner.begin_anew(number, None if like is None else self._learners.other(like))
        return learner.digests() if self._noted else {}

    def save(
        self,
        version: int,
        parent_uid: str | None,
        meta: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> Checkpoint | None:
        """Write a policy's weights as version ``version``, all at once or not at all.

        Ranks above 0 return None. Raises CheckpointError when the version exists or the disk is
        full.

        Args:
            meta: Further facts for the manifest, JSON-ready.
            state: JSON values of other parts of the run; with them (even if empty) the checkpoint
                has the learner's own state, too, and a run can resume from it.
        """
        if self._rank:
            self._learners.turn(name).save(None)
            if state is not None:
                self._save_states_elsewhere()
            return None
        from rlforge.learner import write_state

        def fill(folder: Path) -> None:
            self._learners.turn(name).save(folder)
            if state is not None:
                write_state(folder, self._learners, state)

        uid = step_name(version, name)
        facts = {"version": version, "experiment": self._config.name, "parent_uid": parent_uid}
        if name:
            facts |= {"policy": name, "first_policy": policy_names(self._config)[0]}
        write_checkpoint(self._folder.checkpoints, uid, fill, {**facts, **(meta or {})})
        path = self._folder.hand_in(uid)
        return Checkpoint(uid=uid, version=version, path=path, parent_uid=parent_uid, name=name)

    def save_state(self, uid: str, others: Mapping[str, Any]) -> None:
        """Add the state of all policies and JSON values of ``others`` to the checkpoint ``uid``."""
        if self._rank:
            self._save_states_elsewhere()
            return
        from rlforge.learner import write_state

        extend_checkpoint(
            self._folder.checkpoints / uid,
            lambda folder: write_state(folder, self._learners, others),
        )
        self._folder.hand_in(uid)

    def _save_states_elsewhere(self) -> None:
        """Gather spread states, which rank 0 writes."""
        for learner in self._learners.each():
            learner.save_state(None)

    def load_state(self, uid: str, version: int | None = None) -> dict[str, Any]:
        """Continue from checkpoint ``uid`` (``step-3``); returns what other parts saved in it.

        ``version`` is where updates are counted from instead, so that versions after ``uid`` keep
        their numbers. Raises CheckpointError when the checkpoint is missing or damaged.
        """
        from rlforge.learner import read_state

        path = self._folder.checkpoint(uid)
        if path is None:
            raise CheckpointError(f"the run has no checkpoint {uid} to resume from")
        file = path / STATE / "run.json"
        with reading(file, "put a copy in its place"):
            state = checked(file, read_state(path, self._learners))
        for learner in self._learners.each():
            if version is not None:
                learner.version = version
            # Batches to come have tokens of earlier versions, whose adapters measure their gap.
            learner.recall(self._folder.checkpoint)
        return state


class LearnerGroup:
    """All ranks as one learner, which has the methods of ``LearnerActor`` as coroutines.

    Every call goes to all ranks and returns the answer of rank 0; a rank that fails fails it.
    RlforgeErrors are raised as they are, other errors as Ray's, which end the run. A batch is Ray's
    reference to it: it goes straight from the buffer to the ranks.
    """

    def __init__(self, actors: Sequence[Any]) -> None:
        """Take the actors by rank."""
        self._actors = tuple(actors)

    async def start(self) -> None:
        several = len(self._actors) > 1
        await self._all("start", await self._actors[0].host.remote() if several else None)

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        return partial(self._all, method)

    async def _all(self, method: str, *arguments: Any, **named: Any) -> Any:
        calls = [
            asyncio.ensure_future(getattr(actor, method).remote(*arguments, **named))
            for actor in self._actors
        ]
        try:
            return (await asyncio.gather(*calls))[0]
        except ray.exceptions.RayTaskError as error:
            # When a rank dies the others fail, too, often before Ray reports its death, the cause.
            _, waiting = await asyncio.wait(calls, timeout=DEATH_REPORTED_S)
            ended = [call.exception() for call in calls if call.done()]
            deaths = (each for each in ended if isinstance(each, DEATHS))
            cause = next(deaths, error)
            # A RayTaskError has the rank's own error as its cause.
            own = getattr(cause, "cause", None)
            # A ConfigError would mean to the caller that nothing was started.
            if isinstance(own, ConfigError):
                own = RunError(str(own))
            # While a rank waits for the failed one no call would return: Ray's error ends the run.
            raise (own if isinstance(own, RlforgeError) and not waiting else cause) from None
