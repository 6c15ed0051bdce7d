"""From a command line to a run or a sweep. Nothing is created before all is validated."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from rlforge.config.compose import Composed, from_hydra, register_schemas, run_yaml
from rlforge.config.keys import all_roots, conf_dir
from rlforge.config.overrides import (
    as_hydra_takes,
    assignment,
    in_grammar,
    parse_overrides,
    search_path,
)
from rlforge.config.roots import compose_any, compose_run, read_run
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.errors import ConfigError, RlforgeError, collected, command_line, counted, raise_all
from rlforge.games.originals import absent_noted
from rlforge.kinds import kind_of
from rlforge.models.load import check_source, local_copy
from rlforge.preflight.fit import check_fit
from rlforge.preflight.games import game_notes
from rlforge.preflight.limits import limit_notes
from rlforge.preflight.model import (
    check_start,
    model_notes,
    model_problems,
    saved_problems,
    shape_problems,
)
from rlforge.preflight.plan import (
    RunPlan,
    for_machine,
    make_plan,
    with_engines_that_start,
    write_plan,
)
from rlforge.preflight.policy import checked, value_problems, with_template
from rlforge.preflight.surroundings import require
from rlforge.record.status import check_unused
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
from rlforge.rollout.lineup import other_models
from rlforge.system import signals
from rlforge.system.files import atomic_write, new_folder
from rlforge.system.hardware import detect, prepare_ray
from rlforge.system.locks import RunLock, claim_gpus
from rlforge.system.output import lossy

C = TypeVar("C", bound=PolicyConfig)

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

STAMP = "%Y-%m-%d_%H-%M-%S"
"""Form of the time in the names of runs and sweeps."""


def composed(
    overrides: Sequence[str],
    config_dir: Path | None,
    gpus: int | None = None,
    gpu_memory_gb: float | None = None,
) -> tuple[PolicyConfig, RunPlan[Any]]:
    """The validated configuration and its plan, for a machine as of ``for_machine``.

    It needs no key of an API, no package that only has templates, and no GPU.
    """
    result, _ = with_template(compose_any(overrides, config_dir))
    with absent_noted() as absent:
        _check_with_model(result, keys=False)
        config, machine, guess = for_machine(result.config, gpus, gpu_memory_gb)
        plan = make_plan(config, machine)
        if gpu_memory_gb is not None:
            check_fit(with_engines_that_start(config, machine), plan.hardware, ())
        if local_copy(config.model) is not None:
            check_start(result)
            kind_of(config).check_prompts(config)
            raise_all([*model_problems(config, fetch=False), *saved_problems(plan.config)])
    notes = [*absent.values(), *([guess] if guess is not None else []), *plan.notes]
    if not machine.here and plan.engine:
        notes.append(f"engine: {plan.engine}")
    for note in [*notes, *limit_notes(result)]:
        _say(f"note: {note}")
    return result.config if guess else config, plan


def _composed(
    overrides: Sequence[str], config_dir: Path | None, root: type[C]
) -> tuple[C, RunPlan[C], list[str]]:
    """Compose a run, and check that it fits this machine."""
    notes: list[str] = []
    result = checked(compose_run(overrides, config_dir, root), _check_with_model, notes.append)
    check_start(result)
    plan, more = _checked_here(result.config)
    notes += [f"note: {note}" for note in limit_notes(result)]
    for note in notes:
        _say(note)
    return result.config, plan, [*notes, *more]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _checked_here(config: C, run_dir: Path | None = None) -> tuple[RunPlan[C], list[str]]:
    """The plan of a run on this machine, and notes, which are printed; ConfigError for no fit."""
    lacking = require(config, run_dir)
    raise_all(shape_problems(config))
    machine = detect()
    # An engine for which no GPU is left does not start, and needs no memory.
    plan, live = make_plan(config, machine, run_dir), with_engines_that_start(config, machine)
    # Before a download: a model that is too large here is not worth it.
    check_fit(live, plan.hardware, machine.cards)
    check_source(config.model)
    raise_all(model_problems(plan.config))
    if other_models(plan.config):  # whose shapes may only be known now
        check_fit(live, plan.hardware, machine.cards)
    found = (*lacking, *plan.notes, *game_notes(plan.config), *model_notes(plan.config))
    notes = [f"note: {note}" for note in found]
    for note in notes:
        _say(note)
    return plan, notes


def check(result: Composed[Any], *, keys: bool = True) -> None:
    """Raise ConfigError for what cannot run; keys: also for what is missing here."""
    clashes = [str(result.error(key, problem)) for key, problem in result.config.problems()]
    try:
        kind_of(result.config).check(result, keys=keys)
    except ConfigError as error:
        # A kind may tell the clashes, too.
        raise_all(dict.fromkeys([*clashes, *str(error).splitlines()]))
    raise_all(clashes)


def _check_with_model(result: Composed[Any], *, keys: bool = True) -> None:
    """Check as ``check``; with its problems come those of a model that is on this machine."""
    try:
        check(result, keys=keys)
    except ConfigError as error:
        # Wrong values would show again in the model's checks, as their consequences.
        judged = not collected(value_problems(result))
        if judged and local_copy(result.config.model) is not None:
            raise_all([error, *model_problems(result.config, fetch=False)])
        raise


def train(
    overrides: Sequence[str], config_dir: Path | None, root: type[PolicyConfig] = RunConfig
) -> Any:
    """Validate and run an experiment; returns its ``Outcome``."""
    config, plan, notes = _composed(overrides, config_dir, root)
    command = _command(root, overrides, config_dir)
    return _run(config, plan, notes, new_run_dir(config), command, fresh=config.run_dir is None)


def train_config(config: RunConfig, command: Sequence[str]) -> Any:
    """Train from a configuration. command: arguments of ``rlforge``."""
    # No file and no override has set its values: errors name the command.
    check(Composed(config=config, rest=command_line(*command)))
    plan, notes = _checked_here(config)
    run_dir = new_run_dir(config)
    return _run(config, plan, notes, run_dir, tuple(command), fresh=config.run_dir is None)


def resume(run_dir: Path, root: type[PolicyConfig] = RunConfig, more: int = 0) -> Any:
    """Continue a run from its newest saved state; returns its ``Outcome``.

    more: updates or windows in addition. Raises RunError where the run is complete, CheckpointError
    where the state is damaged, before anything is started.
    """
    from rlforge.run.resume import made_longer

    config = read_run(run_dir, root)
    kind, about, lines = kind_of(config), "", list[str]()
    if more:
        config, about, line = made_longer(config, run_dir, more)
        lines.append(line)
    # An older release may have begun the run, and accepted what the checks refuse now.
    check(Composed(config=config, rest=str(run_dir / "config.yaml")))
    plan, notes = _checked_here(config, run_dir)
    kind.check_resumable(config, run_dir)
    if more:
        # A run that is still going must not find another configuration.
        with RunLock(run_dir):
            atomic_write(run_dir / "config.yaml", run_yaml(config, about))
        _say(line)
    command = (root.command, "--resume", str(run_dir), *(["--more", str(more)] if more else []))
    return _run(config, plan, [*lines, *notes], run_dir, command, resume=True)


def sweep(
    overrides: Sequence[str], config_dir: Path | None, root: type[PolicyConfig] = RunConfig
) -> Path:
    """Run every combination with Hydra's launcher and sweeper; returns the folder of the jobs."""
    # Grids are validated whole before the first job starts. Other sweepers choose as they go.
    jobs = _grid(overrides)
    first, *_ = [_composed(job, config_dir, root)[0] for job in jobs]
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
    mark, over, told = sweep_dir / STOPPED, threading.Event(), set[int]()

    def tell() -> None:
        # A job may have been about to start.
        while not over.is_set():
            for process in elsewhere(sweep_dir) - told:
                told.add(process)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signals.INTERRUPT)
            over.wait(TELL_EVERY_S)

    def interrupted() -> None:
        first = not mark.exists()
        mark.touch()
        told.clear()
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
        commands.append(command_line(*_command(root, words, Path(own) if own else None)))
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
        result = checked(from_hydra(whole, lines, dirs, root), check, _say)
        check_start(result)
        command = _command(root, result.overrides, Path(folder) if folder else None)
        outcome = _run(result.config, *_checked_here(result.config), run_dir, command)
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


def new_run_dir(config: PolicyConfig) -> Path:
    """``run_dir``, or runs/NAME/TIMESTAMP; ConfigError where it holds a run already."""
    if config.run_dir is None:
        return Path("runs") / config.name / f"{datetime.now():{STAMP}}"
    path = Path(config.run_dir)
    check_unused(path, config.command)
    # Now, and not when the model has been loaded.
    _try_folder(path)
    return path


def _try_folder(path: Path) -> None:
    """Raise ConfigError where the folder of a run cannot be made."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run_dir={path}: cannot be made: {error.strerror}") from None
    finally:
        # Later checks may refuse the run, which then must leave nothing behind.
        for folder in new:
            if folder.is_dir():
                folder.rmdir()


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


def _command(
    root: type[PolicyConfig], overrides: Sequence[str], config_dir: Path | None
) -> tuple[str, ...]:
    options = ("--config-dir", str(config_dir)) if config_dir is not None else ()
    return (root.command, *overrides, *options)


def _run(
    config: PolicyConfig,
    plan: RunPlan[Any],
    notes: Sequence[str],
    run_dir: Path,
    command: Sequence[str],
    *,
    resume: bool = False,
    fresh: bool = False,
) -> Any:
    """Start or continue a run by a checked plan; returns its ``Outcome``.

    notes: for its log. fresh: as of ``prepared``.
    """
    # Processes of Ray have another current directory.
    run_dir = run_dir.absolute()
    prepare_ray(plan.hardware)  # before Ray is imported
    from rlforge.run.lifecycle import execute, prepared

    def say(text: str) -> None:
        _say(f"{config.name}: {text}")

    with (
        signals.owned(),
        signals.warned_by(config.hardware.warning_signal),
        lossy("stdout", "stderr"),
        claim_gpus(plan.hardware, plan.cards) as claimed,
        prepared(config, plan, run_dir, command, resume=resume, fresh=fresh) as run_dir,
    ):
        kind_of(config).prepare(plan.config, run_dir, say)
        # Once more: numbers may follow from what was prepared, and the cards are claimed now.
        plan = make_plan(config, detect(), run_dir, claimed)
        for line in write_plan(plan, run_dir):
            say(f"other than before: {line}")
        # Nothing is to be said where there is no GPU.
        if plan.engine and plan.config.engine.name != "auto" and plan.hardware.device == "cuda":
            notes = [*notes, f"engine: {plan.engine}"]
            say(notes[-1])
        return execute(plan, run_dir, notes, resume=resume)
