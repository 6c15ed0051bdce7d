"""Compact text: fixed length, closed vocabulary, and answers that the market accepts."""

import dataclasses
import random

import pytest
from tests.factories import market_state

from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.market.actions import ActionError, buy, open_position
from rlforge.continuous.market.compact import Compact, compact_vocabulary, is_compact
from rlforge.continuous.market.game import env_ids, load_market
from rlforge.continuous.market.traders import Crowd
from rlforge.continuous.market.world import World


def states(config, seed, ticks, agents=1):
    """States of agents that answer with random legal words, together with scripted traders."""
    world, compact, rng = World(config, seed), Compact(config), random.Random(seed)
    names = [f"agent-{number}" for number in range(agents)]
    for name in names:
        world.join(name)
    crowd = Crowd(world, seed)
    for _ in range(ticks):
        for name in names:
            state = world.state(name)
            focus = compact.focus(state)
            legal = compact.actions(state, focus)
            word = rng.choice(legal)
            yield compact, state, focus, legal
            receipt = world.decide(name, compact.action(word, state, focus))
            assert receipt.accepted, (word, receipt.problem)
        crowd.act()
        world.tick()


# The one of prose has no perpetual futures.
@pytest.mark.parametrize(
    "preset", [name for name in env_ids() if name not in ("market-crowd", "market-prose")]
)
def test_random_play_stays_in_the_vocabulary_and_every_listed_answer_is_accepted(preset):
    words, answers = map(set, compact_vocabulary())
    lengths, seen, used = set(), set(), set()
    for seed in range(4):
        for compact, state, focus, legal in states(load_market(preset), seed, 48):
            text = compact.text(state, focus).split(" ")
            lengths.add(len(text))
            seen |= set(text)
            used |= set(legal)
    assert len(lengths) == 1
    assert seen <= words
    assert used == answers
    assert {"bet", "perp", "a_yes", "a_up", "mine_yes", "mine_short", "gain_down"} <= seen


def test_agents_that_talk_have_more_words_after_those_of_the_others():
    config = dataclasses.replace(load_market("market"), social=True)
    plain, social = compact_vocabulary(), compact_vocabulary(social=True)
    assert [more[: len(less)] for more, less in zip(social, plain, strict=True)] == [*plain]
    lengths, seen, used = set(), set(), set()
    for compact, state, focus, legal in states(config, 0, 48, agents=8):
        text = compact.text(state, focus).split(" ")
        lengths.add(len(text))
        seen |= set(text)
        used |= set(legal)
    assert lengths == {14}
    assert seen <= set(social[0])
    assert set(social[0]) - set(plain[0]) <= seen
    assert used == set(social[1])


BET = {"id": "market-1", "yesPrice": 0.62, "change": 0.0, "minutesLeft": 40.0}
FUTURE = {"ticker": "ACME", "markPrice": 102.0, "indexPrice": 100.0, "change": -0.02}


def view(change=0.0, **seen):
    return market_state([BET | {"change": change}], [FUTURE], **seen)


SHARES = {
    "id": "position-3",
    "kind": "shares",
    "marketId": "market-1",
    "outcome": "NO",
    "shares": 31.5,
    "value": 12.0,
    "pnl": -3.0,
}
COMPACT = Compact(MarketConfig())


def test_the_words_agree_with_the_state():
    posts = [
        {"userId": "wire", "about": "market-1", "stance": "NO"},
        {"userId": "wire", "about": "market-1", "stance": "YES"},
        {"userId": "rumor", "about": "market-1", "stance": "NO"},
        {"userId": "daily", "about": "ACME", "stance": "UP"},
        {"userId": "ann", "about": None, "stance": None},
    ]
    state = view(0.04, feed=posts, positions=[SHARES], balance=300.0)
    assert COMPACT.text(state, "market-1") == (
        "market bet p6 move_up left2 a_yes b_none c_no mine_no gain_down cash1 go"
    )
    assert COMPACT.text(state, "ACME") == (
        "market perp prem_up move_down open a_none b_up c_none mine_none gain_flat cash1 go"
    )


def test_answers_map_to_actions():
    post = {"userId": "daily", "about": "market-1", "stance": "NO"}
    state = view(feed=[post], positions=[SHARES])
    assert COMPACT.actions(state, "market-1") == (
        *("[hold]", "[yes1]", "[yes2]", "[yes3]", "[no1]", "[no2]", "[no3]"),
        *("[sell]", "[follow]"),
    )
    for word, action in (
        ("[hold]", {"type": "NO_OP"}),
        ("yes2", buy("market-1", "YES", 50.0)),
        ("[sell]", {"type": "SELL_SHARES", "positionId": "position-3", "shares": 31.5}),
        ("[follow]", {"type": "FOLLOW_USER", "userId": "daily"}),
    ):
        assert COMPACT.action(word, state, "market-1") == action
    short = open_position("ACME", "short", 60.0, 3.0)
    assert COMPACT.action("[short1]", state, "ACME") == short


def test_only_possible_answers_are_listed():
    assert COMPACT.actions(view(balance=30.0), "market-1") == ("[hold]", "[yes1]", "[no1]")
    # The margin could be paid, the fee could not.
    assert COMPACT.actions(view(balance=20.0), "ACME") == ("[hold]",)
    followed = view(feed=[{"userId": "wire", "about": "ACME", "stance": "UP"}], following=["wire"])
    assert "[follow]" not in COMPACT.actions(followed, "ACME")
    with pytest.raises(ActionError, match=r"\[sell\] is not possible now; there are \[hold\]"):
        COMPACT.action("[sell]", view(), "market-1")


def says(number, user, way, about="market-1"):
    content = f"I say {way} on {about}."
    return {"id": f"post-{number}", "userId": user, "content": content, "about": None}


def test_what_followed_agents_say_is_a_word_and_can_be_repeated():
    compact = Compact(MarketConfig(social=True))
    posts = [
        says(1, "ann", "YES"),
        says(2, "bea", "NO"),
        says(3, "ann", "NO"),  # the newest of each counts
        says(4, "cleo", "YES"),
        says(5, "dora", "YES"),
        says(6, "cleo", "UP", "ACME"),
    ]

    def read(following, seen=posts):
        state = view(feed=[{"stance": None, **post} for post in seen], following=following)
        words = compact.text(state, "market-1").split()
        told = [word for word in words if word.startswith(("talk_", "said_"))]
        return state, told

    assert read(["ann", "bea", "cleo"])[1] == ["talk_new", "said_no"]
    # As many say one as the other: the newest decides.
    assert read(["ann", "cleo"])[1] == ["talk_new", "said_yes"]
    assert read(["ann", "bea", "cleo", "dora"])[1] == ["talk_known", "said_yes"]
    assert read(["wire"])[1] == ["talk_new", "said_none"]
    state, told = read([], [])
    assert told == ["talk_none", "said_none"]
    assert compact.actions(state, "market-1")[-2:] == ("[say_yes]", "[say_no]")
    state, _ = read(["ann"])
    assert compact.actions(state, "market-1")[-2:] == ("[agree]", "[join]")
    assert compact.action("[join]", state, "market-1") == {"type": "FOLLOW_USER", "userId": "dora"}
    said = compact.action("[say_up]", state, "ACME")
    assert said == {"type": "CREATE_POST", "content": "I say UP on ACME."}
    repeated = compact.action("[agree]", state, "market-1")
    wanted = {"type": "CREATE_COMMENT", "postId": "post-5", "content": "I say YES on market-1."}
    assert repeated == wanted
    assert "said_" not in COMPACT.text(state, "market-1")
    assert "[join]" not in COMPACT.actions(state, "market-1")


def focuses(state):
    chosen = []
    for tick in range(8):
        state["agent"]["minute"] = tick * 5.0
        chosen.append(COMPACT.focus(state))
    return chosen


def test_the_focus_is_on_the_news_and_every_fourth_tick_on_a_holding():
    post = {"userId": "wire", "about": "ACME", "stance": "UP"}
    assert focuses(view(feed=[post])) == ["ACME"] * 8
    assert focuses(view(feed=[post], positions=[SHARES])) == [*["ACME"] * 3, "market-1"] * 2
    assert focuses(view()) == ["market-1", "ACME"] * 4
    more = [
        {"userId": "wire", "about": "market-1", "stance": "NO"},
        {"userId": "rumor", "about": "market-1", "stance": "YES"},
    ]
    assert focuses(view(feed=[post, *more])) == ["market-1"] * 8  # which has two reports
    assert set(focuses(view(feed=[post, more[0]]))) == {"market-1", "ACME"}


def test_words_are_distinguished_from_json():
    assert all(is_compact(text) for text in ("[hold]", "hold", " [yes1] "))
    assert not any(is_compact(text) for text in ('{"type": "NO_OP"}', "I hold", ""))
