"""Shares of actions, communication, agreement and teams, on windows made by hand."""

import dataclasses
import random

import pytest
from tests import factories

from rlforge.continuous.loop.behaviour import (
    agreement,
    behaviour,
    communication,
    teams,
    with_readers,
)

BUY = {"type": "BUY_SHARES", "marketId": "market-1", "outcome": "YES", "amount": 5}
SHORT = {"type": "OPEN_POSITION", "ticker": "ACME", "side": "short", "size": 5, "leverage": 1}
LONG = {**SHORT, "side": "long"}
WAIT = {"type": "NO_OP"}


@pytest.fixture
def act():
    """A decision of a learning agent at one time, by default at the first."""

    def make(agent, action, *, at=0, following=(), feed=None, reward=0.0, **given):
        posts = [
            {"id": post, "userId": author, "content": "I say YES on market-1.", "minute": 0.0}
            for post, author in (feed or {}).items()
        ]
        own = {"following": list(following), "minute": float(at)}
        state = {"social": {"feed": posts}, "agent": own}
        made = factories.decision(at, agent, reward, **given)
        return dataclasses.replace(made, action=dict(action), state=state)

    return make


def follow(user):
    return {"type": "FOLLOW_USER", "userId": user}


def comment(post):
    return {"type": "CREATE_COMMENT", "postId": post, "content": "no"}


def test_shares_of_actions_are_those_of_each_player_and_all_without_a_market(act):
    assert behaviour([factories.decision()]) == {"action/policy/NO_OP": 1.0}
    assert behaviour([]) == {}
    found = behaviour(
        [
            act("agent-1", BUY),
            act("agent-1", {**WAIT, "problem": "no action"}, at=1),
            act("agent-2", BUY),
            act("agent-2", WAIT, at=1),
            act("control-1", WAIT, provider="control"),
            act("noise-1", LONG, provider="scripted:noise", tokens=None),
        ]
    )
    shares = {name: figure for name, figure in found.items() if name.startswith("action/")}
    assert shares == {
        "action/policy/BUY_SHARES": 0.5,
        "action/policy/NO_OP": 0.25,
        "action/policy/refused": 0.25,
        "action/control/NO_OP": 1.0,
        "action/scripted:noise/OPEN_POSITION": 1.0,
    }


def test_communication_by_hand(act):
    found = communication(
        [
            act("agent-1", {"type": "CREATE_POST", "content": "hi"}, following=["wire"]),
            act("agent-1", comment("post-1"), at=1, feed={"post-1": "agent-2"}),
            act("agent-2", comment("post-2"), feed={"post-2": "wire"}),
            act("agent-2", {**comment("post-9"), "problem": "no post"}, at=1),
            act("agent-2", follow("agent-1"), at=2, following=["wire", "daily"]),
        ]
    )
    assert found == {"posts": 1 / 5, "comments": 2 / 5, "to_each_other": 2 / 3}


def test_figures_that_cannot_move_or_have_no_value_are_left_out(act):
    both = [act("agent-1", WAIT, following=["wire"]), act("agent-2", WAIT)]

    def social(decisions, **given):
        found = behaviour(decisions, **given)
        return {name.removeprefix("social/"): found[name] for name in found if "social" in name}

    assert social(both, talk=False) == {"follows": 0.5}
    assert social(both) == {"follows": 0.5, "posts": 0, "comments": 0, "team_agents": 0}
    assert social(both[:1]) == {"follows": 1.0}, "an agent by itself has no team"
    assert social([act("agent-1", LONG), act("agent-2", LONG)], talk=False) == {
        "follows": 0.0,
        "agreement": 1.0,
    }


def test_posts_share_the_rewards_of_trades_that_followers_made_after_reading_them(act):
    post = {"type": "CREATE_POST", "content": "I say YES on market-1."}
    read = {"following": ["agent-1"], "feed": {"post-1": "agent-1"}, "at": 1}
    decisions = [
        act("agent-1", post, reward=0.2),
        act("agent-1", post, reward=0.2, at=1),  # nobody has read this one
        act("agent-2", BUY, reward=0.8, **read),
        act("agent-3", BUY, reward=0.4, **read),
        act("agent-4", LONG, reward=-1.0, **read),  # in another market
        act("agent-5", BUY, reward=-1.0, at=1, feed=read["feed"]),  # follows nobody
        act("agent-6", BUY, reward=-1.0, provider="control", **read),
        act("agent-7", BUY, reward=None, **read),
    ]
    own = [one.reward for one in decisions]
    assert with_readers(decisions, 0.0) == own
    assert with_readers(decisions, 0.5) == [pytest.approx(0.4), *own[1:]]
    assert with_readers(decisions, 1.0) == [pytest.approx(0.6), *own[1:]]


def test_agreement_counts_pairs_in_one_market_at_one_time(act):
    same = [act("agent-1", SHORT), act("agent-2", SHORT), act("agent-3", LONG)]
    assert agreement(same) == 1 / 3
    elsewhere = [act("agent-4", BUY), act("agent-5", LONG, at=1), act("agent-6", WAIT)]
    assert agreement([*same, *elsewhere]) == 1 / 3
    refused = act("agent-7", {**SHORT, "problem": "too little money"})
    assert agreement([*same, refused]) == 1 / 3
    assert agreement(elsewhere) is None


def test_independent_agents_agree_by_half_and_those_of_one_opinion_always(act):
    draw = random.Random(0)
    independent = [
        act(f"agent-{agent}", draw.choice([LONG, SHORT]), at=tick)
        for tick in range(200)
        for agent in range(6)
    ]
    found = agreement(independent)
    assert found is not None
    assert abs(found - 0.5) < 0.04
    of_one = [dataclasses.replace(one, action=LONG) for one in independent]
    assert agreement(of_one) == 1.0


def test_agents_in_teams_are_compared_with_those_by_themselves(act):
    decisions = [
        act("agent-1", WAIT, following=["agent-2"], reward=0.5),
        act("agent-2", WAIT, reward=0.7),
        act("agent-3", comment("post-1"), feed={"post-1": "agent-1"}, reward=0.6),
        act("agent-4", follow("wire"), reward=0.1),
        act("agent-5", {**follow("agent-4"), "problem": "you follow agent-4"}, reward=0.3),
    ]
    found = teams(decisions)
    assert found["team_agents"] == 3 / 5
    assert found["team_advantage"] == pytest.approx(0.6 - 0.2)
    low, high = found["team_advantage_low"], found["team_advantage_high"]
    assert low is not None
    assert high is not None
    assert low < 0.4 < high
    assert teams(decisions[:3])["team_advantage"] is None
