"""Rewards of decisions: ``0.5 pnl / investment + 0.2 speed + 0.3 win rate`` by default."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlforge.continuous.config.continuous import DecisionRewardConfig
from rlforge.continuous.decisions.records import Decision, Result, by_agent
from rlforge.types import value

#: Speed term of a fast decision, and minutes of holding below which a decision is one.
FAST_REWARD, FAST_MINUTES = 1.0, 60.0
#: Bounds of rewards.
LOW, HIGH = -1.0, 1.0


@value
class RewardParts:
    """A reward and its parts. reward: ``total``, their weighted sum, in ``LOW`` … ``HIGH``."""

    pnl: float
    speed: float
    consistency: float
    total: float
    reward: float


class DecisionReward:
    """The reward of a decision by its result.

    Example:
        >>> reward = DecisionReward(DecisionRewardConfig())
        >>> result = Result(pnl=10.0, investment=100.0, hold_time_minutes=30.0, win_rate=0.6)
        >>> round(reward(result).reward, 3)  # 0.5 * 0.1 + 0.2 * 1 + 0.3 * 0.6
        0.43
    """

    def __init__(self, config: DecisionRewardConfig) -> None:
        self._config = config

    def __call__(self, result: Result) -> RewardParts:
        config = self._config
        invested = result.investment > 0
        pnl = result.pnl / result.investment if invested else config.uninvested_reward
        fast = result.hold_time_minutes < FAST_MINUTES
        speed = FAST_REWARD if fast else config.slow_reward
        total = (
            config.pnl_weight * pnl
            + config.speed_weight * speed
            + config.consistency_weight * result.win_rate
        )
        return RewardParts(
            pnl=pnl,
            speed=speed,
            consistency=result.win_rate,
            total=total,
            # A tiny investment may return a thousandfold.
            reward=min(max(total, LOW), HIGH),
        )

    def normalize(self, rewards: Sequence[float]) -> list[float]:
        """The rewards of one window, in order, normalised by ``decision_reward.normalize``."""
        config = self._config
        if config.normalize == "none" or not rewards:
            return list(rewards)
        least, most = min(rewards), max(rewards)
        # Equal rewards may differ by rounding (0.1 + 0.2 and 0.3), which must not be scaled up.
        equal = most - least <= 1e-9 * max(1.0, abs(least), abs(most))
        # fsum makes means of the same decisions in another order equal to the bit.
        if config.normalize == "minmax":
            if equal:
                return [(LOW + HIGH) / 2] * len(rewards)
            scale = (HIGH - LOW) / (most - least)
            return [LOW + (reward - least) * scale for reward in rewards]
        if equal:
            return [0.0] * len(rewards)
        mean = math.fsum(rewards) / len(rewards)
        if config.normalize == "center":
            return [reward - mean for reward in rewards]
        variance = math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards)
        return [(reward - mean) / math.sqrt(variance) for reward in rewards]

    def returns(self, decisions: Sequence[Decision]) -> dict[str, float]:
        """Each agent's discounted return over its rewarded decisions, in order of time."""
        known = [one for one in decisions if one.reward is not None]
        agents = by_agent(sorted(known, key=lambda one: (one.timestamp, one.id)))
        found = {}
        for agent, own in sorted(agents.items()):
            rewards = [one.reward or 0.0 for one in own]
            found[agent] = returns_to_go([agent] * len(own), rewards, self._config.gamma)[0]
        return found


def returns_to_go(agents: Sequence[str], rewards: Sequence[float], gamma: float) -> list[float]:
    """The returns of decisions in order of time: Σᵢ γⁱ rᵢ over the agent's rewards from there."""
    later: dict[str, float] = {}
    found = []
    for agent, reward in zip(reversed(agents), reversed(rewards), strict=True):
        later[agent] = reward + gamma * later.get(agent, 0.0)
        found.append(later[agent])
    return found[::-1]


def mean_parts(parts: Sequence[RewardParts]) -> dict[str, float]:
    """The mean of each part, and the share that is ``clipped``."""
    if not parts:
        return {}
    count, names = len(parts), ("reward", "pnl", "speed", "consistency", "total")
    means = {name: math.fsum(getattr(part, name) for part in parts) / count for name in names}
    return {**means, "clipped": sum(part.reward != part.total for part in parts) / count}
