"""``ladder.html``: the card of a ladder, in one file that opens offline."""

from __future__ import annotations

from pathlib import Path

from rlforge.lab.ladder import view
from rlforge.lab.ladder.record import LadderCard
from rlforge.show.report.page import render, write_page


def write_ladder_page(target: Path, card: LadderCard) -> Path:
    named = [
        (f"{view.letter(place)} {one.uid}", one.elo, one.low, one.high)
        for place, one in enumerate(card.ratings)
    ]
    page = render("lab/ladder/page.html.jinja", card=card, view=view, strengths=named)
    return write_page(target, page)
