"""A service that replaces versions of a policy while it answers requests.

    deploy ─▶ validating ─▶ checkpointing ─▶ swapping ─▶ verifying ─▶ live          (replace)
                  │               │              │            ├─────▶ trial ─▶ live  (ab_test)
                  ▼               ▼              ▼            ▼         ▼
              rejected          failed         failed    rolled_back  rolled_back

``deployer`` carries a version through these phases, ``journal`` stores the state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from rlforge.config.model import ModelConfig
from rlforge.continuous.config.serving import DeploymentConfig
from rlforge.continuous.serving.deployer import Deployer
from rlforge.continuous.serving.journal import owned
from rlforge.continuous.serving.records import Arm, Deployment, Holdout, Probe, TrialOutcome
from rlforge.engines.base import Engine, OnTokens
from rlforge.errors import DeploymentError, PolicyLoadError
from rlforge.types import Checkpoint, Completion, PolicyRef, SamplingParams

T = TypeVar("T")


class DeploymentService(Deployer):
    """Routes requests to versions on an engine, and replaces the versions.

    Made by ``open``, called from one event loop. One process at a time owns its folder.
    """

    _held: contextlib.ExitStack

    @classmethod
    async def open(
        cls,
        folder: Path,
        engine: Engine,
        config: DeploymentConfig,
        model: ModelConfig,
        probes: Sequence[Probe],
        *,
        holdout: Holdout | None = None,
        on_phase: Callable[[Deployment], None] | None = None,
        rewards: tuple[float, float] = (-1e6, 1e6),
    ) -> Self:
        """Serve the last version served from ``folder``; in a new folder, the engine's base model.

        Raises ConfigError for impossible settings, RunError when another process owns the folder,
        DeploymentError when no version in it can be served, EngineError when the base does not
        answer.

        Args:
            folder: Holds the state, and copies of adapters.
            engine: Answers with the versions.
            config: The group ``deployment``.
            model: Which adapters must fit.
            probes: Requests that new versions must answer; at least one.
            holdout: Compares new versions with the current one, if any.
            on_phase: Called with a deployment after every change of it.
            rewards: The least and the largest outcome of a trial.
        """
        with contextlib.ExitStack() as held:
            journal = held.enter_context(owned(folder))
            service = cls(
                folder, engine, journal, config, model, probes, holdout, on_phase, rewards
            )
            await service._resume()
            service._held = held.pop_all()
            return service

    async def close(self) -> None:
        """Cancel changes under way and release the folder; the caller closes the engine."""
        for task in self._tasks:
            task.cancel()
        # Cancelled tasks may still write to the journal.
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._held.close()

    # ------------------------------------------------------------ requests

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        user: str | None = None,
        policy: PolicyRef | None = None,
        on_tokens: OnTokens | None = None,
        on_policy: Callable[[PolicyRef], None] | None = None,
    ) -> Completion:
        """Continue a prompt with the version of ``user``, or with ``policy``, to the end.

        on_policy: called first, with the version that answers. Raises EngineError, and
        PolicyLoadError where no trained version is left.
        """

        async def answer(chosen: PolicyRef) -> Completion:
            if on_policy is not None:
                on_policy(chosen)
            # The version's files stay while the engine may read them again.
            self._in_use[chosen.path_or_name] += 1
            try:
                return await self._engine.generate(prompt_token_ids, params, chosen, on_tokens)
            finally:
                self._in_use[chosen.path_or_name] -= 1

        if policy is not None:
            return await answer(policy)
        chosen = self.route(user)
        try:
            return await answer(chosen)
        # The version's files are damaged: the one before answers, unless the caller names one.
        except PolicyLoadError as error:
            try:
                await self._to_its_end(self._set_aside(chosen, str(error)))
            except DeploymentError as nothing:
                raise PolicyLoadError(f"{error}; {nothing}") from error
        return await answer(self.route(user))

    # ------------------------------------------------------------ deployments

    def stack(self) -> list[Deployment]:
        """The version that is served, then the former ones that are kept."""
        return self._journal.live()

    def history(self) -> list[Deployment]:
        return self._journal.history()

    async def deploy(
        self, adapter: Checkpoint | Path | str, *, holdout: Holdout | None = None
    ) -> Deployment:
        """Serve ``adapter``: a checkpoint, an adapter's directory, or a run (its result).

        Failures of adapter, engine and disk are not raised: ``reason`` says why the previous
        version is still served. holdout: replaces the service's own.
        """
        return await self._to_its_end(self._deploy(adapter, holdout or self._holdout))

    async def deploy_staged(self) -> list[Deployment]:
        staged = [d for d in self.history() if d.phase == "staged"]
        root = self.folder.parent
        return [
            await self._to_its_end(self._deploy(root / d.source, self._holdout, d)) for d in staged
        ]

    async def rollback(self, reason: str = "requested") -> Deployment:
        """End the trial, or serve the version before; DeploymentError where none can be."""
        if (trial := self.trial) is not None:
            await self._to_its_end(self._conclude(trial, "roll_back", reason))
            return self.current
        return await self._to_its_end(self._go_back(self.current, reason))

    async def record_outcome(
        self,
        reward: float,
        *,
        uid: str,
        key: str | None = None,
        cluster: str | None = None,
        stage: str | None = None,
    ) -> bool:
        """Count the reward of an answer in the trial under way; False where it is not of it.

        Raises ValueError for a reward outside of ``rewards``. key: names the answer, which counts
        once. cluster, stage: see ``MixtureSprt``.
        """
        low, high = self._rewards
        if not low <= reward <= high:
            raise ValueError(f"a reward must be a number in [{low:g}, {high:g}], not {reward}")
        trial = self.trial
        if trial is None or uid not in (self.current.uid, trial.deployment.uid):
            return False
        arm: Arm = "new" if uid == trial.deployment.uid else "current"
        number = trial.deployment.number
        outcome = TrialOutcome(arm=arm, reward=reward, cluster=cluster, stage=stage)
        # Written first, because a restarted trial goes on from the disk.
        if not await asyncio.to_thread(self._journal.add_outcome, number, outcome, key):
            return False
        trial.add(arm, reward, cluster=cluster, stage=stage)
        if (ending := trial.ending) is not None:
            await self._to_its_end(self._conclude(trial, ending, str(trial)))
        return True

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        # A client that goes away must not leave half a deployment.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)
