"""``rlforge list``, ``show``, ``models`` and ``plugins``: what can be chosen, and what it means."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlforge.cli.arguments import ConfigDir, JsonFile, write_result
from rlforge.cli.messages import wrapped
from rlforge.errors import ConfigError
from rlforge.show.console import Console

if TYPE_CHECKING:
    from rlforge.config.catalog import Choice
    from rlforge.config.compose import Composed
    from rlforge.config.docs import Key
    from rlforge.config.games import EnvEntry
    from rlforge.config.model import ModelConfig
    from rlforge.games.base import View


def list_choices(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT", help="A config group, or a kind of plug-in.", show_default=False
        ),
    ] = None,
) -> None:
    """List what can be chosen: experiments, envs, models, algorithms, opponents …

    **Examples**

    ```bash
    rlforge list
    rlforge list experiments
    rlforge list envs
    ```
    """
    from rlforge.config.catalog import Choice, catalog, subjects

    if subject is None:
        _print_choices([Choice(name=name, about=key) for name, key in subjects().items()])
        return
    found = catalog(subject)
    choices: Sequence[Choice] = found.choices
    # Of environments alone it depends on the choice which models can play.
    if found.key == "env=NAME":
        played = _models_of_envs()
        choices = [
            dataclasses.replace(one, about=f"{one.about} Models: {played[one.name]}.")
            for one in choices
        ]
    _print_choices(choices)
    typer.echo(f"\nchosen by {found.key}")


def _models_of_envs() -> dict[str, str]:
    """The models that play each option of ``env``, in words; none is loaded."""
    from rlforge.config.catalog import catalog
    from rlforge.config.compose import compose
    from rlforge.config.plugins import PROMPTS
    from rlforge.games.registry import make_game, subject_of
    from rlforge.models.made import made_model
    from rlforge.rollout.lineup import env_spec

    def plays(model: ModelConfig, entry: EnvEntry, view: View) -> bool:
        """Whether the model knows the game's words, and its template finds what it shows."""
        made = made_model(model.kind)
        template = PROMPTS.find(entry.prompt_template or model.prompt_template)
        return (made is None or made.knows(subject_of(entry.source))) and template.lacks(
            view
        ) is None

    names = [choice.name for choice in catalog("model").choices]
    models = {name: compose([f"model={name}"]).config.model for name in names}
    played: dict[str, str] = {}
    for choice in catalog("env").choices:
        config = compose([f"env={choice.name}"]).config
        games = [
            (entry, make_game(env_spec(entry, config), seed=0).view()) for entry in config.env.train
        ]
        able = [name for name in names if all(plays(models[name], *game) for game in games)]
        others = [name for name in names if name not in able]
        but = f" but {', '.join(others)}" if others else ""
        played[choice.name] = f"all{but}" if len(others) < len(able) else ", ".join(able)
    return played


def show(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY] [KEY=VALUE]",
            help="Keys, their beginnings, or groups; and an experiment and changes, whose values "
            "are then shown with where each comes from.",
            show_default=False,
        ),
    ] = None,
    config_dir: ConfigDir = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print a JSON schema of all keys, for editors.")
    ] = False,
) -> None:
    """Explain keys and groups: values, range, default and meaning.

    **Examples**

    ```bash
    rlforge show learner.batch_size
    rlforge show pool
    rlforge show learner.batch_size +experiment=simpletak_mirror
    rlforge show --schema > schema.json
    ```
    """
    if schema:
        if words:
            raise ConfigError(f"--schema is of all keys; leave out {' '.join(words)}")
        from rlforge.config.json_schema import json_schema

        typer.echo(json.dumps(json_schema(), indent=2))
        return
    from rlforge.config.catalog import catalog, subjects
    from rlforge.config.docs import keys
    from rlforge.config.keys import group_dirs, option_file
    from rlforge.config.roots import compose_any

    dirs = group_dirs(config_dir)
    overrides: list[str] = []
    names: list[str] = []
    for word in words or []:
        # The name of an experiment alone is a change to be applied, any other a key to explain.
        experiment = option_file(f"experiment/{word}", dirs)
        (overrides if "=" in word or experiment else names).append(word)
    groups = [name for name in names if name in subjects()]
    composed = compose_any(overrides, config_dir) if overrides else None
    # A group without keys of its own, which ``keys`` would refuse.
    own = None if composed is None else composed.config
    found = [] if names == ["experiment"] else keys(*names, config=own)
    values = {key.name: (key.default, "") for key in found}
    if composed is not None:
        values = _values(composed, found)
    for name in groups:
        listed = catalog(name)
        typer.echo(f"{listed.key}")
        _print_choices(listed.choices, indent=4)
        typer.echo()
    for key in found:
        if key.name in values:
            _print_key(key, *values[key.name])


def _values(composed: Composed[Any], found: Sequence[Key]) -> dict[str, tuple[str, str]]:
    """Values of keys, and where each comes from."""
    from rlforge.config.overrides import in_grammar
    from rlforge.config.rules import as_values

    values = {}
    for key in found:
        node = composed.config
        for part in key.name.split("."):  # keys of entries of lists have no value
            node = getattr(node, part, dataclasses.MISSING)
        if node is not dataclasses.MISSING:
            values[key.name] = in_grammar(as_values(node)), composed.origin(key.name)
    return values


def _print_key(key: Key, value: str, origin: str) -> None:
    kind = key.type.replace("`", "")
    of = f" [algorithm={', '.join(key.options)}]" if key.options else ""
    default = f"; default {key.default}" if origin not in ("", "default") else ""
    typer.echo(f"{key.name}={value}  ({kind}{default}){of}")
    # Meanings are written for docs/config.md, with markup.
    meaning = key.meaning.replace("``", "")
    for line in wrapped(meaning, indent=4):
        typer.echo(line)
    if origin:
        typer.echo(f"    from: {origin}")


def models() -> None:
    """List the models that config group `model` offers, and what is on this machine.

    **Example**

    ```bash
    rlforge models
    ```
    """
    from rlforge.config.catalog import Choice
    from rlforge.config.keys import conf_dir
    from rlforge.models.catalog import describe_models

    rows = describe_models(conf_dir() / "model")
    choices = [Choice(name=row.option, about=row.about) for row in rows]
    _print_choices(choices, [row.state for row in rows])
    typer.echo("\nchosen by model=NAME")


def plugins(json_file: JsonFile = None) -> None:
    """List what a configuration can choose by name, further commands, and who adds to them.

    Instead of a name, `package.module:Thing` takes anything that can be imported from
    the environment or the current directory. Exit code 1: a package offers something unusable.

    **Example**

    ```bash
    rlforge plugins
    ```
    """
    from rlforge.config.plugins import COMMANDS, KINDS, OBSERVERS, SIGNALS

    kinds = (*KINDS, COMMANDS, OBSERVERS, SIGNALS)
    rows = [row for kind in kinds for row in kind.rows()]
    write_result(json_file, rows)
    for kind in kinds:
        typer.echo(kind.key)
        of_kind = [row for row in rows if row.kind == kind.name]
        own = [row.name for row in of_kind if row.origin == "rlforge"]
        for line in wrapped(", ".join(own) or "only your own", indent=4):
            typer.echo(line)
        for row in of_kind:
            if row.origin != "rlforge":
                typer.echo(f"    {row.name}: {row.origin}, {row.target}")
                for line in wrapped(row.problem, indent=8):
                    typer.echo(line)
    if any(row.problem for row in rows):
        raise typer.Exit(1)


def _print_choices(
    choices: Sequence[Choice], states: Sequence[str] = (), *, indent: int = 0
) -> None:
    """Print names with what they are, and states."""
    width = max((len(choice.name) for choice in choices), default=0) + 2 + indent
    if Console().width < width + 24:  # below each other
        width = indent + 4
    for at, choice in enumerate(choices):
        lines = wrapped(choice.about, indent=width) or [""]
        lines += states[at : at + 1] and [f"{'':{width}}{states[at]}"]
        head = f"{'':{indent}}{choice.name}"
        if len(head) < width:
            typer.echo(f"{head:{width}}{lines.pop(0).strip()}".rstrip())
        else:
            typer.echo(head)
        for line in lines:
            typer.echo(line.rstrip())
