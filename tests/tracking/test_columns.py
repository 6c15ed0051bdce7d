"""Any value of rlforge.types survives the way through arrow, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlforge.tracking.columns import arrow_type, from_plain, to_plain
from rlforge.types import Completion, EnvSpec, GameRecord, GameSpec, PolicyRef, Seat, Turn, value

whole = st.integers(0, 2**31 - 1)
real = st.floats(allow_nan=False)
text = st.text(st.characters(codec="utf-8"), max_size=12)
infos = st.dictionaries(
    text, st.none() | st.booleans() | whole | text | st.lists(whole), max_size=2
)

policies = st.builds(
    PolicyRef,
    uid=text,
    kind=st.sampled_from(["checkpoint", "scripted", "api"]),
    path_or_name=st.none() | text,
    version=whole,
)
completions = st.builds(
    Completion,
    text=text,
    prompt_token_ids=st.lists(whole, max_size=3).map(tuple),
    token_ids=st.lists(whole, max_size=3).map(tuple),
    logprobs=st.lists(real, max_size=3).map(tuple),
    finish_reason=st.sampled_from(["stop", "length", "scripted", "error"]),
    policy_uid=text,
    policy_version=whole,
)
turns = st.builds(
    Turn,
    player_id=whole,
    observation=text,
    completion=completions,
    action=text,
    well_formed=st.booleans(),
    legal=st.booleans(),
    info=infos,
)
seats = st.builds(
    Seat,
    player_id=whole,
    policy=policies,
    trained=st.booleans(),
    prompt_template=text,
    action_extraction=text,
)
envs = st.builds(
    EnvSpec,
    id=text,
    source=st.sampled_from(["textarena", "openspiel"]),
    num_players=whole,
    timeout_s=real,
    weight=real,
)
specs = st.builds(
    GameSpec,
    game_id=text,
    env=envs,
    seed=st.integers(-(2**63), 2**63 - 1),
    purpose=st.sampled_from(["train", "eval"]),
    seats=st.lists(seats, max_size=3).map(tuple),
    group_id=st.none() | text,
    group_size=whole,
    focus=st.none() | whole,
)
records = st.builds(
    GameRecord,
    spec=specs,
    turns=st.lists(turns, max_size=3).map(tuple),
    rewards=st.dictionaries(whole, real, max_size=3),
    end_reason=st.sampled_from(["finished", "invalid_move", "turn_limit", "timeout", "error"]),
    invalid_by=st.none() | whole,
    error=st.none() | text,
    duration_s=real,
)


@settings(max_examples=60)
@given(records)
def test_a_game_record_comes_back_as_it_was(record: GameRecord) -> None:
    column = pa.array([to_plain(record, GameRecord)], type=arrow_type(GameRecord))
    assert from_plain(column.to_pylist()[0], GameRecord) == record


def test_lone_surrogates_are_replaced_so_that_the_text_can_be_written() -> None:
    assert to_plain("a\ud800b", str) == "a?b"


def test_a_field_that_an_older_file_lacks_takes_its_default() -> None:
    assert from_plain({"uid": "base", "kind": "checkpoint"}, PolicyRef) == PolicyRef(
        uid="base", kind="checkpoint"
    )


def test_a_field_without_a_column_form_is_refused() -> None:
    @value
    class Odd:
        things: set[int]

    for form in (Odd, set[int], Mapping[float, int], int | str, Any):
        with pytest.raises(TypeError, match="no arrow column"):
            arrow_type(form)
