"""Behaviour of agents in a window: actions, messages to each other, and teams."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rlforge.continuous.decisions.records import CONTROL, Decision
from rlforge.continuous.loop.performance import difference, is_ours, players, reward_means
from rlforge.continuous.market.compact import said
from rlforge.continuous.ruler.features import sign_of

REFUSED = "refused"
"""Counted in place of the type of an action that the market did not accept."""


def behaviour(decisions: Sequence[Decision], *, talk: bool = True) -> dict[str, float]:
    """Figures of a window's decisions that have a value; outside of a market those of actions.

    ``action/PLAYER/TYPE``: share of the player's actions. ``social/…``: ``communication``,
    ``teams``. talk: agents have words for what they say to each other, so that these may move.
    """
    figures: dict[str, float] = {}
    for player, own in players(decisions).items():
        counts = Counter(REFUSED if d.refused else str(d.action["type"]) for d in own)
        for kind, count in sorted(counts.items()):
            figures[f"action/{player}/{kind}"] = count / len(own)
    ours = [d for d in decisions if is_ours(d) and "social" in d.state]
    if not ours:
        return figures
    follows = [len(d.state["agent"]["following"]) for d in ours]
    social: dict[str, float | None] = {
        "follows": sum(follows) / len(follows),
        "agreement": agreement(ours),
        "control_agreement": agreement(d for d in decisions if d.metadata.provider == CONTROL),
    }
    # A single agent has no readers.
    if talk and len({d.agent_id for d in ours}) > 1:
        social |= {**communication(ours), **teams(ours)}
    return figures | {f"social/{name}": each for name, each in social.items() if each is not None}


def communication(decisions: Sequence[Decision]) -> dict[str, float | None]:
    """Posts and comments per decision.

    to_each_other: share of comments and follows among these agents.
    """
    done = [d for d in decisions if not d.refused]
    counts = Counter(d.action["type"] for d in done)
    agents = {d.agent_id for d in decisions}
    # Agents address news accounts, too, which are none of them.
    inside = [other in agents for _, other in _addressed(done)]
    return {
        "posts": counts["CREATE_POST"] / len(decisions),
        "comments": counts["CREATE_COMMENT"] / len(decisions),
        "to_each_other": sum(inside) / len(inside) if inside else None,
    }


def agreement(decisions: Iterable[Decision]) -> float | None:
    """Share of pairs of agents that trade in one market at one time and take the same side."""
    sides: dict[tuple[float, Any], Counter[int]] = {}
    for one in decisions:
        about = one.action.get("marketId", one.action.get("ticker"))
        if about is not None and not one.refused:
            sides.setdefault((one.timestamp, about), Counter())[sign_of(one.action)] += 1
    pairs = sum(math.comb(taken.total(), 2) for taken in sides.values())
    same = sum(math.comb(count, 2) for taken in sides.values() for count in taken.values())
    # Independent agents without a common opinion reach 0.5.
    return same / pairs if pairs else None


def teams(decisions: Sequence[Decision]) -> dict[str, float | None]:
    """Whether agents that follow or comment each other do better than the others.

    team_advantage: difference of their mean rewards, None with fewer than two on a side.
    """
    agents = {d.agent_id for d in decisions}
    tied = {
        agent
        for pair in _addressed(decisions, standing=True)
        if pair[1] in agents and pair[0] != pair[1]
        for agent in pair
    }
    rewards = reward_means(decisions)
    gain = difference(
        [mean for agent, mean in rewards.items() if agent in tied],
        [mean for agent, mean in rewards.items() if agent not in tied],
    )
    return {
        "team_agents": len(tied) / len(agents),
        "team_advantage": None if gain is None else gain.mean,
        "team_advantage_low": None if gain is None else gain.low,
        "team_advantage_high": None if gain is None else gain.high,
    }


def _addressed(
    decisions: Iterable[Decision], *, standing: bool = False
) -> Iterable[tuple[str, str]]:
    """Who comments on or begins to follow whom. standing: also who follows whom already."""
    for one in decisions:
        if standing:
            yield from ((one.agent_id, user) for user in one.state["agent"]["following"])
        if one.refused:
            continue
        if one.action["type"] == "FOLLOW_USER":
            yield one.agent_id, one.action["userId"]
        elif one.action["type"] == "CREATE_COMMENT":
            authors = {post["id"]: post["userId"] for post in one.state["social"]["feed"]}
            if (author := authors.get(one.action["postId"])) is not None:
                yield one.agent_id, author


def with_readers(decisions: Sequence[Decision], share: float) -> list[float | None]:
    """The rewards of decisions, ``share`` of those of posts and comments from their readers.

    That part is the mean reward of the policy's trades in the market that they speak of, made by
    followers that had read them; without such a trade there is none.
    """
    heard: dict[tuple[str, float], list[float]] = {}
    for one in decisions if share else ():
        about = one.action.get("marketId", one.action.get("ticker"))
        if about is None or one.reward is None or one.refused or not is_ours(one):
            continue
        for post in said(one.state, about):
            if post["userId"] in one.state["agent"]["following"]:
                # An agent decides once in a tick, so that this names the decision to post.
                heard.setdefault((post["userId"], post["minute"]), []).append(one.reward)
    rewards = [one.reward for one in decisions]
    for place, one in enumerate(decisions if heard else ()):
        known, own = heard.get((one.agent_id, one.state["agent"]["minute"])), one.reward
        if known and own is not None:
            rewards[place] = (1 - share) * own + share * math.fsum(known) / len(known)
    return rewards
