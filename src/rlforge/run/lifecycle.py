"""From prepared run directory to summary: the same steps for every kind of training.

    GPUs claimed ─▶ model checked, directory locked ─▶ Ray, actors ─▶ Controller ─▶ summary, report

A kind of training is a ``Controller``, made from a ``RunContext`` once the actors are up. Here are
signals, log files, the display, the run directory, and how the run ended in summary.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import ray

from rlforge.config.compose import run_yaml
from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.engines.vllm_settings import check_installed
from rlforge.errors import RunError, command_line, raise_all
from rlforge.kinds import Controller, kind_of
from rlforge.preflight.model import saved_problems, weight_problems
from rlforge.preflight.plan import RunPlan
from rlforge.record.files import RunPaths, mend_run, open_log, short
from rlforge.record.scalars import taken
from rlforge.record.status import check_unused, is_done, write_end, write_start
from rlforge.record.sweeps import job_label
from rlforge.rollout.lineup import as_played_by, other_models
from rlforge.run.actors.cluster import RunActors, start_actors
from rlforge.run.actors.ends import explained
from rlforge.run.actors.host import STATE
from rlforge.run.actors.process import HELD_S, held_at, turn_file
from rlforge.run.actors.session import RayProcesses, ray_started
from rlforge.run.resume import keep_start
from rlforge.show.display import Display
from rlforge.show.report import write_report
from rlforge.system.files import atomic_write, new_folder
from rlforge.system.hardware import gpu_loads
from rlforge.system.locks import RunLock
from rlforge.system.loops import Interrupts, wait_for
from rlforge.system.output import kept
from rlforge.system.signals import held
from rlforge.types import value

log = logging.getLogger(__name__)

C = TypeVar("C", bound=PolicyConfig)

POLL_S = 0.5
"""Seconds between readings of the progress for the display."""

GPU_POLL_S = 5.0
"""Seconds between readings of the GPUs."""

EXTENDED = ("tracker", "pool", "buffer", "collector")
"""Actors that run code of users."""


@value
class RunContext(Generic[C]):
    """The inputs of a controller.

    Attributes:
        hardware: Hardware with every ``auto`` resolved.
        note: Shows a line to the user.
        started: When the run began, in seconds of the wall clock.
        part: How often it was resumed before; 0 in strict runs.
    """

    config: C
    hardware: HardwareConfig
    run_dir: Path
    actors: RunActors
    note: Callable[[str], None]
    started: float
    part: int = 0


@value
class Outcome:
    """How a run ended, with what the controller reported for summary.json."""

    run_dir: Path
    interrupted: bool
    summary: Mapping[str, Any]

    def objective(self) -> float:
        """The number that a sweeper maximises."""
        return float(self.summary["objective"])


def execute(
    plan: RunPlan[Any],
    run_dir: Path,
    notes: Sequence[str] = (),
    controller: Callable[[RunContext[Any]], Controller] | None = None,
    *,
    resume: bool,
) -> Outcome:
    """Run in ``run_dir`` (see ``prepared``) to the end or to the first signal.

    Raises RunError with the cause when the run cannot go on, and KeyboardInterrupt at the second
    signal or at one while the actors start.

    Args:
        notes: Lines that were printed on the run before it started, for its log.
        controller: Makes the controller, by default as the kind of the run does.
    """
    config, interrupts = plan.config, Interrupts()
    make = controller or kind_of(config).controller(config)

    async def main() -> Outcome:
        started = time.time()
        with (
            open_log("run", str(run_dir)),
            Display(config.name, config.tracker.progress, job=job_label(run_dir)) as display,
            kept(RunPaths(root=run_dir).logs / "run.out"),
        ):
            for note in notes:
                log.info("%s", note)
            display.note(f"run directory {short(run_dir)}")
            display.note("starting the actors")
            commands = (run_dir / "command.txt").read_text(encoding="utf-8").splitlines()
            # A strict run plays the games after its state again, under the same ids.
            part = 0 if config.strict else len(commands) - 1
            try:
                starting = start_actors(plan, run_dir, part)
                actors = await ray_processes.during(starting)
                for line in await actors.about_engines():
                    display.note(line)
            except Exception as error:
                raise failures.explained(error, None) from None
            context = RunContext(
                config=config,
                hardware=plan.hardware,
                run_dir=run_dir,
                actors=actors,
                note=display.note,
                started=started,
                part=part,
            )
            return await _live(make(context), context, display, interrupts, failures, resume=resume)

    with ray_started(plan.hardware, plan.num_cpus) as ray_processes:
        failures = _Failures(ray_processes, run_dir, config.command)
        return wait_for(main(), interrupts.heard)


class _Failures:
    """Explains failures of actors, or of Ray below them, to the user."""

    def __init__(self, ray_processes: RayProcesses, run_dir: Path, command: str) -> None:
        self._ray, self._run_dir, self._command = ray_processes, run_dir, command
        self._again = f"go on with: {command_line(command, '--resume', run_dir)}"
        #: What ends the run once its state is saved.
        self.held: RunError | None = None

    async def watch_ray(self) -> NoReturn:
        """Raise RunError once one of Ray's processes has ended."""
        await self._ray.gone()
        raise RunError("Ray has ended")

    async def watch(self, name: str, context: RunContext[Any], stop: Callable[[], None]) -> None:
        """End the run once code of a user holds an actor; what others hold is saved."""
        process = context.actors.process_of(name)
        await context.actors.held(name)
        where = held_at(process, self._run_dir)
        if not where and context.hardware.elastic:
            # Its node may be cut off: Ray says when that is given up, and others go on meanwhile.
            context.note(f"{name} has not answered for {HELD_S:.0f} s; the run goes on without it")
            while not where:
                await context.actors.held(name)
                where = held_at(process, self._run_dir)
        self.held = RunError(
            f"{name} does not answer: code of yours holds its process{where}; mend it or leave it "
            f"out, then {self._again}"
        )
        # ``stop`` would not help: a strict run ends after its round, which waits for this process,
        # and the state cannot be saved without pool and buffer.
        if context.config.strict or process in (STATE, "pool", "buffer"):
            raise self.held
        stop()

    def explained(self, error: BaseException, actors: RunActors | None) -> BaseException:
        """The error to raise in place of ``error``: it says how to go on."""
        if (ended := self._ray.ended()) is not None:
            return RunError(f"{ended}; {self._again}")
        return explained(error, actors, self._run_dir, self._command, self._ray.memory)


async def _live(
    controller: Controller,
    context: RunContext[Any],
    display: Display,
    interrupts: Interrupts,
    failures: _Failures,
    *,
    resume: bool,
) -> Outcome:
    """Train; close the tracker with the summary."""
    tracker = context.actors.tracker

    def stop() -> None:
        context.note("stopping: the work in hand is finished and saved; again to stop at once")
        controller.stop()

    interrupts.connect(stop)
    # Scalars that this process reported before the run are not the run's.
    taken()
    try:
        async with asyncio.TaskGroup() as group:
            watching: list[asyncio.Task[None]] = [group.create_task(failures.watch_ray())]
            if context.hardware.device == "cuda":
                watching.append(group.create_task(_watch_gpus(tracker)))
            # A killed run has lines of updates after its state, which ``begin`` drops.
            if resume:
                await controller.begin(resume=True)
            watching.append(group.create_task(_show_progress(tracker, display)))
            if not resume:
                await controller.begin(resume=False)
            watching += [
                group.create_task(failures.watch(name, context, controller.stop))
                for name in context.actors.named
                if name.partition("-")[0] in EXTENDED
            ]
            complete = await controller.run()
            for task in watching:
                task.cancel()
            if failures.held is not None:
                raise failures.held
    except BaseExceptionGroup as error:
        failed = failures.explained(error, context.actors)
        async with _failures_logged():
            ending = {"status": "failed", "error": str(failed)}
            await tracker.close.remote({**controller.summary(), **ending})
        async with _failures_logged():
            await controller.close()
        await context.actors.come_home()
        # A learner that died in its turn leaves this file, which keeps engines from loading.
        turn_file(context.run_dir).unlink(missing_ok=True)
        raise failed from None
    except BaseException:
        # Failures arrive as groups, so this is an interrupt that ends the run at once.
        async with _failures_logged():
            await controller.close()
        raise
    await controller.close()
    tracker.log_scalars.remote(await context.actors.custom_scalars())
    status = "done" if complete else "interrupted"
    wall_s = time.time() - context.started
    summary = {"status": status, "wall_s": wall_s, **controller.summary()}
    try:
        lines = await _closed(context, summary)
    except ray.exceptions.RayError as error:
        raise failures.explained(error, context.actors) from None
    await context.actors.come_home()
    display.show(await tracker.progress.remote())
    log.info("the run is %s after %.0f s", status, wall_s)
    # A sink says, for one, how an offline run of W&B is uploaded.
    for line in lines:
        context.note(line)
    return Outcome(run_dir=context.run_dir, interrupted=not complete, summary=summary)


async def _closed(context: RunContext[Any], summary: Mapping[str, Any]) -> list[str]:
    """Close the tracker; returns what its sinks say."""
    closing = asyncio.ensure_future(context.actors.tracker.close.remote(summary))
    while not (await asyncio.wait([closing], timeout=HELD_S))[0]:
        where = held_at(context.actors.process_of("tracker"), context.run_dir)
        context.note(f"the sinks of the tracker are still being closed{where}")
    said: list[str] = closing.result()
    return said


@contextlib.asynccontextmanager
async def _failures_logged() -> AsyncIterator[None]:
    """Log what fails in the block: the first error is the one that the user reads."""
    try:
        async with asyncio.timeout(HELD_S):
            yield
    except Exception:
        # The tracker may have died or not answer, and the disk may be full.
        log.exception("after the run failed")


async def _show_progress(tracker: Any, display: Display) -> None:
    while True:
        display.show(await tracker.progress.remote())
        for line in await tracker.said.remote():
            display.note(line)
        await asyncio.sleep(POLL_S)


async def _watch_gpus(tracker: Any) -> None:
    while True:
        if loads := await asyncio.to_thread(gpu_loads):
            tracker.log_gpus.remote(loads)
        await asyncio.sleep(GPU_POLL_S)


@contextlib.contextmanager
def prepared(
    config: PolicyConfig,
    plan: RunPlan[Any],
    run_dir: Path,
    command: Sequence[str],
    *,
    resume: bool,
    fresh: bool = False,
) -> Iterator[Path]:
    """Check the model and saved policies, lock and fill the run directory, write how it ended.

    Damaged files of a resumed run are mended, and named in a line each. Raises ConfigError when a
    policy that the configuration names does not fit the model, or prompts have no room, and
    RunError when another process holds the directory. A KeyboardInterrupt of the block gets a
    message: what is saved, and how to go on.

    Args:
        config: Configuration as the user gave it, for config.yaml.
        command: Arguments of ``rlforge`` that start such a run, for command.txt.
        fresh: The directory is to be a new one, whose name gets a number where it is taken.

    Returns the run directory.
    """
    # This is imported here because it loads torch, which takes seconds.
    from rlforge.models.load import lacking_weights, resolve_model, unfetched

    if plan.config.engine.name == "vllm":
        check_installed(plan.hardware.device)
    say = partial(print, file=sys.stderr, flush=True)
    resolve_model(config.model, say)
    others = as_played_by(config, other_models(config)).values()
    for model in (config.model, *(other.model for other in others)):
        if unfetched(model):
            say(f"fetching the weights of {model.label}")
            lacking_weights(model)
    raise_all(saved_problems(plan.config))
    raise_all(weight_problems(plan.config))
    kind_of(config).check_prompts(config)
    with contextlib.ExitStack() as until_end:
        # A signal leaves no half of a directory, and a full disk none of a new one.
        with held(), _made(run_dir, fresh=fresh) as run_dir, contextlib.ExitStack() as filling:
            filling.enter_context(RunLock(run_dir))
            if not resume:
                # Another run may have been started there while the model was loaded.
                check_unused(run_dir, config.command)
            # The file keeps ``auto`` as the user gave it: a resume resolves it for its machine.
            if not resume:
                atomic_write(run_dir / "config.yaml", run_yaml(config))
            for damage in mend_run(RunPaths(root=run_dir)):
                say(damage)
            with (run_dir / "command.txt").open("a", encoding="utf-8") as commands:
                commands.write(f"{command_line(*command)}\n")
            keep_start(plan.config, run_dir)
            filling.enter_context(_end_written(config, run_dir))
            until_end.enter_context(filling.pop_all())
        yield run_dir


@contextlib.contextmanager
def _made(run_dir: Path, *, fresh: bool) -> Iterator[Path]:
    """The run directory, for the block that fills it; folders that are new go where that fails."""
    absent = [folder for folder in run_dir.parents if not folder.exists()]
    made = True
    if fresh:
        run_dir = new_folder(run_dir)
    else:
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            made = False
    try:
        yield run_dir
    except Exception:
        if made:
            shutil.rmtree(run_dir, ignore_errors=True)
            for folder in absent:
                with contextlib.suppress(OSError):  # of another run by now
                    folder.rmdir()
        raise


@contextlib.contextmanager
def _end_written(config: PolicyConfig, run_dir: Path) -> Iterator[None]:
    """Write that the run starts, and how the block ended."""
    write_start(RunPaths(root=run_dir), config.name, config.total_updates or 0)
    try:
        try:
            yield
        except KeyboardInterrupt:
            _write_ending(config, run_dir, "interrupted")
            raise
        except BaseException as error:
            status = "failed" if isinstance(error, Exception) else "interrupted"
            _write_ending(config, run_dir, status, str(error) or type(error).__name__)
            raise
        _write_ending(config, run_dir)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_saved(config, run_dir)) from None


@held()
def _write_ending(
    config: PolicyConfig, run_dir: Path, status: str | None = None, error: str | None = None
) -> None:
    """Write how the run ended, unless its tracker has, and the report."""
    try:
        if status is not None:
            write_end(RunPaths(root=run_dir), status, error)
        if config.tracker.report:
            write_report(run_dir)
    except Exception as problem:
        # One line is enough: `rlforge report` shows the error again, a bug with its stack trace.
        why = (str(problem) or type(problem).__name__).splitlines()[0]
        again = command_line("report", run_dir)
        print(f"the run's report is not written ({why}); again with: {again}", file=sys.stderr)


def _saved(config: PolicyConfig, run_dir: Path) -> str:
    if is_done(RunPaths(root=run_dir)):
        return f"when the run was done: {command_line('report', run_dir)}"
    again = command_line(config.command, "--resume", run_dir)
    return f"{kind_of(config).saved(run_dir)}: {again}"
