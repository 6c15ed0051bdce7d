"""The part of an observation that is new to its reader."""

from __future__ import annotations

import re

from rlforge.types import GameRecord


def new_part(observation: str, seen: str) -> str:
    """``observation`` without the beginning that it shares with ``seen``.

    Left out are equal paragraphs, and the first lines of the next one where they are the whole
    paragraph of ``seen``: a history that grows.

    Example:
        >>> new_part("Rules.\\n\\nX: 1\\nO: 2\\n\\nBoard: xo.", "Rules.\\n\\nX: 1\\n\\nBoard: x..")
        'O: 2\\n\\nBoard: xo.'
    """
    now, before = observation.rstrip().split("\n\n"), seen.rstrip().split("\n\n")
    pairs = enumerate(zip(now[:-1], before, strict=False))
    # The last paragraph always stays, because no message may be empty.
    same = next((n for n, (a, b) in pairs if a != b), min(len(now) - 1, len(before)))
    rest = "\n\n".join(now[same:])
    # A paragraph that differs in any other way, as a board, stays whole: a part says nothing.
    return rest.removeprefix(f"{before[same]}\n") if same < len(before) else rest


def readable(text: str) -> str:
    """``text`` for people, without the empty screens of some games."""
    return re.sub(r"\n{3,}", "\n\n", text.strip())


def news(record: GameRecord) -> list[str]:
    """The part of each turn's observation that its player has not read before."""
    read: dict[int, str] = {}
    new = []
    for turn in record.turns:
        new.append(readable(new_part(turn.observation, read.get(turn.player_id, ""))))
        read[turn.player_id] = turn.observation
    return new
