"""``rlforge graph``, ``config``, ``doctor``, ``models`` and ``plugins``: they start nothing."""

from __future__ import annotations

import dataclasses
import enum
import textwrap
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlforge.cli.arguments import ConfigDir, JsonFile, Overrides, write_result


class GraphFormat(enum.StrEnum):
    """Output of ``rlforge graph``."""

    table = "table"
    json = "json"
    mermaid = "mermaid"


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
    from rlforge.training.graph import to_json, to_mermaid

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
            node.placement if node.actor else "driver",
            "\n".join(hands),
        )
    Console().print(table)


def config(
    overrides: Overrides = None,
    keys: Annotated[
        bool,
        typer.Option(
            "--keys", help="List keys with type, default and meaning: all, or those that begin so."
        ),
    ] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Show the resolved, validated configuration as YAML, or what its keys mean.

    [bold]Examples[/bold]

      rlforge config +experiment=simpletak_mirror

      rlforge config +experiment=kuhn_grpo learner.batch_size=512

      rlforge config --keys learner.optimizer buffer
    """
    from rlforge import launch
    from rlforge.config.compose import to_yaml

    if keys:
        _print_keys(overrides or [])
        return
    result, _ = launch.composed(overrides or [], config_dir, keys=False)
    typer.echo(to_yaml(result.config), nl=False)


def _print_keys(prefixes: list[str]) -> None:
    from rlforge.config.docs import keys

    width = max(40, Console().width)
    for key in keys(*prefixes):
        of = f" [algorithm={', '.join(key.options)}]" if key.options else ""
        typer.echo(f"{key.name}={key.default}  ({key.type.replace('`', '')}){of}")
        meaning = key.meaning.replace("``", "")
        for line in textwrap.wrap(meaning, width - 4):
            typer.echo(f"    {line}")


def doctor(
    overrides: Overrides = None,
    gpu_memory: Annotated[
        float | None,
        typer.Option("--gpu-memory", metavar="GB", help="Plan for GPUs of this many GiB.", min=0.1),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN", help="Show what a run takes on disk instead."),
    ] = None,
    json_file: JsonFile = None,
    config_dir: ConfigDir = None,
) -> None:
    """Check whether a run would work here, without starting it: packages, model and memory.

    Exit code 0: no problem found; 1: it does not fit, or something is missing.

    [bold]Examples[/bold]

      rlforge doctor +experiment=simpletak_mirror

      rlforge doctor +experiment=qwen3_1p7b_simpletak hardware=gpu_24gb

      rlforge doctor +experiment=qwen3_1p7b_simpletak --gpu-memory 48

      rlforge doctor --run runs/market_continuous/2026-01-01_12-00-00
    """
    if run_dir is not None:
        _show_size(run_dir, json_file)
        return
    from rlforge import launch
    from rlforge.config.roots import compose_any
    from rlforge.preflight.doctor import examine
    from rlforge.preflight.doctor_view import render, to_values

    report = examine(compose_any(overrides or [], config_dir), gpu_memory, launch.check)
    write_result(json_file, to_values(report))
    Console().print(render(report))
    if not report.healthy:
        raise typer.Exit(1)


def _show_size(run_dir: Path, json_file: Path | None) -> None:
    """What a run takes on disk, and the keys that limit it."""
    from rlforge.system.files import readable_size
    from rlforge.tracking.sizes import run_size

    found = run_size(run_dir)
    table = Table("part", "size", "files", "limited by")
    for part in found.parts:
        count = f"{part.files:,}"
        table.add_row(part.name, readable_size(part.size), count, ", ".join(part.limits))
    write_result(json_file, dataclasses.asdict(found))
    Console().print(table)
    size, free = readable_size(found.size), readable_size(found.free)
    typer.echo(f"{run_dir}: {size}; {free} free on its disk")


def list_choices(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT", help="A config group, or a kind of plug-in.", show_default=False
        ),
    ] = None,
) -> None:
    """List what can be chosen: experiments, envs, models, algorithms, opponents …

    [bold]Examples[/bold]

      rlforge list

      rlforge list experiments

      rlforge list envs
    """
    from rlforge.config.catalog import catalog, subjects

    if subject is None:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("rlforge list", no_wrap=True)
        table.add_column("chosen by", overflow="fold")
        for name, key in subjects().items():
            table.add_row(name, key)
        Console().print(table)
        return
    found = catalog(subject)
    width = max(len(choice.name) for choice in found.choices) + 2
    room = max(40, Console().width) - width
    for choice in found.choices:
        first, *more = textwrap.wrap(choice.about, room) or [""]
        typer.echo(f"{choice.name:{width}}{first}".rstrip())
        for line in more:
            typer.echo(" " * width + line)
    typer.echo(f"\nchosen by {found.key}")


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


def plugins(json_file: JsonFile = None) -> None:
    """List what a configuration can choose by name, and the packages that add to it.

    Instead of a name, [bold]package.module:Thing[/bold] takes anything that can be imported from
    the environment or the current directory. Exit code 1: a package offers something unusable.

    [bold]Example[/bold]

      rlforge plugins
    """
    from rlforge.config.plugins import KINDS

    table = Table("chosen by", "names", "from")
    rows = [row for kind in KINDS for row in kind.rows()]
    for kind in KINDS:
        own = [row.name for row in rows if row.kind == kind.name and row.origin == "rlforge"]
        first = (", ".join(own), "rlforge") if own else ("[dim]only your own[/dim]", "")
        table.add_row(kind.key, *first, end_section=True)
        for row in rows:
            if row.kind == kind.name and row.origin != "rlforge":
                note = f"\n[red]{escape(row.problem)}[/red]" if row.problem else ""
                table.add_row("", row.name, f"{row.origin}: {row.target}{note}")
    write_result(json_file, [dataclasses.asdict(row) for row in rows])
    Console().print(table)
    if any(row.problem for row in rows):
        raise typer.Exit(1)
