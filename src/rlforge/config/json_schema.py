"""A JSON schema, with which editors complete and check YAML files of configurations."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rlforge.config.docs import all_field_comments
from rlforge.config.keys import all_roots
from rlforge.config.plugins import RUN_KINDS
from rlforge.config.rules import Group, adapter
from rlforge.config.training import ALGORITHM_CONFIGS, AlgorithmConfig


def json_schema() -> dict[str, Any]:
    """The schema of experiments and of ``config.yaml``, with the fields' comments.

    Example:
        >>> learner = json_schema()["$defs"]["GameLearnerConfig"]["properties"]
        >>> learner["batch_size"]["anyOf"][0], learner["batch_size"]["description"][:25]
        ({'minimum': 1, 'type': 'integer'}, 'Samples per update: turns')
    """
    from pydantic import TypeAdapter

    roots = {root.kind: root for root in all_roots()}
    classes = [*roots.values(), *ALGORITHM_CONFIGS.values()]
    made, shared = TypeAdapter.json_schemas(
        (cls.__name__, "validation", adapter(cls)) for cls in classes
    )
    refs = {name: schema for (name, _), schema in made.items()}
    definitions: dict[str, Any] = shared["$defs"]
    for cls in _groups(definitions):
        about = all_field_comments(cls)
        for name, field in definitions[cls.__name__]["properties"].items():
            field |= {"description": about[name]} if name in about else {}
            if "$ref" not in field:
                _let_refer(field)
    # Else the settings of each algorithm would match the name of any.
    for algorithm, cls in ALGORITHM_CONFIGS.items():
        definitions[cls.__name__]["properties"]["name"] = {"const": algorithm}
    # Settings of a plug-in's algorithm are not known here.
    of_plugins = {"type": "object", "required": ["name"]}
    known = {"properties": {"name": {"enum": list(ALGORITHM_CONFIGS)}}}
    definitions[AlgorithmConfig.__name__] = {
        "anyOf": [
            *(refs[cls.__name__] for cls in ALGORITHM_CONFIGS.values()),
            {"allOf": [of_plugins, {"not": known}]},
        ]
    }
    # Files have these keys, and the classes have no fields for them.
    for kind, root in roots.items():
        definitions[root.__name__]["properties"] |= {
            "kind": {"const": kind, "description": f"What it is: {root.about}."},
            "defaults": {"type": "array", "description": "The options that it builds on."},
        }
    of_kind = [
        {
            "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
            "then": refs[root.__name__],
        }
        for kind, root in roots.items()
    ]
    # Without ``kind`` the command decides, which a schema does not know.
    of_any = {"anyOf": [refs[root.__name__] for root in roots.values()]}
    # Kinds of others are those of packages that are installed here, or ``module:Thing``.
    kinds = {"anyOf": [{"enum": RUN_KINDS.names()}, {"type": "string", "pattern": ":"}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"kind": kinds},
        "allOf": [*of_kind, {"if": {"not": {"required": ["kind"]}}, "then": of_any}],
        "$defs": definitions,
    }


def _let_refer(field: dict[str, Any]) -> None:
    """Let a value be a reference to another, as ``${seed}``."""
    outside = ("description", "default", "title")
    inside = {key: field.pop(key) for key in [*field] if key not in outside}
    choices = inside["anyOf"] if [*inside] == ["anyOf"] else [inside]
    field["anyOf"] = [*choices, {"type": "string", "pattern": r"\$\{.+\}"}]


def _groups(names: Collection[str]) -> list[type[Group]]:
    """Classes of rlforge's configuration with one of these names."""
    classes = Group.__subclasses__()
    # The list grows while it is walked, so that classes below these are found, too.
    for cls in classes:
        classes += cls.__subclasses__()
    # A plug-in's class may have the name of one of rlforge's.
    own = [cls for cls in classes if cls.__module__.startswith("rlforge.")]
    return [cls for cls in own if cls.__name__ in names]
