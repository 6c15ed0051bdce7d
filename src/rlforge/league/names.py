"""Parses the names of opponents in a configuration."""

from __future__ import annotations

from pathlib import Path

from rlforge.config.plugins import PLAYERS
from rlforge.errors import ConfigError, nearest
from rlforge.types import PolicyRef

#: The model as it was before training.
BASE = PolicyRef(uid="base", kind="checkpoint")

_PREFIXES = {
    "checkpoint": "DIR",
    "hf": "ORG/MODEL",
    "openai": "MODEL",
    "openrouter": "MODEL",
    "litellm": "PROVIDER/MODEL",
}


def parse_opponent(name: str) -> PolicyRef:
    """The opponent called ``name``, which is its uid: a player, ``base``, or a prefixed name.

    ``checkpoint:DIR`` is a saved adapter or model of the run's own kind, ``hf:`` another causal
    language model. ``openai:``, ``openrouter:`` and ``litellm:`` answer over HTTP. Raises
    ConfigError, with the nearest names, for anything else.
    """
    if name == BASE.uid:
        return BASE
    prefix, colon, rest = name.partition(":")
    if prefix not in _PREFIXES or not colon:
        families = {form.partition(":")[0]: form for form in PLAYERS.forms}
        # A name with a slash is probably a folder or a model without its prefix.
        last = rest or name
        model = f"; did you mean hf:{last}, or openrouter:{last}?" if "/" in last else ""
        if prefix in families and not rest:
            raise ConfigError(
                f"opponent {name!r} lacks what is behind the colon: "
                f"{families[prefix]}, as in mcts:200"
            )
        if (problem := PLAYERS.problem(name)) is None:
            return PolicyRef(uid=name, kind="scripted", path_or_name=name)
        if colon:
            close = "" if prefix in families else nearest(prefix, [*_PREFIXES, *families]) or model
            raise ConfigError(f"opponent {name!r}: {problem}{close}")
        if name in PLAYERS.names():
            raise ConfigError(f"opponent {name!r}: {problem}")
        known = [*PLAYERS.names(), BASE.uid]
        prefixed = (f"{prefix}:{what}" for prefix, what in _PREFIXES.items())
        forms = [*known, *PLAYERS.forms, *prefixed]
        close = model or nearest(name, [*known, *_PREFIXES, *families])
        raise ConfigError(
            f"opponent {name!r} is unknown{close} (known: {', '.join(forms)}; or name your own as "
            "package.module:Thing)"
        )
    if not rest:
        wanted = "directory" if prefix == "checkpoint" else "model"
        raise ConfigError(f"opponent {name!r} lacks the {wanted} behind the colon")
    if prefix == "checkpoint":
        if not Path(rest).is_dir():
            raise ConfigError(f"opponent {name!r}: there is no directory {rest}")
        return PolicyRef(uid=name, kind="checkpoint", path_or_name=rest)
    if prefix == "hf":
        # Not checked here: rlforge.preflight.model finds out whether the model exists.
        return PolicyRef(uid=name, kind="hf", path_or_name=rest)
    return PolicyRef(uid=name, kind="api", path_or_name=name)
