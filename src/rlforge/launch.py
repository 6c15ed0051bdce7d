"""From a command line to a run. Nothing is created before all is validated."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from rlforge.config.compose import Composed, run_yaml
from rlforge.config.roots import compose_any, compose_run, read_run
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.errors import ConfigError, collected, command_line, raise_all
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
from rlforge.rollout.lineup import other_models
from rlforge.system import signals
from rlforge.system.files import atomic_write
from rlforge.system.hardware import detect, prepare_ray
from rlforge.system.locks import RunLock, claim_gpus
from rlforge.system.output import lossy

C = TypeVar("C", bound=PolicyConfig)

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
        say(f"note: {note}")
    return result.config if guess else config, plan


def composed_here(
    overrides: Sequence[str], config_dir: Path | None, root: type[C]
) -> tuple[C, RunPlan[C], list[str]]:
    """Compose a run, and check that it fits this machine."""
    notes: list[str] = []
    result = checked(compose_run(overrides, config_dir, root), _check_with_model, notes.append)
    check_start(result)
    plan, more = checked_here(result.config)
    notes += [f"note: {note}" for note in limit_notes(result)]
    for note in notes:
        say(note)
    return result.config, plan, [*notes, *more]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def checked_here(config: C, run_dir: Path | None = None) -> tuple[RunPlan[C], list[str]]:
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
        say(note)
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
    config, plan, notes = composed_here(overrides, config_dir, root)
    command = command_of(root, overrides, config_dir)
    return start(config, plan, notes, new_run_dir(config), command, fresh=config.run_dir is None)


def train_config(config: RunConfig, command: Sequence[str]) -> Any:
    """Train from a configuration. command: arguments of ``rlforge``."""
    # No file and no override has set its values: errors name the command.
    check(Composed(config=config, rest=command_line(*command)))
    plan, notes = checked_here(config)
    run_dir = new_run_dir(config)
    return start(config, plan, notes, run_dir, tuple(command), fresh=config.run_dir is None)


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
    plan, notes = checked_here(config, run_dir)
    kind.check_resumable(config, run_dir)
    if more:
        # A run that is still going must not find another configuration.
        with RunLock(run_dir):
            atomic_write(run_dir / "config.yaml", run_yaml(config, about))
        say(line)
    command = (root.command, "--resume", str(run_dir), *(["--more", str(more)] if more else []))
    return start(config, plan, [*lines, *notes], run_dir, command, resume=True)


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


def command_of(
    root: type[PolicyConfig], overrides: Sequence[str], config_dir: Path | None
) -> tuple[str, ...]:
    options = ("--config-dir", str(config_dir)) if config_dir is not None else ()
    return (root.command, *overrides, *options)


def start(
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

    def tell(text: str) -> None:
        say(f"{config.name}: {text}")

    with (
        signals.owned(),
        signals.warned_by(config.hardware.warning_signal),
        lossy("stdout", "stderr"),
        claim_gpus(plan.hardware, plan.cards) as claimed,
        prepared(config, plan, run_dir, command, resume=resume, fresh=fresh) as run_dir,
    ):
        kind_of(config).prepare(plan.config, run_dir, tell)
        # Once more: numbers may follow from what was prepared, and the cards are claimed now.
        plan = make_plan(config, detect(), run_dir, claimed)
        for line in write_plan(plan, run_dir):
            tell(f"other than before: {line}")
        # Nothing is to be said where there is no GPU.
        if plan.engine and plan.config.engine.name != "auto" and plan.hardware.device == "cuda":
            notes = [*notes, f"engine: {plan.engine}"]
            tell(notes[-1])
        return execute(plan, run_dir, notes, resume=resume)
