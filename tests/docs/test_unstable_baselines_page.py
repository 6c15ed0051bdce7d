"""docs/unstable_baselines.md points only at what is there."""

import importlib
import re
from pathlib import Path

import pytest

from rlforge.config.keys import all_keys
from rlforge.config.plugins import EXTRACTIONS, PROMPTS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "unstable_baselines.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| UnstableBaselines |")
]
PLACES = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[1])})
KEYS_ASIDE = {key for row in ROWS for key in re.findall(r"`([a-z_]+\.[a-z_]+)(?:: \w+)?`", row[2])}


def resolve(name: str) -> object:
    """The module, class, function or method called ``name``."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"no module in {name}")


def test_every_row_has_a_place():
    assert len(ROWS) > 100
    assert [row for row in ROWS if len(row) != 3 or "`" not in row[1]] == []


@pytest.mark.parametrize("place", PLACES)
def test_the_place_exists(place):
    if place.startswith("rlforge."):
        resolve(place)
    else:
        assert place in all_keys()


def test_keys_in_remarks_exist():
    keys = KEYS_ASIDE - {"pool.json", "completion.text", "rlforge.training.controller"}
    assert keys
    assert keys <= set(all_keys())


def test_templates_and_extractions_exist():
    text = PAGE.split("## Prompt templates")[1]
    templates, extractions = text.split("Action\nextractions:")
    for name in re.findall(r"`([\w-]+)`", templates.split(":", 1)[1]):
        assert PROMPTS.problem(name) is None
    for name in re.findall(r"`([\w-]+)`", extractions.split(".")[0]):
        assert EXTRACTIONS.problem(name) is None
