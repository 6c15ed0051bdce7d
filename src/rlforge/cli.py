"""The command line: thin, with an example in every help text."""

from __future__ import annotations

import enum
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from rlforge import windows_cli
from rlforge.errors import ConfigError, RlforgeError, RunError
from rlforge.serving import commands as serving

if TYPE_CHECKING:
    from rlforge.measure import Measurement

app = typer.Typer(
    name="rlforge",
    help="Train language models by playing text games.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="+experiment=NAME and changes to it. Keys: rlforge config, docs/config.md.",
        show_default=False,
    ),
]
ConfigDir = Annotated[
    Path | None,
    typer.Option("--config-dir", help="Folder with your own experiment/, env/ … YAML files."),
]


def _must_be_run(path: Path | None) -> Path | None:
    """Refuse a path that is not a run directory, with the nearest runs; None passes."""
    from rlforge.tracking.files import open_run

    if path is not None:
        try:
            open_run(path)
        except RlforgeError as error:
            raise ConfigError(str(error)) from error
    return path


RunDir = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A run directory, as train printed it.", callback=_must_be_run
    ),
]


class GraphFormat(enum.StrEnum):
    """How ``rlforge graph`` prints."""

    table = "table"
    json = "json"
    mermaid = "mermaid"


@app.command()
def train(
    overrides: Overrides = None,
    multirun: Annotated[
        bool, typer.Option("-m", "--multirun", help="Sweep over comma-separated values.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Go on with the run in this directory.",
            callback=_must_be_run,
        ),
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Train; the last line printed is the run directory.

    [bold]Examples[/bold]

      rlforge train +experiment=simpletak_mirror

      rlforge train +experiment=simpletak_mirror seed=1 learner.learning_rate=1e-3

      rlforge train -m +experiment=tictactoe_mirror seed=0,1,2

      rlforge train --resume runs/simpletak_mirror/2026-01-01_12-00-00
    """
    from rlforge import launch

    if resume is not None and (overrides or multirun or config_dir):
        raise ConfigError("--resume goes on with the run's own config; give it no other argument")
    if multirun:
        if not launch.sweep(overrides or [], config_dir):
            raise typer.Exit(1)
        return
    outcome = (
        launch.resume(resume) if resume is not None else launch.train(overrides or [], config_dir)
    )
    if outcome.interrupted:
        typer.echo(f"interrupted; go on with: rlforge train --resume {outcome.run_dir}", err=True)
    typer.echo(str(outcome.run_dir))
    if outcome.interrupted:
        raise typer.Exit(130)


@app.command("eval")
def evaluate(
    run_dir: RunDir,
    checkpoint: Annotated[
        str, typer.Option(metavar="UID", help="The version that plays: latest, step-40, …")
    ] = "latest",
    opponent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Repeatable: a scripted player, base (the untrained model), step-N of this run, "
            "checkpoint:DIR, openai:MODEL or openrouter:MODEL. Default: those of the run.",
        ),
    ] = None,
    games: Annotated[
        int | None, typer.Option(metavar="N", help="Games per environment and opponent.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the results to this file, too."),
    ] = None,
) -> None:
    """Play a run's policy against opponents, seats swapped.

    [bold]Examples[/bold]

      rlforge eval runs/simpletak_mirror/2026-01-01_12-00-00 --games 400

      rlforge eval RUN --checkpoint step-40 --opponent win_block --opponent step-0
    """
    import asyncio
    import dataclasses

    from rlforge.measure import evaluate_run

    if json_file is not None and (json_file.is_dir() or not json_file.absolute().parent.is_dir()):
        raise ConfigError(f"--json {json_file}: want the name of a file in a folder that exists")
    measured = asyncio.run(
        evaluate_run(run_dir, checkpoint, opponent, games, lambda text: typer.echo(text, err=True))
    )
    Console().print(_eval_table(measured))
    if json_file is not None:
        rows = [dataclasses.asdict(result) for result in measured.results]
        json_file.write_text(json.dumps(rows, indent=2) + "\n")
    if not measured.complete:
        raise RunError("\n".join(measured.failures))
    for failure in measured.failures:
        typer.echo(failure, err=True)


def _eval_table(measured: Measurement) -> Table:
    """Fits in 80 columns where names are not long; long ones fold."""
    from rlforge.tracking.formatting import percent

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("environment", "opponent"):
        table.add_column(title, overflow="fold")
    for title in ("games", "win", "95% CI", "draw", "loss"):
        table.add_column(title, justify="right", no_wrap=True)
    for result in measured.results:
        low, high = result.ci95
        played = max(result.games, 1)
        rates = [result.win_rate, result.draws / played, result.losses / played]
        win, draw, loss = (percent(rate if result.games else None, 1) for rate in rates)
        span = f"{percent(low, 1)}–{percent(high, 1)}"
        table.add_row(result.env_id, result.opponent, str(result.games), win, span, draw, loss)
    return table


@app.command()
def graph(
    overrides: Overrides = None,
    output: Annotated[GraphFormat, typer.Option("--format", help="How to print it.")] = (
        GraphFormat.table
    ),
    config_dir: ConfigDir = None,
) -> None:
    """Show the validated run graph without starting anything.

    [bold]Examples[/bold]

      rlforge graph +experiment=simpletak_mirror

      rlforge graph +experiment=kuhn_grpo --format mermaid
    """
    from rlforge import launch
    from rlforge.graph import to_json, to_mermaid

    _, nodes = launch.composed(overrides or [], config_dir, keys=False)
    if output is GraphFormat.json:
        typer.echo(to_json(nodes))
        return
    if output is GraphFormat.mermaid:
        typer.echo(to_mermaid(nodes))
        return
    table = Table("actor", "replicas", "CPUs", "GPUs", "computes on", "hands on")
    for node in nodes.nodes:
        hands = [
            f"{edge.carries} → {edge.target}" for edge in nodes.edges if edge.source == node.name
        ]
        table.add_row(
            node.name,
            str(node.replicas),
            f"{node.num_cpus:g}",
            f"{node.num_gpus:g}",
            node.placement,
            "\n".join(hands),
        )
    Console().print(table)


@app.command()
def config(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Show the resolved, validated configuration as YAML.

    [bold]Examples[/bold]

      rlforge config +experiment=simpletak_mirror

      rlforge config +experiment=kuhn_grpo learner.batch_size=512
    """
    from rlforge import launch
    from rlforge.config.compose import to_yaml

    result, _ = launch.composed(overrides or [], config_dir, keys=False)
    typer.echo(to_yaml(result.config), nl=False)


@app.command()
def doctor(
    overrides: Overrides = None,
    gpu_memory: Annotated[
        float | None,
        typer.Option(
            "--gpu-memory", metavar="GB", help="Plan for GPUs of so many GiB, here or not.", min=0.1
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the report to this file, too."),
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Say whether a run would work here: packages, model, and memory before anything starts.

    Exit code 0: nothing known stands in the way; 1: it does not fit, or something is missing.

    [bold]Examples[/bold]

      rlforge doctor +experiment=simpletak_mirror

      rlforge doctor +experiment=qwen3_1p7b_simpletak hardware=gpu_24gb

      rlforge doctor +experiment=qwen3_1p7b_simpletak --gpu-memory 48
    """
    from rlforge.config.compose import compose
    from rlforge.doctor.examine import examine
    from rlforge.doctor.view import render, to_values

    report = examine(compose(overrides or [], config_dir), gpu_memory)
    Console().print(render(report))
    if json_file is not None:
        json_file.write_text(json.dumps(to_values(report), indent=2) + "\n")
    if not report.healthy:
        raise typer.Exit(1)


@app.command()
def play(
    overrides: Overrides = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Play against this run's policy, at its games.",
            callback=_must_be_run,
        ),
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(metavar="UID", help="With --run: latest, step-40, …")
    ] = "latest",
    opponent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Repeatable, one per other seat: a scripted player, base, step-N of the run, "
            "checkpoint:DIR, openai:MODEL or openrouter:MODEL.",
        ),
    ] = None,
    env: Annotated[
        str | None, typer.Option("--env", metavar="ID", help="Which of several environments.")
    ] = None,
    seat: Annotated[int, typer.Option(metavar="N", help="Your seat; seat 0 begins.")] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the game's chance.")] = 0,
    config_dir: ConfigDir = None,
) -> None:
    """Play a game yourself; type [bold]quit[/bold] to leave.

    [bold]Examples[/bold]

      rlforge play env=tictactoe --opponent minimax

      rlforge play --run runs/simpletak_mirror/2026-01-01_12-00-00 --seat 1
    """
    import asyncio

    from rlforge import play as table

    config, rivals = table.prepare(overrides or [], config_dir, run, checkpoint, opponent or [])
    spec = table.find_env(config, env)
    policies = table.seats_of(spec, seat, rivals)
    person = table.Person(input, typer.echo)
    try:
        record = asyncio.run(table.play(config, spec, policies, seed, person, typer.echo))
    except table.Leave:
        typer.echo("you left the game")
        return
    typer.echo(table.verdict(record))
    if record.error is not None:
        raise typer.Exit(1)


@app.command()
def replay(
    run_dir: RunDir,
    game: Annotated[
        str | None,
        typer.Argument(metavar="GAME", help="A game's id; without it, the newest are listed."),
    ] = None,
    last: Annotated[int, typer.Option(metavar="N", help="Games in the list.", min=1)] = 20,
) -> None:
    """Show finished games of a run: the newest in a list, or one turn by turn.

    [bold]Examples[/bold]

      rlforge replay runs/simpletak_mirror/2026-01-01_12-00-00

      rlforge replay runs/simpletak_mirror/2026-01-01_12-00-00 train-000001
    """
    from rlforge import replay as films

    console = Console()
    if game is None:
        console.print(films.game_list(run_dir, last))
        return
    for piece in films.turns(films.find_game(run_dir, game)):
        console.print(piece)


@app.command()
def models() -> None:
    """List the models that config group [bold]model[/bold] offers, and what is on this machine.

    [bold]Example[/bold]

      rlforge models
    """
    from rlforge.config.compose import conf_dir
    from rlforge.models.catalog import describe_models

    table = Table("model=", "what it is")
    table.add_column("on this machine", overflow="fold")
    for row in describe_models(conf_dir() / "model"):
        table.add_row(row.option, row.about, row.state)
    Console().print(table)


@app.command()
def monitor(
    run_dir: RunDir,
    once: Annotated[bool, typer.Option("--once", help="Print one view and leave.")] = False,
    refresh: Annotated[float, typer.Option(help="Seconds between views.", min=0.1)] = 1.0,
) -> None:
    """Watch a running or finished run from another terminal; Ctrl-C leaves it running.

    [bold]Example[/bold]

      rlforge monitor runs/simpletak_mirror/2026-01-01_12-00-00
    """
    from rlforge.tracking.display import monitor as attach

    attach(run_dir, once=once, refresh_s=refresh)


@app.command()
def report(run_dir: RunDir) -> None:
    """Write report.html, which opens offline; prints its path.

    [bold]Example[/bold]

      rlforge report runs/simpletak_mirror/2026-01-01_12-00-00
    """
    from rlforge.tracking.report import write_report

    typer.echo(str(write_report(run_dir)))


serving.register(app)
app.add_typer(windows_cli.app, name="windows")


def main() -> NoReturn:
    """Run the command; every failure that is the user's to mend is one message, no stack trace.

    So are the system's answers about a file: no permission, a folder in its place, a full disk.
    """
    try:
        app()
    except RlforgeError as error:
        typer.echo(f"rlforge: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is None:
            raise
        typer.echo(f"rlforge: {error.filename}: {error.strerror}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("rlforge: interrupted", err=True)
        sys.exit(130)
    sys.exit(0)
