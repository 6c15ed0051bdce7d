"""docs/memory.md says what the planner says."""

import re
from pathlib import Path

from rlforge.preflight.memory.page import CARDS, MODELS, render

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "memory.md").read_text() == render(), (
        "docs/memory.md is stale: run `python -m rlforge.preflight.memory.page docs/memory.md`"
    )


def test_every_model_has_a_row_for_every_card():
    page = render()
    assert len(re.findall(r"^\| \d+ GB \|", page, re.MULTILINE)) == 2 * len(MODELS) * len(CARDS)
    assert all(f"### {name}\n" in page for name in MODELS)


def test_larger_cards_never_train_on_less():
    def number(cell: str) -> int:
        return int(re.sub(r"[^0-9]", "", cell) or 0)

    alone = render().split("## One card for learner and engine")[0]
    for section in alone.split("### ")[1:]:
        rows = re.findall(r"^\| \d+ GB \|(.+?)\|(.+?)\|(.+?)\|", section, re.MULTILINE)
        for column in zip(*rows, strict=True):
            lengths = [number(cell) for cell in column]
            assert lengths == sorted(lengths)
