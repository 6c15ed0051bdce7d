"""docs/memory.md says what the planner says."""

import importlib.util
import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / ".ci" / "memory_page.py"


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("memory_page", SCRIPT)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_page_is_up_to_date(page):
    assert page.PAGE.read_text().partition(page.MARK)[2] == page.render(), (
        "docs/memory.md is stale: run `python .ci/memory_page.py`"
    )


def test_larger_cards_never_train_on_less(page):
    def number(cell: str) -> int:
        return int(re.sub(r"[^0-9]", "", cell) or 0)

    alone = page.render().split("## One card for learner and engine")[0]
    for section in alone.split("### ")[1:]:
        rows = re.findall(r"^\| \d+ GB \|(.+?)\|(.+?)\|(.+?)\|", section, re.MULTILINE)
        for column in zip(*rows, strict=True):
            lengths = [number(cell) for cell in column]
            assert lengths == sorted(lengths)
