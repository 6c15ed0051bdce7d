"""Values are read back from arrow tables and JSON exactly as they were written."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rlforge import types
from rlforge.record.progress import Progress, WinRateRow
from rlforge.record.results import PoolSnapshot
from rlforge.samples import Sample
from rlforge.system.hardware import GpuLoad
from rlforge.system.values import Codec, from_json, json_ready, to_json
from rlforge.types import GameRecord, PolicyRef, value

BASE = PolicyRef(uid="base", kind="checkpoint")
FORM = types.Form(template="chat", extraction="raw")

whole, text = st.integers(0, 2**31 - 1), st.text(st.characters(codec="utf-8"), max_size=12)
PLAIN = {str: text, bool: st.booleans(), int: whole, float: st.floats(allow_nan=False)}
ANYTHING = st.none() | st.booleans() | whole | text | st.lists(whole)


def contents(hint: Any) -> st.SearchStrategy[Any]:
    """All that a field of this type may hold."""
    if hint in PLAIN:
        return PLAIN[hint]
    if dataclasses.is_dataclass(hint):
        fields = get_type_hints(hint)
        return st.builds(hint, **{name: contents(inner) for name, inner in fields.items()})
    first, *others = get_args(hint)
    if get_origin(hint) is Literal:
        return st.sampled_from([first, *others])
    if get_origin(hint) is tuple:
        return st.lists(contents(first), max_size=2).map(tuple)
    if get_origin(hint) is list:
        return st.lists(contents(first), max_size=3)
    if get_origin(hint) is Mapping:
        finite = st.floats(allow_nan=False, allow_infinity=False)
        known = {Any: ANYTHING, float: finite, float | None: st.none() | finite}
        items = known[others[0]] if others[0] in known else contents(others[0])
        return st.dictionaries(contents(first), items, max_size=2)
    return st.none() | contents(first)


@pytest.mark.parametrize("cls", [GameRecord, Sample, Progress, PoolSnapshot])
@settings(max_examples=30, phases=[Phase.generate])
@given(data=st.data())
def test_a_game_record_comes_back_from_arrow_and_json_as_it_was(cls, data):
    content, rows = data.draw(contents(cls)), Codec(cls)
    column = pa.array([rows.encode(content)], type=rows.arrow_type)
    assert rows.decode(column.to_pylist()[0]) == content
    assert from_json(cls, json.loads(json.dumps(to_json(content)))) == content


def test_the_form_of_a_seat_is_stored_as_two_columns_as_files_always_had_it():
    seat, seats = types.Seat(player_id=0, policy=BASE, trained=True, form=FORM), Codec(types.Seat)
    row = {name: seats.encode(seat)[name] for name in ("prompt_template", "action_extraction")}
    assert row == {"prompt_template": "chat", "action_extraction": "raw"}
    env = types.EnvSpec(id="Nim-v0", form=FORM, api_form=types.Form(template="short"))
    assert to_json(env)["api_prompt_template"] == "short"
    before = {"id": "Nim-v0", "prompt_template": "chat", "action_extraction": "raw"}
    assert from_json(types.EnvSpec, before) == types.EnvSpec(id="Nim-v0", form=FORM)


def test_names_in_camel_case_and_text_that_files_cannot_hold():
    policies = Codec(PolicyRef, camel_case=True)
    assert policies.encode(PolicyRef(uid="a\ud800b", kind="api"))["uid"] == "a?b"
    row = policies.encode(PolicyRef(uid="a", kind="checkpoint"))
    assert list(row) == ["uid", "kind", "pathOrName", "version", "name"]
    assert [field.name for field in policies.arrow_type] == list(row)
    assert policies.decode(row) == PolicyRef(uid="a", kind="checkpoint")


def test_a_field_that_older_data_lacks_or_holds_as_null_takes_its_default():
    policies = Codec(PolicyRef)
    assert policies.decode({"uid": "base", "kind": "checkpoint"}) == BASE
    assert policies.decode({"uid": "base", "kind": "checkpoint", "version": None}) == BASE
    with pytest.raises(ValueError, match=r"^required field missing @ \$\.kind$"):
        policies.decode({"uid": "base"})
    with pytest.raises(ValueError, match=r"missing @ \$\[1\]\.uid; .* int @ \$\[1\]\.version"):
        from_json(list[PolicyRef], [to_json(BASE), {"kind": "api", "version": "x"}])


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


@pytest.mark.parametrize(
    ("cls", "field", "wrong"),
    [
        (PolicyRef, "uid", 3),
        (PolicyRef, "kind", ["hf"]),
        (PolicyRef, "version", "3"),
        (GpuLoad, "used", "much"),
        (WinRateRow, "history", [0.5, "half"]),
        (WinRateRow, "ci95", 0.5),
        (Progress, "learner", {"loss": "low"}),
        (Progress, "win_rates", "none"),
        (PoolSnapshot, "results", {"base": {"step-1": "2:1"}}),
    ],
)
def test_json_of_another_type_is_refused_with_its_field(cls, field, wrong):
    with pytest.raises(ValueError, match=rf"@ \$\.{field}"):
        from_json(cls, {field: wrong})
