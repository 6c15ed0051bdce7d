"""What of an observation is new to the player who reads it."""

from __future__ import annotations

from rlforge.types import GameRecord


def new_part(observation: str, seen: str) -> str:
    """``observation`` without what it begins with that ``seen`` has at the same place.

    Left out are the paragraphs at its start that are those of ``seen`` and, where the next one
    begins with all lines of the paragraph that ``seen`` has there, these lines: a history that
    grows. A paragraph that differs in any other way, such as a board, stays whole, and the last
    one stays in any case.

    Example:
        >>> new_part("Rules.\\n\\nX: 1\\nO: 2\\n\\nBoard: xo.", "Rules.\\n\\nX: 1\\n\\nBoard: x..")
        'O: 2\\n\\nBoard: xo.'
    """
    now, before = observation.rstrip().split("\n\n"), seen.rstrip().split("\n\n")
    pairs = enumerate(zip(now[:-1], before, strict=False))
    same = next((n for n, (a, b) in pairs if a != b), min(len(now) - 1, len(before)))
    rest = "\n\n".join(now[same:])
    return rest.removeprefix(f"{before[same]}\n") if same < len(before) else rest


def news(record: GameRecord) -> list[str]:
    """Of each turn's observation, what its player has not read in an earlier turn."""
    read: dict[int, str] = {}
    new = []
    for turn in record.turns:
        new.append(new_part(turn.observation, read.get(turn.player_id, "")).strip())
        read[turn.player_id] = turn.observation
    return new
