"""A continuous run from its configuration to its report."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time
from pathlib import Path

from rlforge.config.continuous import ContinuousConfig
from rlforge.config.schema import HardwareConfig
from rlforge.continuous.assembly import Assembly, assembled
from rlforge.continuous.comparison import compare_once, final_reward, in_words
from rlforge.continuous.endpoint import endpoint
from rlforge.continuous.trainer import ContinuousTrainer
from rlforge.errors import RlforgeError, RunError
from rlforge.system.hardware import versions
from rlforge.tracking.display import Display, make_display
from rlforge.tracking.files import create_run
from rlforge.tracking.logs import enter
from rlforge.types import value

log = logging.getLogger(__name__)

#: Signals closer together than this are one: shells and ``timeout`` send them twice.
_ONE_SIGNAL_S = 1.0


@value
class ContinuousOutcome:
    """How a run ended. windows: done so far, those of earlier parts of the run included.

    mean_reward: of the policy's decisions in the markets that it is compared in at the end, else
    in the last window; nan before the first.
    """

    run_dir: Path
    windows: int
    interrupted: bool
    mean_reward: float

    def objective(self) -> float:
        """What a sweeper maximises: the mean reward, the worst there is where there is none."""
        return self.mean_reward if math.isfinite(self.mean_reward) else -math.inf


class ContinuousRun:
    """One run in ``run_dir``, which exists, holds its config.yaml, and is locked by the caller."""

    def __init__(self, config: ContinuousConfig, hardware: HardwareConfig, run_dir: Path) -> None:
        self._config, self._hardware = config, hardware
        self._paths = create_run(run_dir)
        self._interrupted_at: float | None = None

    def execute(self) -> ContinuousOutcome:
        """Begin, or go on with what is there, to the end or to the first signal."""
        return asyncio.run(self.main())

    async def main(self) -> ContinuousOutcome:
        """The same inside an event loop; its signals are caught."""
        enter("continuous", str(self._paths.root))
        stop = asyncio.Event()
        self._catch_signals(stop)
        config = self._config
        about = {"seed": config.seed, "versions": versions(), "experiment": config.name}
        with make_display(config.tracker, config.name) as display:
            display.note("loading the model")
            async with assembled(config, self._hardware, self._paths, stop, about) as assembly:
                return await self._train(assembly, stop, display)

    async def _train(
        self, assembly: Assembly, stop: asyncio.Event, display: Display
    ) -> ContinuousOutcome:
        parts = assembly.parts
        parts.records.take_up(parts.journal.entries(), display.note)
        try:
            await self._take_up(assembly)
            async with endpoint(self._config, assembly, stop, display.note):
                await compare_once("before", assembly, self._config, self._paths, display.note)
                trainer = ContinuousTrainer(self._config, parts, self._paths.root, stop)
                done = await trainer.run()
                comparison = {}
                if done:
                    comparison = await compare_once(
                        "after", assembly, self._config, self._paths, display.note
                    )
        except RlforgeError as error:
            parts.records.close("failed", {"error": str(error)})
            raise
        last = parts.journal.last()
        windows = 0 if last is None else last.number - (last.phase != "done")
        parts.records.close(
            "done" if done else "interrupted",
            {"serving": parts.deployments.serving(), "comparison": comparison},
        )
        for line in in_words(comparison):
            display.note(line)
        return ContinuousOutcome(
            run_dir=self._paths.root,
            windows=windows,
            interrupted=not done,
            mean_reward=final_reward(comparison, parts.records.policy_reward),
        )

    async def _take_up(self, assembly: Assembly) -> None:
        """Bring learner and service to where they were; both know it from their own files."""
        parts = assembly.parts
        start = await asyncio.to_thread(parts.learner.begin)
        untouched = parts.deployments.serving() == "step-0"
        if untouched and self._config.learner.initial_adapter and not assembly.service.current.path:
            deployed = await parts.deployments.deploy(start)
            if not deployed.success:
                raise RunError(f"learner.initial_adapter does not serve: {deployed.reason}")
        await asyncio.to_thread(parts.learner.restore, parts.deployments.serving())

    def _catch_signals(self, stop: asyncio.Event) -> None:
        """First Ctrl-C or SIGTERM: end after this phase. Second: end at once."""
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            now = time.monotonic()
            if self._interrupted_at is None:
                self._interrupted_at = now
                log.warning("asked to end: this phase is finished first")
                stop.set()
            elif now - self._interrupted_at > _ONE_SIGNAL_S:
                raise KeyboardInterrupt

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
