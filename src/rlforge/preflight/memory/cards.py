"""Cards of a run, and which processes share one."""

from __future__ import annotations

from rlforge.config.schema import HardwareConfig
from rlforge.types import value

#: Share of a card that a plan may use: allocators lose some to fragments, drivers keep some.
USABLE = 0.95


@value
class Card:
    """A kind of card, and how many learner ranks and engines share one.

    count: cards of this kind. capacity: bytes of one, usable or not.
    """

    learners: int
    engines: int
    count: int
    capacity: int

    @property
    def usable(self) -> int:
        """Bytes that a plan may use."""
        return int(self.capacity * USABLE)


def place(hardware: HardwareConfig, learners: int, engines: int, capacity: int) -> tuple[Card, ...]:
    """Which processes share a card: first the cards of the learner's ranks, then all others.

    On a CPU all share the machine. Fractions of a card are filled in order, the learner first, as
    Ray packs them; an engine or learner that asks for one card or more has cards of its own.
    """
    if hardware.device != "cuda":
        return (Card(learners=learners, engines=engines, count=1, capacity=capacity),)
    share = hardware.engine_gpus
    sharing = 0
    if hardware.learner_gpus < 1 and 0 < share < 1:
        sharing = min(engines, int((1 - hardware.learner_gpus) / share + 1e-9))
    cards = [Card(learners=1, engines=sharing, count=learners, capacity=capacity)]
    left = engines - sharing
    if left:
        together = min(left, int(1 / share + 1e-9)) if 0 < share < 1 else 1
        count = -(-left // together) * max(1, int(share))
        cards.append(Card(learners=0, engines=together, count=count, capacity=capacity))
    return tuple(cards)
