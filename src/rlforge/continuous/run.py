"""A continuous run from its configuration to its report."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from rlforge.config.continuous import ContinuousConfig
from rlforge.config.schema import HardwareConfig
from rlforge.continuous.assembly import DEPLOYMENTS, Assembly, PolicySide, assembled
from rlforge.continuous.performance import POLICY
from rlforge.continuous.trainer import ContinuousTrainer
from rlforge.errors import RlforgeError, RunError
from rlforge.serving.guard import make_token
from rlforge.serving.server import answer_requests, found_at, http_over, listen, url_of
from rlforge.system.checkpoint import step_name
from rlforge.system.hardware import versions
from rlforge.tracking.display import Display, make_display
from rlforge.tracking.files import create_run, open_log, read_json, write_json
from rlforge.tracking.formatting import number, percent
from rlforge.types import value

log = logging.getLogger(__name__)

#: Signals closer together than this are one: shells and ``timeout`` send them twice.
_ONE_SIGNAL_S = 1.0

#: The figures of a comparison that are printed, and how each is written.
_FIGURES: Mapping[str, Callable[[float | None], str]] = {
    "win_rate": lambda share: percent(share, 1),
    "avg_reward": lambda mean: number(mean, 3),
    "avg_pnl": lambda mean: number(mean, 3),
}


@value
class ContinuousOutcome:
    """How a run ended. windows: done so far, those of earlier parts of the run included.

    mean_reward: of the policy's decisions in the comparison after training, else in the last
    window; nan before the first.
    """

    run_dir: Path
    windows: int
    interrupted: bool
    mean_reward: float

    def objective(self) -> float:
        """What a sweeper maximises: the mean reward, or -inf where there is none."""
        return self.mean_reward if math.isfinite(self.mean_reward) else -math.inf


class ContinuousRun:
    """One run in ``run_dir``, which exists, holds its config.yaml, and is locked by the caller."""

    def __init__(self, config: ContinuousConfig, hardware: HardwareConfig, run_dir: Path) -> None:
        self._config, self._hardware = config, hardware
        self._paths = create_run(run_dir)
        self._interrupted_at: float | None = None
        self._display: Display

    def execute(self) -> ContinuousOutcome:
        """Begin or resume, until all windows are done or a signal comes."""
        return asyncio.run(self._main())

    async def _main(self) -> ContinuousOutcome:
        open_log("continuous", str(self._paths.root))
        stop = asyncio.Event()
        self._catch_signals(stop)
        config = self._config
        about = {"seed": config.seed, "versions": versions(), "experiment": config.name}
        with make_display(config.tracker, config.name) as self._display:
            self._display.note("loading the model")
            async with assembled(config, self._hardware, self._paths, stop, about) as parts:
                return await self._train(parts, stop)

    async def _train(self, parts: Assembly, stop: asyncio.Event) -> ContinuousOutcome:
        records, note = parts.records, self._display.note
        records.take_up(parts.journal.entries(), note)
        comparison: dict[str, Any] = {}
        try:
            await self._take_up(parts)
            async with _served_over_http(self._config, parts.policy, self._paths.root, stop, note):
                await self._compare("before", parts.policy)
                done = await ContinuousTrainer(self._config, parts, self._paths.root, stop).run()
                if done:
                    comparison = await self._compare("after", parts.policy)
        except RlforgeError as error:
            records.close("failed", {"error": str(error)})
            raise
        records.close(
            "done" if done else "interrupted",
            {"serving": parts.policy.deployments.serving(), "comparison": comparison},
        )
        for line in _in_words(comparison):
            note(line)
        return ContinuousOutcome(
            run_dir=self._paths.root,
            windows=parts.journal.done(),
            interrupted=not done,
            mean_reward=_final_reward(comparison, records.policy_reward),
        )

    async def _take_up(self, parts: Assembly) -> None:
        """Let the learner stand at the version that serves; ``initial_adapter`` serves first."""
        learner, policy = parts.learning.learner, parts.policy
        start = await learner.begin()
        untouched = policy.deployments.serving() == step_name(0)
        if untouched and self._config.learner.initial_adapter and not policy.service.current.path:
            deployed = await policy.deployments.deploy(start)
            if not deployed.success:
                raise RunError(f"learner.initial_adapter does not serve: {deployed.reason}")
        await learner.restore(policy.deployments.serving())

    async def _compare(self, when: str, policy: PolicySide) -> dict[str, Any]:
        """Measure what serves now and keep it in ``comparison.json``, unless it is there already.

        when: ``before`` or ``after``. Returns the whole file: for each time the version that
        served, and the performance of all ``players``.
        """
        episodes = self._config.continuous.compare_episodes
        if not episodes:
            return {}
        content = read_json(self._paths.comparison)
        if when not in content:
            self._display.note(f"measuring the policy {when} training")
            players = await policy.trials.compare(policy.service.current.policy())
            content[when] = {
                "version": policy.deployments.serving(),
                "episodes": episodes,
                "players": {name: one.to_json() for name, one in players.items()},
            }
            write_json(self._paths.comparison, content)
        return content

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

        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signal_number, interrupt)


@contextlib.asynccontextmanager
async def _served_over_http(
    config: ContinuousConfig,
    policy: PolicySide,
    run_dir: Path,
    stop: asyncio.Event,
    say: Callable[[str], None],
) -> AsyncIterator[None]:
    """Serve the deployments over HTTP during the block, where ``continuous.http`` is set.

    The HTTP server catches SIGINT and SIGTERM itself, and sets ``stop``. Raises ConfigError when
    the address of group ``serve`` cannot be listened on.
    """
    if not config.continuous.http:
        yield
        return
    folder = run_dir / DEPLOYMENTS
    app = http_over(policy.service, policy.engine, config, make_token(folder), policy.metrics)
    over = asyncio.Event()

    async def ended() -> None:
        await over.wait()

    with contextlib.closing(listen(config.serve.host, config.serve.port)) as listener:
        say(f"serving at {url_of(listener)}/v1")

        async def answer() -> None:
            if await answer_requests(app, listener, drain_s=config.serve.drain_s, failed=ended()):
                stop.set()

        answering = asyncio.create_task(answer())
        try:
            with found_at(folder, url_of(listener)):
                yield
        finally:
            over.set()
            await answering


def _in_words(comparison: Mapping[str, Any]) -> list[str]:
    """One line per figure of the policy, before and after training."""
    if "before" not in comparison or "after" not in comparison:
        return []
    before, after = (comparison[when]["players"][POLICY] for when in ("before", "after"))
    return [
        f"{name}: {say(before[name])} before, {say(after[name])} after"
        for name, say in _FIGURES.items()
    ]


def _final_reward(comparison: Mapping[str, Any], otherwise: float) -> float:
    """Mean reward of the policy after training; ``otherwise`` where it was not compared."""
    if "after" not in comparison:
        return otherwise
    mean = comparison["after"]["players"][POLICY]["avg_reward"]
    return otherwise if mean is None else float(mean)
