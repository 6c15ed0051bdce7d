"""A few decisions of a continuous run: prompt, answer, action, reward and score."""

from __future__ import annotations

import json

from rlforge.tracking.formatting import number
from rlforge.tracking.report.curves import section
from rlforge.tracking.report.data import Row, RunData
from rlforge.tracking.report.games import end_of
from rlforge.tracking.report.html import Html, el

#: Of the frames, by kind.
_COLOURS = {"best": "win", "worst": "draw", "refused": "loss"}


def sample_decisions(run: RunData) -> Html | None:
    """Those of ``decisions.json``: of the newest window, then of the first."""
    first, newest = (run.decisions.get(when) or {} for when in ("first", "newest"))
    parts = [_window("Newest window", newest)]
    if first.get("window") != newest.get("window"):
        parts.append(_window("First window", first))
    return section(
        "Decisions",
        "The model's decisions with the highest and the lowest reward, and answers that named no "
        "action or one that was not accepted (red frame). rlforge windows decisions RUN WINDOW "
        "shows all of them.",
        *parts,
    )


def _window(title: str, chosen: Row) -> Html | None:
    if not chosen:
        return None
    return el(
        "article",
        el("h3", f"{title}, {chosen['window']}"),
        el("ol", *(_decision(one) for one in chosen["decisions"]), cls="turns"),
        cls="card",
    )


def _decision(one: Row) -> Html:
    worth = f"reward {number(one['reward'], 3)}"
    if one["profit"] is not None:
        worth += f", profit {one['profit']:+.2f}"
    if one["score"] is not None:
        worth += f", score {number(one['score'], 3)}"
    why = one["problem"] or one["explanation"]
    refused = one["kind"] == "refused"
    return el(
        "li",
        el(
            "header",
            el("span", one["agent"]),
            el("span", one["version"]),
            el("span", one["kind"], cls="badge bad" if refused else "badge"),
        ),
        el("pre", end_of(one["observation"]), tabindex=0, aria_label="prompt", cls="from-end"),
        el("pre", end_of(one["answer"]), tabindex=0, aria_label="answer", cls="answer"),
        el(
            "footer",
            el("code", json.dumps(one["action"], ensure_ascii=False)),
            f" {worth}",
            f": {why}" if why else None,
        ),
        cls=f"turn {_COLOURS[one['kind']]}{' wrong' * refused}",
    )
