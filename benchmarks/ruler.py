"""How well RULER's learned scorers tell skilled from unskilled traders, and good from bad outcomes.

    python benchmarks/ruler.py [--seeds N]

Scripted traders play the market; a window is a simulated hour. A scorer learns the windows of one
market and is then examined on another, with other agents, whose outcomes it does not see
(``forecast``), or does, as in training (``judgement``). Skill is the order noise < momentum < value
< insider. ``rewards themselves``: the mean reward of each agent in place of a score.

skill: pairs of agents of different kinds, ordered by their mean score over the held-out windows;
one_window: the same within each window alone. rewards: pairs of decisions of one window.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, get_args

from common import record, seconds, shown, spread

from rlforge.continuous.config.market import MarketConfig, TraderKind
from rlforge.continuous.config.ruler import RegressionConfig, RulerConfig
from rlforge.continuous.decisions.records import Decision, Metadata, Result, TrainingWindow
from rlforge.continuous.market.books import Settled
from rlforge.continuous.market.traders import Choice, Crowd
from rlforge.continuous.market.world import World
from rlforge.continuous.ruler.agreement import Agreement, agreement, pooled
from rlforge.continuous.ruler.base import DecisionScorer
from rlforge.continuous.ruler.features import STATE_ACTION
from rlforge.continuous.ruler.scorer import make_scorer

LEARNED, HELD_OUT = 24, 12
WINDOW_MINUTES = 60.0
START = datetime(2024, 11, 13, tzinfo=UTC).timestamp()
CROWD = {"noise": 8, "momentum": 4, "value": 4, "insider": 4}

SCORERS = {
    "preference": RulerConfig(),
    "regression, ridge": RulerConfig(scoring_method="regression"),
    "regression, trees": RulerConfig(
        scoring_method="regression", regression=RegressionConfig(model="gradient_boosting")
    ),
    "preference, with_outcome": RulerConfig(features="with_outcome"),
}


REWARDS = "rewards themselves"
Scores = tuple[float | None, ...]


def play(seed: int, windows: int) -> tuple[list[TrainingWindow], dict[str, float]]:
    """Windows of scripted play, all outcomes known, and the skill of each agent."""
    config = MarketConfig(traders=CROWD)
    world = World(config, seed=seed)
    crowd = Crowd(world, seed=seed)
    pending: dict[int, tuple[Choice, float]] = {}
    done: list[Decision] = []
    skill: dict[str, float] = {}
    last = windows * WINDOW_MINUTES
    while world.minute < last or pending:
        if world.minute < last:
            for choice in crowd.act():
                pending[choice.receipt.ticket] = (choice, world.minute)
                skill[choice.agent_id] = float(get_args(TraderKind).index(choice.kind))
        for settled in world.tick():
            if found := pending.pop(settled.ticket, None):
                done.append(decision(*found, settled, world.state(settled.agent_id)))
    done.sort(key=lambda one: (one.timestamp, one.id))
    return [window(list(own)) for _, own in groupby(done, key=lambda one: one.window_id)], skill


def decision(choice: Choice, minute: float, settled: Settled, after: Any) -> Decision:
    """One row, with the document's reward."""
    begun = START + minute // WINDOW_MINUTES * WINDOW_MINUTES * 60
    gain = settled.pnl / settled.investment if settled.investment else 0.0
    speed = 1.0 if settled.hold_time_minutes < 60 else 0.5
    reward = 0.5 * gain + 0.2 * speed + 0.3 * settled.win_rate
    return Decision(
        id=f"{settled.ticket:09}",
        agent_id=choice.agent_id,
        window_id=datetime.fromtimestamp(begun, UTC).strftime("%Y-%m-%d-%H:%M"),
        state=choice.state,
        action=choice.action,
        timestamp=START + minute * 60,
        metadata=Metadata(provider=f"scripted:{choice.kind}"),
        reward=max(-1.0, min(1.0, reward)),
        next_state=after,
        result=Result(
            pnl=settled.pnl,
            investment=settled.investment,
            hold_time_minutes=settled.hold_time_minutes,
            win_rate=settled.win_rate,
        ),
    )


def window(decisions: list[Decision]) -> TrainingWindow:
    """A window of all that was decided in it."""
    start = START + (decisions[0].timestamp - START) // 3600 * 3600
    return TrainingWindow(
        id=decisions[0].window_id,
        start_time=start,
        end_time=start + WINDOW_MINUTES * 60,
        agents=tuple(sorted({one.agent_id for one in decisions})),
        decisions=tuple(decisions),
        avg_reward=statistics.fmean(one.reward or 0.0 for one in decisions),
        ready=True,
    )


async def examine(
    scorer: DecisionScorer, windows: Sequence[TrainingWindow], *, hide_outcomes: bool = True
) -> tuple[dict[str, float], list[Scores]]:
    """Agreement with the rewards of windows that the scorer has not learned, and its scores."""
    hidden = {"reward": None, "next_state": None, "result": None} if hide_outcomes else {}
    scores = [
        (await scorer.score([replace(one, **hidden) for one in window.decisions])).values
        for window in windows
    ]
    found = pooled(
        [
            agreement(own, [one.reward for one in window.decisions])
            for own, window in zip(scores, windows, strict=True)
        ]
    )
    counts = {
        "agreement_pairs": float(found.pairs),
        "agreement_unscored": float(sum(own.count(None) for own in scores)),
    }
    return found.metrics("") | counts, scores


def by_skill(
    windows: Sequence[TrainingWindow], scores: Sequence[Scores], skill: Mapping[str, float]
) -> Agreement:
    """Each agent's mean score against its skill."""
    found: dict[str, list[float]] = defaultdict(list)
    for window, own in zip(windows, scores, strict=True):
        for one, score in zip(window.decisions, own, strict=True):
            if score is not None:
                found[one.agent_id].append(score)
    return agreement([*map(statistics.fmean, found.values())], [skill[agent] for agent in found])


async def measure(
    config: RulerConfig,
    learned: list[TrainingWindow],
    held_out: list[TrainingWindow],
    skill: Mapping[str, float],
) -> dict[str, float]:
    """All figures of one scorer on one market."""
    scorer = make_scorer(config)
    scorer.learn(learned)
    figures = {}
    if config.features == STATE_ACTION:  # others have nothing to go by without outcomes
        found, scores = await examine(scorer, held_out)
        found |= by_skill(held_out, scores, skill).metrics("skill_")
        figures = {f"forecast_{name}": value for name, value in found.items()}
    _, scores = await examine(scorer, held_out, hide_outcomes=False)
    return figures | against_skill(held_out, scores, skill)


def against_skill(
    windows: list[TrainingWindow], scores: Sequence[Scores], skill: Mapping[str, float]
) -> dict[str, float]:
    """Each agent's mean score against its skill, over all windows and in each of them."""
    overall = by_skill(windows, scores, skill)
    single = [by_skill([one], [own], skill) for one, own in zip(windows, scores, strict=True)]
    return {
        "judgement_skill_pairwise_accuracy": overall.pairwise_accuracy or 0.0,
        "judgement_skill_kendall_tau": overall.kendall_tau or 0.0,
        "judgement_one_window_accuracy": statistics.fmean(
            one.pairwise_accuracy or 0.0 for one in single
        ),
    }


def unit(name: str) -> str:
    """Of a figure, for the page of results."""
    return "tau" if name.endswith("tau") else "share"


def main() -> None:
    parser = argparse.ArgumentParser(description="Agreement of RULER's learned scorers.")
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in (*SCORERS, REWARDS)}
    learn_s: list[float] = []
    score_s: list[float] = []
    decisions: list[float] = []
    for seed in range(seeds):
        learned, _ = play(2 * seed, LEARNED)
        held_out, skill = play(2 * seed + 1, HELD_OUT)
        decisions += [float(len(one.decisions)) for one in held_out]
        for name, config in SCORERS.items():
            figures[name].append(asyncio.run(measure(config, learned, held_out, skill)))
        rewards = [[one.reward for one in window.decisions] for window in held_out]
        figures[REWARDS].append(against_skill(held_out, rewards, skill))
        scorer, shown_window = make_scorer(RulerConfig()), held_out[0].decisions
        learn_s.append(seconds(lambda s=scorer, w=learned: s.learn(w)))
        asyncio.run(scorer.score(shown_window))  # fits the model
        score_s.append(seconds(lambda s=scorer, w=shown_window: asyncio.run(s.score(w))))
    rows = {
        scorer: {
            name: spread([run[name] for run in runs], unit(name))
            for name in runs[0]
            if name.endswith(("tau", "accuracy"))
        }
        for scorer, runs in figures.items()
    }
    print(f"{'':36}" + "".join(f"{name:>26}" for name in rows))
    for name in rows["preference"]:
        cells = (
            shown(row[name], unit(name), digits=3) if name in row else "" for row in rows.values()
        )
        print(f"{name:36}" + "".join(f"{cell:>26}" for cell in cells))
    record(
        "ruler",
        {
            "traders": CROWD,
            "learned_windows": LEARNED,
            "held_out_windows": HELD_OUT,
            "decisions_per_window": spread(decisions, "decisions"),
            "scorers": rows,
            "learn_24_windows": spread(learn_s),
            "score_a_window": spread(score_s),
        },
    )


if __name__ == "__main__":
    main()
