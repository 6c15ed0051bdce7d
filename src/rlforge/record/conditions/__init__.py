"""Conditions under which a run learns little or nothing; see ``rlforge.record.signals``.

play       what is played: games, answers, seats, opponents, evaluations
learning   what is learned from it: samples, steps, movement, entropy, speed
"""

from __future__ import annotations

from collections.abc import Callable

from rlforge.record.signals import Condition, Finding, Seen, Shown, Weight

#: From this share on, a share is all but a few.
_ALL = 0.99
#: From this share on, it is shown as 100 %.
_EACH = 0.9995

Check = Callable[[Seen, float], Finding | None]


def condition(
    about: str,
    threshold: float,
    *figures: str,
    explains: tuple[str, ...] = (),
    games: Shown | None = None,
) -> Callable[[Check], Condition]:
    """Make a ``Condition`` of a check."""
    return lambda check: Condition(about, threshold, figures, check, explains, games)


def of_all(share: float) -> str:
    return "all" if share >= _EACH else f"{share:.0%} of all"


def weight_of(share: float, *, lasting: bool = False) -> Weight:
    """The weight of what holds for a share. lasting: what holds for all does so to the end."""
    if lasting and share >= _EACH:
        return "final"
    return "barren" if share >= _ALL else "slow"
