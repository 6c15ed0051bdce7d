"""docs/config.md says what the code says."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from rlforge.config.docs import field_comments, keys, render
from rlforge.config.keys import all_keys, all_roots
from rlforge.config.overrides import MAPPINGS
from rlforge.config.plugins import FINAL_REWARDS, SAMPLING_REWARDS, STEP_REWARDS
from rlforge.config.rules import Group

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def page():
    return render()


@pytest.fixture(scope="module")
def listed():
    return keys()


def test_config_page_is_up_to_date(page):
    assert (ROOT / "docs" / "config.md").read_text() == page, (
        "docs/config.md is stale: run `python -m rlforge.config.docs docs/config.md`"
    )


def test_keys_lists_every_key_of_every_command_with_its_meaning(page, listed):
    names = {key.name for key in listed}
    leaves = {
        key
        for root in all_roots()
        for key in all_keys(root)
        if not any(other.startswith(f"{key}.") for other in all_keys(root))
    }
    assert leaves - names == set()
    assert {key for key in leaves if key in all_keys() and f"`{key}`" not in page} == set()
    assert {"env.train[].id", "algorithm.clip_low"} <= names
    assert {"prompts[].user", "prompts[].roles"} <= names
    assert [key.name for key in listed if not key.meaning] == []


def test_every_reward_transform_is_on_the_page(page):
    for kind in (FINAL_REWARDS, STEP_REWARDS, SAMPLING_REWARDS):
        table = page.split(f"### `{kind.key}`")[1].split("##")[0]
        assert [name for name in kind.names() if f"| `{name}` |" not in table] == []


def test_every_field_has_a_comment():
    groups = Group.__subclasses__()
    for cls in groups:
        groups += cls.__subclasses__()
    # Not those that tests and examples define.
    shipped = [cls for cls in groups if cls.__module__.startswith("rlforge.")]
    for cls in [cls for cls in shipped if hasattr(sys.modules[cls.__module__], cls.__name__)]:
        own = {field.name for field in dataclasses.fields(cls)} & set(cls.__annotations__)
        described = set(field_comments(cls))
        nested = {
            field.name
            for field in dataclasses.fields(cls)
            if field.name in own
            and isinstance(field.default_factory, type)
            and dataclasses.is_dataclass(field.default_factory)
        }
        bases = filter(dataclasses.is_dataclass, cls.__bases__)
        redeclared = {field.name for base in bases for field in dataclasses.fields(base)}
        assert own - described - nested - redeclared == set(), cls.__name__


def test_the_rows_of_every_table_have_the_same_number_of_cells(page):
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(cells) == 1, table


def test_entries_of_every_mapping_can_be_added_on_the_command_line(listed):
    mappings = {key.name for key in listed if key.type.startswith("mapping")}
    mappings -= {"market"}  # of supervised runs; a group of others
    assert {name for name in mappings if "[]" not in name} == set(MAPPINGS)
