"""The world: states, the feed, tips, episodes, and dependence on the seed."""

import dataclasses
import json
import pickle

import pytest

from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.market.actions import NO_OP, buy, open_position
from rlforge.continuous.market.traders import Crowd
from rlforge.continuous.market.world import World


def say(world, agent, content="hello"):
    return world.decide(agent, {"type": "CREATE_POST", "content": content})


def follow(world, agent, user):
    return world.decide(agent, {"type": "FOLLOW_USER", "userId": user})


def feed(world, agent):
    return world.state(agent)["social"]["feed"]


def test_a_state_has_the_documented_parts_and_is_json(make_world):
    world = make_world()
    world.decide("ann", buy("market-1", "YES", 9))
    say(world, "bob")
    state = world.state("ann")
    assert {part: set(state[part]) for part in ("portfolio", "markets", "social")} == {
        "portfolio": {"balance", "positions", "lifetimePnL"},
        "markets": {"predictions", "perpetuals"},
        "social": {"feed", "unreadMessages"},
    }
    assert {"recentActions", "memory"} <= set(state["agent"])
    assert json.loads(json.dumps(state)) == state


def test_a_state_does_not_change_afterwards(make_world):
    world = make_world(visibility=1.0)
    say(world, "bob")
    kept = world.state("ann")
    text = json.dumps(kept)
    for _ in range(3):
        for agent in ("ann", "bob"):
            world.decide(agent, buy("market-1", "YES", 90))
            say(world, agent)
        world.tick()
    assert json.dumps(kept) == text
    assert json.dumps(world.state("ann")) != text


def test_worlds_depend_on_the_seed_alone_and_continue_when_pickled():
    def begun(seed):
        world = World(MarketConfig(), seed)
        return world, Crowd(world, seed)

    def go_on(world, crowd):
        ticks = [([(c.agent_id, c.action) for c in crowd.act()], world.tick()) for _ in range(20)]
        return ticks, [world.state(agent) for agent in world.agent_ids], world.books.accounts()

    pair = begun(3)
    assert go_on(*begun(3)) == go_on(*pair) != go_on(*begun(4))
    kept = pickle.dumps(pair)
    assert go_on(*pickle.loads(kept)) == go_on(*pair)


def test_truth_news_and_indices_do_not_depend_on_what_agents_do(make_world):
    def facts(trade):
        world = make_world(seed=5, volatility=0.02, drift=0.01, news_rate=0.5, visibility=1.0)
        found = []
        for _ in range(40):
            if trade:
                market = world.state("ann")["markets"]["predictions"][0]["id"]
                assert world.decide("ann", buy(market, "YES", 20)).accepted
                follow(world, "ann", "wire")
            world.tick()
            state = world.state("bob")
            found.append([post["content"] for post in state["social"]["feed"]])
            found.append([m["indexPrice"] for m in state["markets"]["perpetuals"]])
            found.append([(m.id, m.truth) for m in world.books.predictions.values()])
        return found

    assert facts(trade=True) == facts(trade=False)


def test_posts_reach_followers_always_and_others_by_chance(make_world):
    world = make_world(agents=("ann", "bob", "cyd"), visibility=0.0)
    assert follow(world, "bob", "ann").accepted
    assert say(world, "ann").accepted
    assert [post["content"] for post in feed(world, "bob")] == ["hello"]
    assert feed(world, "cyd") == feed(world, "ann") == []
    world = make_world(visibility=0.5)
    for _ in range(200):
        say(world, "ann")
    assert world.state("bob")["social"]["unreadMessages"] == pytest.approx(100, abs=30)


def test_a_comment_reaches_the_author_of_a_post_until_that_is_dropped(make_world):
    world = make_world(visibility=0.0)
    say(world, "ann")
    comment = {"type": "CREATE_COMMENT", "postId": "post-1", "content": "why?"}
    assert world.decide("bob", comment).accepted
    (post,) = feed(world, "ann")
    assert (post["userId"], post["replyTo"], post["content"]) == ("bob", "post-1", "why?")
    assert "no post 'post-9'" in world.decide("bob", {**comment, "postId": "post-9"}).problem
    world = make_world(agents=("ann",))
    for _ in range(2000):
        say(world, "ann")
    assert world.decide("ann", comment).accepted
    assert "no post 'post-1'" in world.decide("ann", comment).problem


def test_unread_posts_are_counted_until_the_next_decision(make_world):
    world = make_world(visibility=1.0)
    say(world, "ann")
    say(world, "ann")
    assert world.state("bob")["social"]["unreadMessages"] == 2
    world.decide("bob", {"type": "nonsense"})
    assert world.state("bob")["social"]["unreadMessages"] == 2
    world.decide("bob", NO_OP)
    assert world.state("bob")["social"]["unreadMessages"] == 0


def test_feed_memory_and_actions_keep_their_lengths(make_world):
    world = make_world(visibility=1.0, feed_length=4)
    for number in range(8):
        say(world, "ann", f"post {number}")
        world.decide("bob", open_position("ACME", "long", 10, 1))
        world.decide("bob", {"type": "CLOSE_POSITION", "positionId": f"position-{number + 1}"})
    state = world.state("bob")
    assert [post["content"] for post in state["social"]["feed"]] == [
        f"post {number}" for number in (4, 5, 6, 7)
    ]
    kinds = [action["type"] for action in state["agent"]["recentActions"]]
    assert kinds == ["CLOSE_POSITION", *["OPEN_POSITION", "CLOSE_POSITION"] * 2]
    assert len(state["agent"]["memory"]) == 6


def test_own_notes_are_remembered_with_those_on_trades_and_are_no_part_of_recent_actions(
    make_world,
):
    world = make_world()
    for number in range(7):
        world.decide("ann", {**NO_OP, "note": f"note {number}", "confidence": 0.5})
    world.tick()
    agent = world.state("ann")["agent"]
    assert [note["text"] for note in agent["memory"]] == [
        f"note {number}" for number in range(1, 7)
    ]
    assert agent["recentActions"] == [NO_OP] * 5
    long = world.decide("ann", {**NO_OP, "note": "x" * 281})
    assert (long.accepted, long.problem) == (
        False,
        "note has 281 characters; at most 280 are allowed",
    )
    missing = world.decide(
        "ann", {"type": "CLOSE_POSITION", "positionId": "position-9", "note": "that was nothing"}
    )
    assert not missing.accepted
    assert world.state("ann")["agent"]["memory"] == agent["memory"]


def test_each_belief_is_posted_once_and_accounts_are_right_as_often_as_the_config_says():
    news = {"wire": 0.9, "daily": 0.6}
    config = MarketConfig(predictions=40, tickers=[], news=news, visibility=1.0, traders={})
    world = World(dataclasses.replace(config, news_rate=0.5, feed_length=500))
    world.join("ann")
    truths, views = {}, {}
    for _ in range(120):
        truths |= {market.id: market.truth for market in world.books.predictions.values()}
        for post in feed(world, "ann"):
            views[post["id"]] = (post["userId"], post["about"], post["stance"])
        world.tick()
    assert len(views) == len(set(views.values()))
    for account, right in news.items():
        hits = [truths[about] == view for user, about, view in views.values() if user == account]
        assert len(hits) > 300
        assert sum(hits) / len(hits) == pytest.approx(right, abs=0.06)


def test_only_insiders_get_the_truth_as_a_tip():
    world = World(MarketConfig(traders={}), 1, tip_chance=1.0)
    world.join("ivy", "insider")
    world.join("ann")
    for _ in range(30):
        tips = {note["about"]: note["stance"] for note in world.state("ivy")["agent"]["memory"]}
        books = world.books
        true = {market.id: market.truth for market in books.predictions.values()}
        true |= {ticker: perp.trend for ticker, perp in books.perpetuals.items()}
        assert tips == true
        assert world.state("ann")["agent"]["memory"] == []
        world.tick()


def test_decisions_without_money_settle_at_the_next_tick_with_zero(make_world, ticked):
    world = make_world()
    receipts = [
        world.decide("ann", NO_OP),
        say(world, "ann"),
        follow(world, "ann", "wire"),
        follow(world, "ann", "wire"),
        say(world, "ann", "x" * 281),
        follow(world, "ann", "ann"),
        follow(world, "ann", "wyre"),
    ]
    assert [receipt.accepted for receipt in receipts] == [True] * 3 + [False] * 4
    assert [receipt.problem for receipt in receipts[3:]] == [
        "you follow wire already",
        "content has 281 characters; at most 280 are allowed",
        "you cannot follow yourself",
        "no user 'wyre'; did you mean wire?",
    ]
    settled = ticked(world)
    for receipt in receipts:
        result = settled[receipt.ticket]
        assert (result.pnl, result.investment, result.hold_time_minutes) == (0.0, 0.0, 0.0)
        assert result.invalid is not receipt.accepted


def test_a_name_can_be_taken_once(make_world):
    world = make_world()
    for name in ("ann", "wire", ""):
        with pytest.raises(ValueError, match="is taken"):
            world.join(name)
    with pytest.raises(ValueError, match="no agent 'eve' has joined"):
        world.state("eve")


def test_follows_and_win_rates_end_with_the_episode(make_world, ticked):
    """Else rewards move over the episodes without any learning."""
    world = make_world(seed=3)

    def bet(agent):
        market = world.state(agent)["markets"]["predictions"][0]["id"]
        return world.decide(agent, buy(market, "YES", 20))

    def episode():
        first = follow(world, "ann", "wire")
        bets = [bet("ann")]
        settled = ticked(world, 5)
        bets.append(bet("ann"))
        assert world.state("ann")["agent"]["following"] == ["wire"]
        settled |= ticked(world, 15)
        assert world.state("ann")["agent"]["following"] == []
        won = [settled[receipt.ticket].pnl > 0 for receipt in bets]
        return first.accepted, won, [settled[receipt.ticket].win_rate for receipt in bets]

    for _ in range(4):
        accepted, (first, second), rates = episode()
        assert accepted
        assert rates == [float(first), (first + second) / 2]
