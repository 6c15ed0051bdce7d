"""Writes the YAML of an experiment, each value with a comment, and tries whether it composes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlforge.config.compose import compose
from rlforge.errors import ConfigError
from rlforge.games.originals import absent_noted
from rlforge.preflight.games import validate

#: Groups in the order of the file; others follow.
_GROUPS = ("name", "model", "env", "engine", "pool", "buffer", "rewards", "algorithm", "learner")


def experiment_yaml(
    values: Mapping[str, Any],
    comments: Mapping[str, str],
    options: Mapping[str, str],
    head: Sequence[str],
) -> str:
    """The text of a file in ``experiment/``.

    Args:
        values, comments: By dotted key.
        options: Options of each group.
        head: Comment at the top.

    Example:
        >>> print(experiment_yaml({"seed": 3}, {"seed": "why"}, {"pool": "mirror"}, ["About it."]))
        # @package _global_
        # About it.
        defaults:
          - override /pool: mirror
        kind: games
        seed: 3  # why
        <BLANKLINE>
    """
    tree: dict[str, Any] = {}
    for key in sorted(values, key=_place):
        *groups, last = key.split(".")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        comment = f"  # {comments[key]}" if key in comments else ""
        node[last] = (values[key], comment)
    lines = [
        "# @package _global_",
        *(f"# {line}" for line in head),
        "defaults:",
        *(f"  - override /{group}: {option}" for group, option in options.items()),
        "kind: games",
        *_lines_of(tree, ""),
    ]
    return "\n".join(lines) + "\n"


def refused(text: str) -> Iterator[str]:
    """Mistakes in an experiment, in the words of ``rlforge config``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "experiment", "ported.yaml")
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        try:
            with absent_noted():
                validate(compose(["+experiment=ported"], Path(folder)), keys=False)
        except ConfigError as error:
            yield from str(error).replace(f" ({path})", "").replace(f"{path}: ", "").splitlines()


def _place(key: str) -> tuple[int, bool]:
    # Nested groups stand last: a reader would take a plain key behind one for a part of it.
    group = key.split(".")[0]
    return (_GROUPS.index(group) if group in _GROUPS else len(_GROUPS), key.count(".") > 1)


def _lines_of(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, node in tree.items():
        if isinstance(node, dict):
            yield f"{indent}{key}:"
            yield from _lines_of(node, f"{indent}  ")
            continue
        found, comment = node
        if isinstance(found, list) and found and isinstance(found[0], dict):
            yield f"{indent}{key}:{comment}"
            yield from (f"{indent}  - {_flow(entry)}" for entry in found)
        else:
            yield f"{indent}{key}: {_flow(found)}{comment}"


def _flow(found: Any) -> str:
    text = yaml.safe_dump(found, default_flow_style=True, sort_keys=False, width=10_000)
    # PyYAML writes "..." behind a scalar, which would end the whole document here.
    return text.removesuffix("...\n").strip()
