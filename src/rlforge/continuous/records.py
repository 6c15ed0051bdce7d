"""The line of a window in windows.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlforge.continuous.journal import Entry
from rlforge.continuous.learner import Trained
from rlforge.continuous.performance import POLICY, by_player
from rlforge.system.values import json_ready
from rlforge.trajectories.records import Decision, TrainingWindow
from rlforge.trajectories.reward import DecisionReward, mean_parts

Row = dict[str, Any]


def window_row(
    work: Entry,
    window: TrainingWindow,
    gathered: Mapping[str, int],
    trained: Trained | None,
    deployed: bool | None,
    *,
    reason: str,
    rewards: Mapping[str, float],
    scorer: Mapping[str, float],
    minutes: float,
) -> Row:
    """One line of ``windows.jsonl`` (see docs/run_directory.md).

    gathered: figures of its ``WindowBatch``. training_loss, kl_divergence and deployment_success
    are None where nothing was trained.
    """
    metrics = trained.metrics if trained else {}
    players = by_player(window.decisions)
    policy = players.get(POLICY)
    row: Row = json_ready(
        {
            "window_id": window.id,
            "agents": len(window.agents),
            "trajectories": len(window.decisions),
            "avg_reward": window.avg_reward,
            "high_score_count": gathered["selected"],
            "training_loss": metrics.get("loss"),
            "kl_divergence": metrics.get("kl"),
            "deployment_success": deployed,
            "duration_minutes": minutes,
            "window": work.number,
            "reason": reason,
            "version": trained.checkpoint.uid if trained else None,
            "win_rate": policy.win_rate if policy else None,
            "policy_reward": policy.avg_reward if policy else None,
            "avg_pnl": policy.avg_pnl if policy else None,
            "players": {name: one.to_json() for name, one in players.items()},
            **{f"batch/{name}": n for name, n in gathered.items() if name != "selected"},
            **{f"reward/{name}": number for name, number in rewards.items()},
            **{f"scorer/{name}": number for name, number in scorer.items()},
        }
    )
    return row


def reward_figures(reward: DecisionReward, decisions: Sequence[Decision]) -> Mapping[str, float]:
    """Means of the reward's terms, and of the agents' discounted returns."""
    parts = mean_parts([reward(d.result) for d in decisions if d.result is not None])
    returns = reward.returns(decisions)
    if returns:
        parts["return"] = math.fsum(returns.values()) / len(returns)
    return {name.removeprefix("reward_"): number for name, number in parts.items()}
