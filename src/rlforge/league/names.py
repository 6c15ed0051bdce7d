"""Parses the names of opponents in a configuration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rlforge.errors import ConfigError, nearest
from rlforge.types import PolicyRef

#: The model as it was before training.
BASE = PolicyRef(uid="base", kind="checkpoint")

_PREFIXES = ("checkpoint", "openai", "openrouter")


def parse_opponent(name: str, players: Iterable[str] | None = None) -> PolicyRef:
    """The opponent called ``name``: a scripted player, ``base``, or a prefixed name.

    players: names of the scripted players; None means those of ``rlforge.games.players``.
    ``checkpoint:DIR`` is a saved adapter or model, ``openai:MODEL`` and ``openrouter:MODEL`` answer
    over HTTP. The whole name is the opponent's uid. Raises ConfigError, with the nearest names,
    for anything else and for a directory that does not exist.

    Example:
        >>> parse_opponent("random_legal").kind
        'scripted'
        >>> parse_opponent("openai:gpt-5").kind
        'api'
    """
    if name == BASE.uid:
        return BASE
    if players is None:
        # Imported here, so that the pool does not load the game libraries.
        from rlforge.games.players import player_names

        players = player_names()
    players = list(players)
    if name in players:
        return PolicyRef(uid=name, kind="scripted", path_or_name=name)
    prefix, colon, rest = name.partition(":")
    if not colon or prefix not in _PREFIXES:
        forms = [*players, BASE.uid, "checkpoint:DIR", "openai:MODEL", "openrouter:MODEL"]
        # Only the prefix is compared: the part after the colon is free text.
        guess = prefix if colon else name
        names = [*_PREFIXES] if colon else [*players, BASE.uid, *_PREFIXES]
        raise ConfigError(
            f"opponent {name!r} is unknown{nearest(guess, names)} (known: {', '.join(forms)})"
        )
    if not rest:
        wanted = "directory" if prefix == "checkpoint" else "model"
        raise ConfigError(f"opponent {name!r} lacks the {wanted} behind the colon")
    if prefix == "checkpoint":
        if not Path(rest).is_dir():
            raise ConfigError(f"opponent {name!r}: there is no directory {rest}")
        return PolicyRef(uid=name, kind="checkpoint", path_or_name=rest)
    return PolicyRef(uid=name, kind="api", path_or_name=name)
