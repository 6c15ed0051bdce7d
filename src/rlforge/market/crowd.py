"""The scripted traders of a market, and what they do in a tick."""

from __future__ import annotations

import random
from collections.abc import Iterator

from rlforge.market.actions import Json
from rlforge.market.settlement import Receipt
from rlforge.market.traders import Trader, make_trader
from rlforge.market.world import World
from rlforge.types import value


@value
class Choice:
    """One decision of a scripted trader, with all that a record of it needs."""

    agent_id: str
    kind: str
    state: Json
    action: Json
    receipt: Receipt


class Crowd:
    """The traders of ``market.traders``; they join the world under names such as ``noise-1``."""

    def __init__(self, world: World, seed: int = 0) -> None:
        self._world = world
        self._order = random.Random(f"{seed}/order")
        self._traders: list[tuple[str, str, Trader]] = []
        for kind, count in world.config.traders.items():
            for number in range(1, count + 1):
                agent_id = f"{kind}-{number}"
                world.join(agent_id, kind)
                rng = random.Random(f"{seed}/trader/{agent_id}")
                self._traders.append((agent_id, kind, make_trader(kind, world.config, rng)))

    def act(self) -> Iterator[Choice]:
        """Everybody decides once, in an order drawn anew, each after those before it."""
        self._order.shuffle(self._traders)
        for agent_id, kind, trader in self._traders:
            state = self._world.state(agent_id)
            action = trader.decide(state)
            receipt = self._world.decide(agent_id, action)
            yield Choice(agent_id=agent_id, kind=kind, state=state, action=action, receipt=receipt)
