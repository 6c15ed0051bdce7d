"""Values are read back from arrow tables and JSON exactly as they were written."""

import json
import math
from collections.abc import Mapping
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlforge import types
from rlforge.system.values import Codec, from_json, json_ready, to_json
from rlforge.types import GameRecord, PolicyRef, value

BASE = PolicyRef(uid="base", kind="checkpoint")
FORM = types.Form(template="chat", extraction="raw")

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
    types.Completion,
    text=text,
    prompt_token_ids=st.lists(whole, max_size=3).map(tuple),
    token_ids=st.lists(whole, max_size=3).map(tuple),
    logprobs=st.lists(real, max_size=3).map(tuple),
    finish_reason=st.sampled_from(["stop", "length", "context", "scripted", "error"]),
    policy_uid=text,
    policy_version=whole,
)
turns = st.builds(
    types.Turn,
    player_id=whole,
    observation=text,
    completion=completions,
    action=text,
    well_formed=st.booleans(),
    legal=st.booleans(),
    info=infos,
)
forms = st.builds(types.Form, template=text, extraction=text)
seats = st.builds(types.Seat, player_id=whole, policy=policies, trained=st.booleans(), form=forms)
envs = st.builds(
    types.EnvSpec,
    id=text,
    source=st.sampled_from(["textarena", "openspiel"]),
    num_players=whole,
    timeout_s=real,
    weight=real,
    form=forms,
    forms=st.lists(st.builds(types.PolicyForm, name=text, form=forms), max_size=2).map(tuple),
)
specs = st.builds(
    types.GameSpec,
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
    end_reason=st.sampled_from(get_args(types.EndReason)),
    invalid_by=st.none() | whole,
    cut_by=st.none() | whole,
    error=st.none() | text,
    duration_s=real,
)


@settings(max_examples=30)
@given(records)
def test_a_game_record_comes_back_from_arrow_and_json_as_it_was(record):
    games = Codec(GameRecord)
    column = pa.array([games.encode(record)], type=games.arrow_type)
    assert games.decode(column.to_pylist()[0]) == record
    assert from_json(GameRecord, json.loads(json.dumps(to_json(record)))) == record


def test_the_form_of_a_seat_is_stored_as_two_columns_as_files_always_had_it():
    seat, seats = types.Seat(player_id=0, policy=BASE, trained=True, form=FORM), Codec(types.Seat)
    row = {name: seats.encode(seat)[name] for name in ("prompt_template", "action_extraction")}
    assert row == {"prompt_template": "chat", "action_extraction": "raw"}
    env = types.EnvSpec(id="Nim-v0", form=FORM, api_form=types.Form(template="short"))
    assert to_json(env)["api_prompt_template"] == "short"
    before = {"id": "Nim-v0", "prompt_template": "chat", "action_extraction": "raw"}
    assert from_json(types.EnvSpec, before) == types.EnvSpec(id="Nim-v0", form=FORM)


def test_names_in_camel_case():
    policies = Codec(PolicyRef, camel_case=True)
    row = policies.encode(PolicyRef(uid="a", kind="checkpoint"))
    assert list(row) == ["uid", "kind", "pathOrName", "version", "name"]
    assert [field.name for field in policies.arrow_type] == list(row)
    assert policies.decode(row) == PolicyRef(uid="a", kind="checkpoint")


def test_a_class_with_one_field():
    @value
    class Single:
        sizes: tuple[int, ...]

    assert Codec(Single).encode(Single(sizes=(1, 2))) == {"sizes": (1, 2)}
    assert Codec(Single).decode({"sizes": [1, 2]}) == Single(sizes=(1, 2))
    row = Codec(PolicyRef).encode(PolicyRef(uid="a\ud800b", kind="api"))
    assert row["uid"] == "a?b"


def test_a_field_that_older_data_lacks_or_holds_as_null_takes_its_default():
    policies = Codec(PolicyRef)
    assert policies.decode({"uid": "base", "kind": "checkpoint"}) == BASE
    assert policies.decode({"uid": "base", "kind": "checkpoint", "version": None}) == BASE
    with pytest.raises(KeyError, match="kind"):
        policies.decode({"uid": "base"})


def test_a_field_that_cannot_be_stored_is_refused():
    def holding(hint: Any) -> type:
        @value
        class Odd:
            things: hint

        Odd.__annotations__["things"] = hint
        return Odd

    for hint in (set[int], Mapping[float, int], int | str, Any):
        with pytest.raises(TypeError, match="cannot be stored"):
            _ = Codec(holding(hint)).arrow_type


def test_json_ready_writes_strict_json():
    ready = json_ready({"nan": math.nan, "inf": -math.inf, 3: {"x": {1}}, "none": None})
    written = {"nan": None, "inf": None, "3": {"x": [1]}, "none": None}
    assert json.loads(json.dumps(ready, allow_nan=False)) == written
