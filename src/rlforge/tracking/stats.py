"""Small statistics of games: who won, and how sure a rate is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

Outcome = Literal["win", "draw", "loss"]


def outcome(rewards: Mapping[int, float], player_id: int) -> Outcome:
    """How ``player_id`` fared.

    Several players: a win is more than everybody else's reward, a draw a shared highest one.
    One player: TextArena pays 0..1 for how much was solved, so 1 is a win and the rest a loss.
    """
    own = rewards[player_id]
    others = [reward for player, reward in rewards.items() if player != player_id]
    if not others:
        return "win" if own >= 1.0 else "loss"
    best = max(others)
    if own == best:
        return "draw"
    return "win" if own > best else "loss"


def wilson_interval(
    successes: int, trials: int, z: float = 1.959963984540054
) -> tuple[float, float]:
    """Interval of a success probability (Wilson 1927); ``z`` 1.96 makes it a 95 % interval.

    No trials: (0, 1), nothing is known.
    """
    if trials == 0:
        return (0.0, 1.0)
    rate = successes / trials
    weight = z * z / trials
    centre = (rate + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(rate * (1 - rate) / trials + weight / (4 * trials))
    # At 0 and at all successes the bound is exact; rounding must not move it past the rate.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return (low, high)
