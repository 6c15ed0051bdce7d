"""What random play shows to the warm-up."""

from __future__ import annotations

from rlforge.games.base import View
from rlforge.types import value


@value
class State:
    """A decision of random play: what was seen, the player's discounted outcome of that game.

    facts: answers to yes-no questions about what was seen; none where the game asks none.
    """

    view: View
    outcome: float
    facts: tuple[bool, ...] = ()
