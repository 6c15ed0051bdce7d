"""Small windows of a market with known right answers, and agents of known skill."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.factories import market_state

from rlforge.continuous.decisions.records import Decision, Metadata, Result, TrainingWindow

#: Probability that an agent trades with the news, not against it.
SKILL = {"expert": 1.0, "good": 0.85, "fair": 0.6, "noise": 0.4}
HOUR = 3600.0


def _state(rng: random.Random, truth: str) -> dict[str, Any]:
    price = round(rng.uniform(0.35, 0.65), 4)
    other = "NO" if truth == "YES" else "YES"
    feed = [
        {
            "id": f"post-{account}",
            "userId": account,
            "about": "market-1",
            "stance": truth if rng.random() < 0.8 else other,
            "content": "I hear things.",
        }
        for account in ("wire", "daily", "rumor")
    ]
    market = {"id": "market-1", "yesPrice": price, "noPrice": round(1 - price, 4), "change": 0.0}
    return market_state([market], feed=feed)


def _decision(agent: str, number: int, window: str, start: float, rng: random.Random) -> Decision:
    truth = rng.choice(("YES", "NO"))
    state = _state(rng, truth)
    said = [post["stance"] for post in state["social"]["feed"]]
    advised = "YES" if said.count("YES") >= 2 else "NO"
    skilled = rng.random() < SKILL.get(agent, 0.5)
    outcome = advised if skilled else ("NO" if advised == "YES" else "YES")
    market = state["markets"]["predictions"][0]
    price = market["yesPrice"] if outcome == "YES" else market["noPrice"]
    stake = round(rng.uniform(20, 100), 2)
    pnl = stake / price - stake if outcome == truth else -stake
    after = {**state, "portfolio": {**state["portfolio"], "balance": 1000.0 + pnl}}
    return Decision(
        id=f"{window}/{agent}/{number:03}",
        agent_id=agent,
        window_id=window,
        state=state,
        action={"type": "BUY_SHARES", "marketId": "market-1", "outcome": outcome, "amount": stake},
        timestamp=start + number,
        metadata=Metadata(provider="scripted:test", reasoning="", confidence=0.5),
        reward=0.5 * max(-1.0, min(1.0, pnl / stake)) + 0.35,
        next_state=after,
        result=Result(pnl=pnl, investment=stake, hold_time_minutes=30.0, win_rate=0.5),
    )


@pytest.fixture(scope="session")
def make_window():
    """A window from its number: 20 decisions of each agent of ``SKILL``, or of those named."""

    def make(number: int = 0, *, each: int = 20, agents: tuple[str, ...] = tuple(SKILL)) -> Any:
        rng = random.Random(number)
        window, start = f"2024-11-13-{number:02}:00", number * HOUR
        decisions = [
            _decision(agent, place, window, start, rng) for place in range(each) for agent in agents
        ]
        rewards = [decision.reward or 0.0 for decision in decisions]
        return TrainingWindow(
            id=window,
            start_time=start,
            end_time=start + HOUR,
            agents=tuple(sorted(agents)),
            decisions=tuple(decisions),
            avg_reward=sum(rewards) / len(rewards),
            ready=True,
        )

    return make


@pytest.fixture
def skill():
    return dict(SKILL)
