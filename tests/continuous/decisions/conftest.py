"""Decisions as a market would write them."""

from __future__ import annotations

from typing import Any

import pytest
from tests import factories

from rlforge.continuous.decisions.records import (
    Decision,
    DecisionOutcome,
    Metadata,
    Result,
    WindowGrid,
)

#: 2024-11-13 10:00 UTC.
TEN = 1731492000.0
MINUTE = 60.0


def state(balance: float) -> dict[str, Any]:
    """A game state with every part."""
    return {
        "portfolio": {"balance": balance, "positions": [], "lifetimePnL": 0.0},
        "markets": {"predictions": [{"id": "m1", "yes": 0.4}], "perpetuals": []},
        "social": {"feed": [{"id": "p1", "content": "up “soon” ✓"}], "unreadMessages": 1},
        "agent": {"recentActions": [{"type": "NO_OP"}], "memory": []},
    }


ANSWER = factories.completion(
    "[buy m1]", prompt_token_ids=(1, 2, 3), token_ids=(4, 5), logprobs=(-0.1, -0.25)
)


class Make:
    """Makes decisions and outcomes; ``make(3)`` is decision 3 of agent-0 at 10:03."""

    grid = WindowGrid(60)

    def __call__(self, number: int, agent: str = "agent-0", **changes: Any) -> Decision:
        timestamp = changes.get("timestamp", TEN + number * MINUTE)
        fields = {
            "id": f"{agent}-{number:06d}",
            "reward": None,
            "tokens": None,
            "window_id": self.grid.id_of(timestamp),
            "state": state(1000.0 - number),
            "action": {"type": "BUY_SHARES", "marketId": "m1", "outcome": "YES", "amount": 5.0},
            "timestamp": timestamp,
            "metadata": Metadata(provider="tiny_market", reasoning="cheap", confidence=0.7),
        }
        return factories.decision(number, agent, **{**fields, **changes})

    def whole(self, number: int, agent: str = "agent-0", **changes: Any) -> Decision:
        """A decision whose outcome is known."""
        fields = {
            "reward": 0.5,
            "next_state": state(999.0 - number),
            "result": self.result(),
            "observation": "What now?",
            "completion": ANSWER,
        }
        return self(number, agent, **{**fields, **changes})

    def outcome(self, decision: Decision, reward: float = 0.25) -> DecisionOutcome:
        """An outcome of ``decision``."""
        return DecisionOutcome(
            decision_id=decision.id, reward=reward, next_state=state(7.0), result=self.result()
        )

    def result(self) -> Result:
        return Result(pnl=1.5, investment=5.0, hold_time_minutes=12.0, win_rate=0.6)


@pytest.fixture
def make():
    return Make()
