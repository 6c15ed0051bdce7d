"""``rlforge train``, ``sft``, ``eval`` and ``export``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from rlforge.cli.arguments import (
    OPPONENTS,
    Checkpoint,
    ConfigDir,
    JsonFile,
    More,
    Multirun,
    Overrides,
    Public,
    Push,
    Resume,
    RunDir,
    say,
    say_result,
    write_result,
)
from rlforge.errors import ConfigError, RunError, command_line, counted
from rlforge.show.console import Console
from rlforge.system.output import lossy

if TYPE_CHECKING:
    from rlforge.api import Run
    from rlforge.config.schema import PolicyConfig
    from rlforge.local.evaluate import Measurement
    from rlforge.types import EvalResult


def train(
    overrides: Overrides = None,
    multirun: Multirun = False,
    resume: Resume = None,
    more: More = None,
    config_dir: ConfigDir = None,
) -> None:
    """Train; the last line printed is the run directory.

    **Examples**

    ```bash
    rlforge train +experiment=simpletak_mirror
    rlforge train +experiment=simpletak_mirror seed=1 learner.learning_rate=1e-3
    rlforge train -m +experiment=tictactoe_mirror seed=0,1,2
    rlforge train --resume runs/simpletak_mirror/2026-01-01_12-00-00
    rlforge train --resume runs/simpletak_mirror/2026-01-01_12-00-00 --more 50
    ```
    """
    from rlforge.config.schema import RunConfig

    start(RunConfig, overrides or [], config_dir, resume, more, multirun=multirun)


def sft(overrides: Overrides = None, resume: Resume = None, config_dir: ConfigDir = None) -> None:
    """Learn given answers, to start training from; the last line printed is the run directory.

    Answers of players, of a run's own games, or of a file. The experiment of a run that plays games
    gives games, model and engine.

    **Examples**

    ```bash
    rlforge sft +experiment=tictactoe_mirror data=random_legal
    rlforge sft +experiment=tictactoe_mirror data.run=RUN data.keep=wins
    rlforge sft model=smollm2_135m env=tictactoe 'data.players=["openai:gpt-5"]'
    rlforge sft model=smollm2_135m data.file=conversations.jsonl
    rlforge sft +experiment=smollm2_market data=value_trader
    rlforge train +experiment=tictactoe_mirror learner.initial_adapter=SFT_RUN
    ```
    """
    from rlforge.config.sft import SftConfig

    start(SftConfig, overrides or [], config_dir, resume, None, multirun=False)


@lossy("stdout")  # which has the path alone: the run is made whether or not it is read
def start(
    root: type[PolicyConfig],
    overrides: list[str],
    config_dir: Path | None,
    resume: Path | None,
    more: int | None,
    *,
    multirun: bool,
) -> None:
    """Start a run or a sweep, or resume a run; prints its directory, ends by 130 on Ctrl-C."""
    from rlforge import api, launch, sweeps
    from rlforge.config.roots import started_by
    from rlforge.record.files import short
    from rlforge.record.signals import Signal, verdict
    from rlforge.system import signals
    from rlforge.system.values import from_json

    if resume is not None and (overrides or multirun or config_dir):
        raise ConfigError(
            "--resume goes on with the run's own config; give it no argument but --more"
        )
    if more is not None and resume is None:
        raise ConfigError("--more makes a run longer that --resume names")
    # Users' code may print while it is imported and tried: standard output is for the result.
    with contextlib.redirect_stdout(sys.stderr):
        # A plug-in's kind of run may share the command: its own class is started.
        root = started_by(root, overrides, config_dir, resume)
        if multirun:
            folder = sweeps.sweep(overrides, config_dir, root)
        elif resume is not None:
            run = api.load_run(launch.resume(resume, root, more or 0).run_dir)
        else:
            run = api.start(overrides, config_dir, root)
    if multirun:
        _end_of_sweep(folder)
        return
    interrupted = run.summary["status"] == "interrupted"
    if interrupted:
        done = run.summary.get("windows")
        windows = "" if done is None else f" after {counted(done, 'window')}"
        again = command_line(root.command, "--resume", run.path)
        typer.echo(f"interrupted{windows}; go on with: {again}", err=True)
    elif signals.came():
        interrupted = True
        again = command_line("report", run.path)
        typer.echo(f"interrupted when the run was done: {again}", err=True)
    else:
        if unlearned := verdict(from_json(list[Signal], run.summary.get("signals", []))):
            typer.echo(f"done, {unlearned}", err=True)
            typer.echo(f"why: {command_line('why', short(run.path))}", err=True)
        report = short(run.path) / "report.html"
        if report.is_file():
            typer.echo(f"results: {report}", err=True)
        typer.echo(f"next: {'; '.join(next_steps(run))}", err=True)
    # Alone on standard output, so that scripts can take it.
    typer.echo(str(run.path))
    if interrupted:
        raise typer.Exit(130)


def _end_of_sweep(folder: Path) -> None:
    """Print the comparison of the jobs and the folder; ends by 1 where one failed."""
    from rlforge.record.sweeps import FAILED
    from rlforge.show.compare import compare, runs_of
    from rlforge.show.compare_view import show

    jobs = runs_of([folder])
    failed = [job.name for job in jobs if (job / FAILED).is_file()]
    show(compare(jobs), Console(stderr=True))  # the folder is the output
    typer.echo(f"next: {command_line('report', folder)}", err=True)
    typer.echo(f"sweep: {counted(len(jobs), 'job')}, failed: {', '.join(failed) or 'none'}")
    typer.echo(str(folder))
    if failed:
        raise typer.Exit(1)


def next_steps(run: Run) -> list[str]:
    """Commands for the user of a finished run, which work as they are printed."""
    from rlforge.kinds import kind_of
    from rlforge.record.files import short

    return kind_of(run.config).next_steps(run.config, short(run.path))


def evaluate(
    run_dir: RunDir,
    checkpoint: Checkpoint = "result",
    opponent: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Repeatable: {OPPONENTS}. Default: those of the run."),
    ] = None,
    games: Annotated[
        int | None, typer.Option(metavar="N", help="Games per environment and opponent.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Play a run's policy against opponents, seats swapped.

    That is the run's result; where this is not its latest version, that one plays as well.

    **Examples**

    ```bash
    rlforge eval runs/simpletak_mirror/2026-01-01_12-00-00 --games 400
    rlforge eval RUN --checkpoint step-40 --opponent win_block --opponent step-0
    ```
    """
    import asyncio

    from rlforge.local.evaluate import evaluate_run
    from rlforge.local.policies import RESULT, result_and_latest

    named = result_and_latest(run_dir) if checkpoint == RESULT else [checkpoint]
    done: list[EvalResult] = []

    # ``evaluate_run`` hands on what it has so far: Ctrl-C leaves it in the file.
    def keep(results: Sequence[EvalResult]) -> None:
        write_result(json_file, [*done, *results])

    found = []
    for name in named:
        found.append(asyncio.run(evaluate_run(run_dir, name, opponent, games, say, keep)))
        done += found[-1].results
        keep(())
    for name, measured in zip(named, found, strict=True):
        if len(found) > 1:
            typer.echo(f"{measured.policy.uid}, the run's {name}:")
        Console().print(_eval_table(measured))
    # After the table: what was measured is worth seeing.
    failures = [failure for measured in found for failure in measured.failures]
    if not all(measured.complete for measured in found):
        raise RunError("\n".join(failures))
    for failure in failures:
        typer.echo(failure, err=True)


def export(
    run_dir: RunDir,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write, new or empty.")],
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Write whole weights, with the adapter merged into them."),
    ] = False,
    version: Annotated[
        str,
        typer.Option(
            "--version",
            "--checkpoint",
            metavar="UID",
            help="The version: result (as learner.result says), latest, best (by win rate), "
            "average, step-40, deploy-3 …",
        ),
    ] = "result",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="Data type of whole weights. Default: that of the model."),
    ] = None,
    gguf: Annotated[
        bool,
        typer.Option("--gguf", help="Also write a GGUF file, with llama.cpp's converter on PATH."),
    ] = False,
    push: Push = None,
    public: Public = False,
) -> None:
    """Write a version as a Hugging Face folder, for transformers or PEFT; prints its path.

    The folder holds weights, tokenizer, generation config and a model card with results,
    configuration and curves.

    **Examples**

    ```bash
    rlforge export runs/simpletak_mirror/2026-01-01_12-00-00 my-model --merge
    rlforge export RUN my-adapter --version best --push ORG/NAME
    ```
    """
    from rlforge.run.export import export_run

    say_result(run_dir, version, "--version")
    written = export_run(
        run_dir,
        folder,
        version=version,
        merge=merge,
        dtype=dtype,
        gguf=gguf,
        push=push,
        public=public,
        say=say,
    )
    typer.echo(str(written))


def _eval_table(measured: Measurement) -> Table:
    from rlforge.show.formatting import percent
    from rlforge.show.panels import Listing

    names = ("environment", "opponent")
    table = Listing(*names, "games", "win", "95% CI", "draw", "loss", left=names)
    for result in measured.results:
        low, high = result.ci95
        rates = (result.win_rate, result.draw_rate, result.loss_rate)
        # If all games failed there is no rate, not one of 0 %.
        win, draw, loss = (percent(rate if result.games else None, 1) for rate in rates)
        span = f"{percent(low, 1)}–{percent(high, 1)}"
        table.add_row(result.env_id, result.opponent, str(result.games), win, span, draw, loss)
    return table
