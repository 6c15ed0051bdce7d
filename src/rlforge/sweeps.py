"""Sweeps: every job of a grid, checked first, by Hydra's launcher and sweeper."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from rlforge.config.compose import from_hydra, register_schemas
from rlforge.config.keys import all_roots, conf_dir
from rlforge.config.overrides import (
    as_hydra_takes,
    assignment,
    in_grammar,
    parse_overrides,
    search_path,
)
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.errors import ConfigError, RlforgeError, command_line, counted
from rlforge.launch import STAMP, check, checked_here, command_of, composed_here, say, start
from rlforge.preflight.model import check_start
from rlforge.preflight.policy import checked
from rlforge.record.sweeps import (
    FAILED,
    STOPPED,
    SWEEP_FILE,
    elsewhere,
    job_of,
    members,
    to_resume,
    waiting,
    write_sweep,
)
from rlforge.system import signals
from rlforge.system.files import new_folder
from rlforge.system.locks import RunLock
from rlforge.system.output import lossy

SWEEP = (
    "hydra.mode=MULTIRUN",
    "hydra.output_subdir=null",
    "hydra.run.dir=.",
    "hydra.sweep.subdir=${hydra.job.num}",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
)
"""Hydra's settings for a sweep: each job makes its own run directory, Hydra writes nothing."""


TELL_EVERY_S = 0.5
"""Seconds between looks for jobs of a sweep that a signal is to reach."""

NAMED_JOBS = 8
"""Most jobs that have not begun whose commands a stopped sweep prints."""

#: The process that runs a sweep; jobs in it may end it by an exception.
_sweeping = 0


def sweep(
    overrides: Sequence[str], config_dir: Path | None, root: type[PolicyConfig] = RunConfig
) -> Path:
    """Run every combination with Hydra's launcher and sweeper; returns the folder of the jobs."""
    # Grids are validated whole before the first job starts. Other sweepers choose as they go.
    jobs = _grid(overrides)
    first, *_ = [composed_here(job, config_dir, root)[0] for job in jobs]
    sweep_dir = new_folder(Path("runs") / first.name / f"sweep_{datetime.now():{STAMP}}")
    # A launcher may run the jobs in other processes.
    os.environ["RLFORGE_CONFIG_DIR"] = str(config_dir.resolve()) if config_dir else ""
    own = [*SWEEP, f"hydra.sweep.dir={in_grammar(sweep_dir)}", *search_path(config_dir)]
    fixed = [item for item in _of_jobs(overrides) if not item.is_sweep_override()]
    shared = [f"{item.get_key_element()}={item.get_value_element_as_str()}" for item in fixed]
    try:
        with (
            _stopped_in_order(sweep_dir, root),
            RunLock(sweep_dir),  # held as long as further jobs may start
            initialize_config_dir(str(conf_dir()), version_base="1.3", job_name="rlforge"),
        ):
            write_sweep(sweep_dir, shared, None if _own_sweeper(overrides) else jobs)
            register_schemas(root)
            GlobalHydra.instance().hydra.multirun(
                root.primary, sweep_job, [*own, *as_hydra_takes(overrides)]
            )
    except HydraException as error:  # a launcher or sweeper that is not installed, or its options
        if not members(sweep_dir):  # no job has started
            _remove(sweep_dir)
        raise ConfigError(f"the sweep cannot start: {str(error).splitlines()[0]}") from error
    return sweep_dir


@contextlib.contextmanager
def _stopped_in_order(sweep_dir: Path, root: type[PolicyConfig]) -> Iterator[None]:
    """In the block a signal lets the jobs save, wherever a launcher runs them; no further starts.

    The block then ends by a KeyboardInterrupt that says how to go on.
    """
    global _sweeping
    mark, over, signalled = sweep_dir / STOPPED, threading.Event(), set[int]()

    def tell() -> None:
        # A job may have been about to start.
        while not over.is_set():
            for process in elsewhere(sweep_dir) - signalled:
                signalled.add(process)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signals.INTERRUPT)
            over.wait(TELL_EVERY_S)

    def interrupted() -> None:
        first = not mark.exists()
        mark.touch()
        signalled.clear()
        if not elsewhere(sweep_dir):
            raise KeyboardInterrupt
        # A launcher would kill the processes of its jobs in the middle of their work.
        if first:
            threading.Thread(target=tell, daemon=True).start()

    _sweeping = os.getpid()
    try:
        with (
            signals.owned(),
            lossy("stdout", "stderr"),
            signals.heard(interrupted),
            # A launcher's processes import and compose before they come to a job.
            signals.kept_from_children(),
        ):
            yield
    except BaseException as error:
        # After a signal it is a consequence of it.
        if not (mark.exists() or isinstance(error, KeyboardInterrupt)):
            raise
        mark.touch()
    finally:
        over.set()
    if mark.exists():
        mark.unlink()
        raise KeyboardInterrupt(_how_to_go_on(sweep_dir, root))


def _how_to_go_on(sweep_dir: Path, root: type[PolicyConfig]) -> str:
    """The end of a message about a sweep that was stopped; folders without a run are removed."""
    for folder in sweep_dir.iterdir():
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    if not members(sweep_dir):
        _remove(sweep_dir)
        return "before a job had started"
    commands = [command_line(root.command, "--resume", run) for run in to_resume(sweep_dir)]
    own = os.environ["RLFORGE_CONFIG_DIR"]
    unbegun = waiting(sweep_dir)
    for job, overrides in list(unbegun.items())[:NAMED_JOBS]:
        words = (*overrides, assignment("run_dir", job))
        commands.append(command_line(*command_of(root, words, Path(own) if own else None)))
    if (more := len(unbegun) - NAMED_JOBS) > 0:
        commands.append(f"and {counted(more, 'further job')} of {sweep_dir / SWEEP_FILE} alike")
    again = f"; go on with: {'; '.join(commands)}" if commands else ""
    return f"in {sweep_dir}; no further job starts{again}"


def _remove(sweep_dir: Path) -> None:
    shutil.rmtree(sweep_dir)
    with contextlib.suppress(OSError):  # of other runs
        os.removedirs(sweep_dir.parent)


def sweep_job(job: DictConfig) -> float:
    """Run a job of a sweep, wherever its launcher does; returns the objective.

    A failed job leaves ``failed.txt``. Where a signal has come, the last job under way ends the
    sweep by KeyboardInterrupt.
    """
    with signals.owned():
        sweep_dir = Path(HydraConfig.get().sweep.dir).absolute()
        try:
            with signals.let_in():
                if (sweep_dir / STOPPED).exists():
                    raise KeyboardInterrupt
                return _of_job(job)
        except BaseException as error:
            if not (isinstance(error, KeyboardInterrupt) or signals.dropped()):
                raise
            (sweep_dir / STOPPED).touch()
            # Hydra would start the next job after a return; but a launcher that hears of an
            # exception kills the processes of other jobs, which may be saving.
            if _sweeping == os.getpid() or not elsewhere(sweep_dir):
                raise KeyboardInterrupt from None
    return float("-inf")


def _of_job(job: DictConfig) -> float:
    hydra = HydraConfig.get()
    whole = job.copy()
    # Hydra locks the keys of a job, and ``from_hydra`` needs its choices.
    OmegaConf.set_struct(whole, False)
    whole["hydra"] = {"runtime": {"choices": dict(hydra.runtime.choices)}}
    folder = os.environ.get("RLFORGE_CONFIG_DIR")
    dirs = [conf_dir(), *([Path(folder)] if folder else [])]
    # Hydra's own path of the job would be read once more for references, with those in names.
    run_dir = Path(hydra.sweep.dir, str(hydra.job.num)).absolute()
    lines = [line.removeprefix("++") for line in hydra.overrides.task]  # as they were typed
    about = job_of(run_dir, lines) or f"job {hydra.job.num}"
    print(about, file=sys.stderr, flush=True)
    try:
        root = next(root for root in all_roots() if root.primary == hydra.job.config_name)
        result = checked(from_hydra(whole, lines, dirs, root), check, say)
        check_start(result)
        command = command_of(root, result.overrides, Path(folder) if folder else None)
        outcome = start(result.config, *checked_here(result.config), run_dir, command)
    except RlforgeError as error:
        signals.heed()
        # A job may fail before it has made its folder.
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / FAILED).write_text(f"{error}\n", encoding="utf-8")
        print(f"{about} failed: {error}", file=sys.stderr)
        # Sweepers maximise: this is the worst result, and further jobs start.
        return float("-inf")
    if outcome.interrupted:
        raise KeyboardInterrupt
    return float(outcome.objective())


def _grid(overrides: Sequence[str]) -> list[list[str]]:
    """The jobs of a grid; for other sweepers the first job."""
    batches = BasicSweeper.split_arguments(_of_jobs(overrides), max_batch_size=None)
    jobs = [list(job) for batch in batches for job in batch]
    return jobs[:1] if _own_sweeper(overrides) else jobs


def _of_jobs(overrides: Sequence[str]) -> list[Override]:
    parsed = parse_overrides(overrides)
    return [item for item in parsed if not item.get_key_element().startswith("hydra")]


def _own_sweeper(overrides: Sequence[str]) -> bool:
    parsed = parse_overrides(overrides)
    return any(
        item.get_key_element().startswith(("hydra/sweeper", "hydra.sweeper")) for item in parsed
    )
