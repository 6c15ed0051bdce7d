"""docs/unstable_baselines.md points only at what is there."""

import importlib
import re
from functools import reduce
from pathlib import Path

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


def exists(name: str) -> bool:
    """Whether there is a module, class, function or method called ``name``."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            reduce(getattr, parts[cut:], found)
        except AttributeError:
            return False
        return True
    return False


def test_every_row_has_a_place():
    assert len(ROWS) > 100
    assert [row for row in ROWS if len(row) != 3 or "`" not in row[1]] == []


def test_places_and_keys_in_remarks_exist():
    assert [name for name in PLACES if name.startswith("rlforge.") and not exists(name)] == []
    assert {name for name in PLACES if not name.startswith("rlforge.")} <= set(all_keys())
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
