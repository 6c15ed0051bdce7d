"""The form of actions: what is accepted, and what an error says."""

import json
import re

import pytest

from rlforge.continuous.market.actions import FIELDS, ActionError, check_form

GOOD = {
    "BUY_SHARES": {"marketId": "market-1", "outcome": "YES", "amount": 5},
    "SELL_SHARES": {"positionId": "position-1", "shares": 0.5},
    "OPEN_POSITION": {"ticker": "ACME", "side": "short", "size": 10, "leverage": 2},
    "CLOSE_POSITION": {"positionId": "position-1"},
    "CREATE_POST": {"content": "hello"},
    "CREATE_COMMENT": {"postId": "post-1", "content": "hello"},
    "FOLLOW_USER": {"userId": "wire"},
    "NO_OP": {},
}


def test_all_eight_documented_actions_are_known():
    assert list(GOOD) == list(FIELDS)


@pytest.mark.parametrize("kind", GOOD)
def test_an_action_with_its_fields_passes_also_with_a_confidence_and_a_note(kind):
    action = {"type": kind, **GOOD[kind]}
    assert check_form(action) == action
    action |= {"confidence": 0, "note": "the wire is often wrong"}
    assert check_form(action) == action
    for name, wrong in (("confidence", 1.5), ("confidence", True), ("note", ""), ("note", 3)):
        with pytest.raises(ActionError, match=rf"{kind}\.{name} must be a "):
            check_form({**action, name: wrong})


def test_half_an_emoji_becomes_text_that_can_be_written_down():
    post = json.loads(r'{"type": "CREATE_POST", "content": "up \ud83d and \ud83d\ude00"}')
    assert check_form(post)["content"] == "up ? and \N{GRINNING FACE}"


@pytest.mark.parametrize("kind", GOOD)
def test_a_missing_and_an_unknown_field_are_named(kind):
    for name in GOOD[kind]:
        fields = {key: value for key, value in GOOD[kind].items() if key != name}
        with pytest.raises(ActionError, match=f"{kind} wants .*{name} is missing"):
            check_form({"type": kind, **fields})
    with pytest.raises(ActionError, match=f"{kind} wants .*'extra' is unknown"):
        check_form({"type": kind, **GOOD[kind], "extra": 1})


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (None, "an action is a JSON object"),
        ([1], "an action is a JSON object"),
        ({}, "type None is unknown"),
        ({"type": ["NO_OP"]}, "is unknown"),
        ({"type": "BUY_SHARE"}, "did you mean BUY_SHARES"),
        (
            {"type": "BUY_SHARES", **GOOD["BUY_SHARES"], "outcome": "MAYBE"},
            "YES or NO, not 'MAYBE'",
        ),
        ({"type": "FOLLOW_USER", "userId": " "}, "must be a text"),
        ({"type": "CLOSE_POSITION", "positionId": 3}, "must be a text, not 3"),
        ({"type": "CREATE_POST", "content": ["x" * 200]}, "must be a text, not .{41}$"),
    ],
)
def test_the_error_says_what_is_wrong(action, problem):
    with pytest.raises(ActionError, match=problem):
        check_form(action)


@pytest.mark.parametrize(
    "amount", [0, -1, True, "5", None, float("nan"), float("inf"), 10**13, [1]]
)
def test_amounts_are_numbers_above_zero(amount):
    with pytest.raises(ActionError, match=re.escape("BUY_SHARES.amount must be a number above 0")):
        check_form({"type": "BUY_SHARES", **GOOD["BUY_SHARES"], "amount": amount})
