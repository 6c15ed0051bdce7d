"""Win rate, reward and profit, of the policy and of each kind of scripted trader."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rlforge.continuous.decisions.records import CONTROL, Decision, by_agent, grouped
from rlforge.continuous.report import COMPARED
from rlforge.types import value

POLICY = "policy"
"""The player that the trained model's decisions count for; scripted traders have their own name."""

Row = Mapping[str, Any]


@value
class Performance:
    """Figures over complete decisions; nan where there is nothing to average.

    trades: decisions with money at stake; win_rate, avg_pnl: of these, in the market's currency.
    """

    decisions: int
    trades: int
    refused: int
    win_rate: float
    avg_reward: float
    avg_pnl: float


def performance(decisions: Iterable[Decision]) -> Performance:
    complete = [decision for decision in decisions if decision.reward is not None]
    results = [d.result for d in complete if d.result is not None and d.result.investment > 0]
    return Performance(
        decisions=len(complete),
        trades=len(results),
        refused=sum(decision.refused for decision in complete),
        win_rate=_mean([float(result.pnl > 0) for result in results]),
        avg_reward=_mean([d.reward for d in complete if d.reward is not None]),
        avg_pnl=_mean([result.pnl for result in results]),
    )


def is_ours(decision: Decision) -> bool:
    """Whether the trained model made the decision, so that there are tokens to learn from."""
    known = decision.completion is not None and bool(decision.completion.token_ids)
    return known and decision.metadata.learns


def players(decisions: Iterable[Decision]) -> Mapping[str, Sequence[Decision]]:
    """The decisions of each kind of player, the policy first."""
    groups = grouped(decisions, lambda one: POLICY if is_ours(one) else one.metadata.provider)
    order = sorted(groups, key=lambda name: (name != POLICY, name))
    return {name: groups[name] for name in order}


def by_player(decisions: Iterable[Decision]) -> Mapping[str, Performance]:
    return {name: performance(own) for name, own in players(decisions).items()}


def reward_means(decisions: Iterable[Decision]) -> Mapping[str, float]:
    """The mean of the known rewards of each agent that has one."""
    known = by_agent(decision for decision in decisions if decision.reward is not None)
    return {agent: _mean([one.reward or 0.0 for one in own]) for agent, own in known.items()}


@value
class Difference:
    """A difference of means with its 95 % interval."""

    mean: float
    low: float
    high: float


def measured(markets: Sequence[Sequence[Decision]]) -> dict[str, Any]:
    """Figures of each player over all episodes, and of its agents in each episode.

    markets: the decisions of each episode.
    """
    return {
        "players": {
            name: asdict(one) for name, one in by_player(d for m in markets for d in m).items()
        },
        "agents": [
            {name: _compared(own) for name, own in players(decisions).items()}
            for decisions in markets
        ],
    }


def _compared(decisions: Sequence[Decision]) -> dict[str, dict[str, float]]:
    found = {agent: performance(own) for agent, own in by_agent(decisions).items()}
    return {agent: {key: getattr(one, key) for key in COMPARED} for agent, one in found.items()}


def gains(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, dict[str, Difference | None]]:
    """Change of each player's figures from one ``measured`` to another in the same episodes.

    Each agent of an episode is compared with itself. Agents of one episode trade with each other,
    so the episodes are clusters: the interval is Student's over their mean changes, and None where
    fewer than two episodes have a figure.
    """
    episodes = [*zip(before.get("agents", ()), after.get("agents", ()), strict=False)]
    return {
        player: {
            key: _gain([(was.get(player, {}), now.get(player, {})) for was, now in episodes], key)
            for key in COMPARED
        }
        for player in before["players"]
    }


def _gain(episodes: Sequence[tuple[Row, Row]], key: str) -> Difference | None:
    from scipy.stats import ttest_1samp

    means = []
    for was, now in episodes:
        pairs = [(was[agent][key], now[agent][key]) for agent in was.keys() & now.keys()]
        # An agent without a trade has no share of trades with a profit.
        changes = [
            new - old for old, new in pairs if None not in (old, new) and not math.isnan(new - old)
        ]
        if changes:
            means.append(_mean(changes))
    if len(means) < 2:
        return None
    return _interval(_mean(means), lambda: ttest_1samp(means, 0.0))


def difference_to_control(decisions: Sequence[Decision]) -> Difference | None:
    """Difference of the policy's agents to the control's; None for fewer than two."""
    # Each agent counts once, because its decisions depend on each other.
    return difference(
        list(reward_means(d for d in decisions if is_ours(d)).values()),
        list(reward_means(d for d in decisions if d.metadata.provider == CONTROL).values()),
    )


def difference(
    ours: Sequence[float], theirs: Sequence[float], confidence: float = 0.95
) -> Difference | None:
    """Welch's interval of a difference of means; None with fewer than two on a side."""
    from scipy.stats import ttest_ind

    if min(len(ours), len(theirs)) < 2:
        return None
    mean = _mean(ours) - _mean(theirs)
    return _interval(mean, lambda: ttest_ind(ours, theirs, equal_var=False), confidence)


def _interval(mean: float, test: Callable[[], Any], confidence: float = 0.95) -> Difference:
    with warnings.catch_warnings():
        # SciPy warns where all have almost the same mean, but the interval is that narrow.
        warnings.simplefilter("ignore", RuntimeWarning)
        interval = test().confidence_interval(confidence)
    # The interval is nan where all of each side have the same mean.
    if math.isnan(interval.low):
        return Difference(mean=mean, low=mean, high=mean)
    return Difference(mean=mean, low=float(interval.low), high=float(interval.high))


def _mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers) if numbers else math.nan
