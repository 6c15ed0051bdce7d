"""``rlforge graph``, ``config``, ``doctor`` and ``port``: they start nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rlforge.cli.arguments import (
    ConfigDir,
    JsonFile,
    Overrides,
    must_be_run,
    offered_runs,
    say,
    write_result,
)
from rlforge.errors import ConfigError
from rlforge.show.console import Console
from rlforge.show.panels import Listing
from rlforge.specs import ActorSpec
from rlforge.system.files import atomic_write

#: Parts of a run that grow -> the keys that end or limit it.
_LIMITS = {
    "checkpoints": ("learner.keep_checkpoints",),
    "store": ("store.keep_windows",),
    "scores": ("store.keep_windows",),
    "games": ("collector.save_games",),
    "batches": ("buffer.save_batches",),
    "deployments": ("deployment.keep",),
}


GpusThere = Annotated[
    int | None,
    typer.Option("--gpus", metavar="N", help="Plan for a machine with this many GPUs.", min=0),
]
GpuMemory = Annotated[
    float | None,
    typer.Option("--gpu-memory", metavar="GB", help="Plan for GPUs of this many GiB.", min=0.1),
]


def graph(
    overrides: Overrides = None,
    output: Annotated[
        Literal["table", "json", "mermaid"], typer.Option("--format", help="How to print it.")
    ] = "table",
    gpus: GpusThere = None,
    gpu_memory: GpuMemory = None,
    config_dir: ConfigDir = None,
) -> None:
    """Show the plan of a run without starting anything: its actors and what they hand on.

    **Examples**

    ```bash
    rlforge graph +experiment=simpletak_mirror
    rlforge graph +experiment=kuhn_grpo --format mermaid
    rlforge graph +experiment=qwen3_1p7b_simpletak --gpus 3
    ```
    """
    from rlforge import launch
    from rlforge.kinds import kind_of
    from rlforge.preflight.plan import to_json, to_mermaid

    _, plan = launch.composed(overrides or [], config_dir, gpus, gpu_memory)
    if output != "table":
        typer.echo(to_json(plan) if output == "json" else to_mermaid(plan))
        return
    texts = ("actor", "computes on", "hands on")
    table = Listing(*("actor", "replicas", "CPUs", "GPUs", "computes on", "hands on"), left=texts)
    for node in plan.nodes:
        hands = [
            f"{edge.carries} → {edge.target}" for edge in plan.edges if edge.source == node.name
        ]
        table.add_row(
            node.name,
            node.number,
            f"{node.num_cpus:g}",
            f"{node.num_gpus:g}",
            _place(node),
            "\n".join(hands),
        )
    Console().print(table)
    if (expected := kind_of(plan.config).forecast(plan.config)) is not None:
        Console().print(f"collection: {expected}", highlight=False)


def _place(node: ActorSpec) -> str:
    if node.actor is None:
        return "driver"
    return f"{node.placement}, process {node.host}" if node.host else node.placement


def config(
    overrides: Overrides = None,
    gpus: GpusThere = None,
    gpu_memory: GpuMemory = None,
    config_dir: ConfigDir = None,
) -> None:
    """Show the resolved, validated configuration as YAML.

    **Examples**

    ```bash
    rlforge config +experiment=simpletak_mirror
    rlforge config +experiment=kuhn_grpo learner.batch_size=512
    rlforge config +experiment=qwen3_1p7b_simpletak --gpus 3 --gpu-memory 48
    ```
    """
    from rlforge import launch
    from rlforge.config.compose import to_yaml

    resolved, _ = launch.composed(overrides or [], config_dir, gpus, gpu_memory)
    typer.echo(to_yaml(resolved), nl=False)  # it ends in a newline


def doctor(
    overrides: Overrides = None,
    gpus: GpusThere = None,
    gpu_memory: GpuMemory = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Show what a run takes on disk instead.",
            callback=must_be_run,
            autocompletion=offered_runs,
        ),
    ] = None,
    json_file: JsonFile = None,
    config_dir: ConfigDir = None,
) -> None:
    """Check whether a run would work here, without starting it: packages, model and memory.

    First comes what any start needs of this machine: folders that can be written, with the variable
    that moves each, limits of memory, cores, processes and files, torch, proxies, clock and locale.
    Commands that start something check the same list before they make anything, and end by 2.

    Exit code 0: no problem found; 1: it does not fit, or something is missing;
    2: the configuration is wrong, or its model, or a proxy of the environment.

    **Examples**

    ```bash
    rlforge doctor +experiment=simpletak_mirror
    rlforge doctor qwen3_1p7b_simpletak_tuned hardware=gpu_24gb
    rlforge doctor +experiment=qwen3_1p7b_simpletak --gpus 3 --gpu-memory 48
    rlforge doctor --run runs/market_continuous/2026-01-01_12-00-00
    ```
    """
    if run_dir is not None:
        if overrides or gpus is not None or gpu_memory is not None or config_dir:
            raise ConfigError("--run is about a run that is there; give it no argument but --json")
        _show_size(run_dir, json_file)
        return
    from rlforge import launch
    from rlforge.config.roots import compose_any
    from rlforge.preflight.doctor import examine
    from rlforge.preflight.doctor_view import render, to_values

    run = compose_any(overrides or [], config_dir)
    report = examine(run, gpus, gpu_memory, launch.check)
    write_result(json_file, to_values(report))
    # A command or path that is cut at the edge cannot be copied.
    Console().print(render(report), crop=False)
    if not report.healthy:
        raise typer.Exit(2 if report.wrong else 1)


def _show_size(run_dir: Path, json_file: Path | None) -> None:
    from rlforge.record.files import open_run
    from rlforge.record.growth import a_day, of_run, parts
    from rlforge.system.files import readable_size
    from rlforge.system.values import to_json

    run, found = open_run(run_dir), parts(run_dir)
    free = shutil.disk_usage(run_dir).free
    table = Listing("part", "size", "files", "limited by", left=["part", "limited by"])
    rows: list[dict[str, Any]] = []
    for part in found:
        limits = _LIMITS.get(part.name, ())
        rows.append({**to_json(part), "limits": limits})
        table.add_row(part.name, readable_size(part.size), f"{part.files:,}", ", ".join(limits))
    size = sum(part.size for part in found)
    write_result(json_file, {"parts": rows, "free": free, "a_day": a_day(run, size)})
    Console().print(table)
    typer.echo(f"{of_run(run, size)}; {readable_size(free)} free on its disk")


def port(
    script: Annotated[
        Path,
        typer.Argument(
            metavar="SCRIPT.py", help="A launch script of UnstableBaselines 0.1 or 0.2."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write it here instead of printing it."
        ),
    ] = None,
) -> None:
    """Write the experiment that a launch script of UnstableBaselines describes, as YAML.

    The script is read and not executed. What it sets has its line, what its package takes where the
    script says nothing the word "there"; what has no counterpart is a remark with its place.

    **Examples**

    ```bash
    rlforge port run_selfplay.py
    rlforge port run_selfplay.py --output mine/experiment/selfplay.yaml
    rlforge config --config-dir mine +experiment=selfplay
    ```
    """
    from rlforge.port.configuration import port as ported

    found = ported(script)
    # On standard error: what is on standard output may go into a file.
    for remark in found.remarks:
        say(f"note: {remark}")
    if output is None:
        typer.echo(found.yaml, nl=False)
        return
    if output.exists():  # it may have been edited since
        raise ConfigError(f"--output {output}: is there already; choose another name")
    output.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(output, found.yaml)
