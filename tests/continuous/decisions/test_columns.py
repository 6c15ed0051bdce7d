"""Decisions are read back exactly from their rows, which have camelCase names."""

import math
import tempfile
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlforge.continuous.decisions.columns import decision_row, outcome_row
from rlforge.continuous.decisions.records import Decision, Metadata, Result
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.errors import RlforgeError
from rlforge.types import Completion

whole = st.integers(0, 2**31 - 1)
real = st.floats(allow_nan=False, allow_infinity=False)
amount = st.floats(0, allow_infinity=False)
text = st.text(st.characters(codec="utf-8"), max_size=12)
name = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | real | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(text, json_values, max_size=4)
results = st.builds(
    Result, pnl=real, investment=amount, hold_time_minutes=amount, win_rate=st.floats(0, 1)
)
completions = st.builds(
    Completion,
    text=text,
    prompt_token_ids=st.lists(whole, max_size=3).map(tuple),
    token_ids=st.lists(whole, max_size=3).map(tuple),
    logprobs=st.lists(real, max_size=3).map(tuple),
    finish_reason=st.sampled_from(["stop", "length", "context", "scripted", "error"]),
    policy_uid=text,
    policy_version=whole,
)
decisions = st.builds(
    Decision,
    id=name,
    agent_id=name,
    window_id=st.just("2024-11-13-10:00"),
    state=objects,
    action=objects,
    timestamp=st.floats(0, 1e11),
    metadata=st.builds(Metadata, provider=text, reasoning=text, confidence=real),
    reward=st.none() | real,
    next_state=st.none() | objects,
    result=st.none() | results,
    observation=text,
    completion=st.none() | completions,
)


def there_and_back(decision):
    with tempfile.TemporaryDirectory() as folder, TrajectoryStore(folder) as store:
        store.append([decision])
        (back,) = store.decisions()
    return back


@settings(max_examples=50)
@given(decisions)
def test_any_decision_comes_back_as_it_was(decision):
    assert there_and_back(decision) == decision


def test_rows_have_the_documented_column_names(make):
    row = decision_row(make.whole(1))
    documented = "id agentId windowId state action reward nextState timestamp metadata result"
    assert " ".join(row) == f"{documented} agentStats observation completion complete"
    assert set(row["metadata"]) == {"provider", "reasoning", "confidence"}
    assert row["result"] == {"pnl": 1.5, "investment": 5.0, "holdTimeMinutes": 12.0}
    assert row["agentStats"] == {"winRate": 0.6}
    assert row["complete"] is True
    assert decision_row(make(1))["complete"] is False
    outcome = outcome_row(make.outcome(make(1)))
    assert list(outcome) == ["id", "reward", "nextState", "result", "agentStats"]


def test_numpy_scalars_mappings_and_lone_surrogates_become_what_can_be_written(make):
    odd = {"n": np.float32(0.5), "k": np.int64(3), "inner": MappingProxyType({"a": (1, 2)})}
    assert there_and_back(make(1, state=odd)).state == {"n": 0.5, "k": 3, "inner": {"a": [1, 2]}}
    said = Metadata(provider="m", reasoning="a\ud800b")
    assert there_and_back(make(1, metadata=said)).metadata.reasoning == "a?b"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": ""}, "decision '' of agent 'agent-0': both need a name"),
        ({"agent_id": ""}, "both need a name"),
        ({"window_id": "now"}, "window id 'now' is not a time"),
        ({"timestamp": math.nan}, "timestamp nan is not a time"),
        ({"reward": math.nan}, "decision 'agent-0-000001': reward is nan"),
        ({"state": {"x": math.inf}}, "decision 'agent-0-000001': state is not JSON"),
        ({"action": {"x": object()}}, "action is not JSON: a object cannot be stored"),
        ({"next_state": {1j: 2}}, "next_state is not JSON"),
        ({"metadata": Metadata(provider="m", confidence=math.nan)}, "metadata.confidence is nan"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused_by_field(make, changes, message):
    with pytest.raises(RlforgeError) as caught:
        decision_row(make(1, **changes))
    assert message in str(caught.value)
