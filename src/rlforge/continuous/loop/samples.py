"""A few decisions of a run for its report: ``decisions.json``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlforge.continuous.decisions.records import Decision, TrainingWindow
from rlforge.continuous.loop.performance import is_ours
from rlforge.continuous.report import decision_row
from rlforge.continuous.ruler.base import DecisionScores
from rlforge.record.files import RunPaths, read_json, write_json

EACH = 3
"""How many decisions are kept of each kind."""


def keep_samples(
    run_dir: Path, window: TrainingWindow, scores: DecisionScores | None, *, first: bool
) -> None:
    """Keep decisions of the newest window, and of the first one with any if ``first``."""
    chosen = samples(window.decisions, scores)
    if chosen:
        path, newest = RunPaths(root=run_dir).decisions, {"window": window.id, "decisions": chosen}
        known = read_json(path)
        write_json(path, {"first": known.get("first", newest) if first else None, "newest": newest})


def samples(decisions: Sequence[Decision], scores: DecisionScores | None) -> list[dict[str, Any]]:
    """The ``EACH`` decisions with the highest and lowest reward, and the first refused ones."""
    places = [place for place, one in enumerate(decisions) if is_ours(one)]
    refused = [place for place in places if decisions[place].refused]
    judged = [
        place
        for place in places
        if decisions[place].reward is not None and not decisions[place].refused
    ]
    judged.sort(key=lambda place: decisions[place].reward or 0.0)
    # Where there are few decisions, none may be both best and worst.
    worst = judged[: min(EACH, len(judged) // 2)]
    best = judged[::-1][: min(EACH, math.ceil(len(judged) / 2))]
    return [
        decision_row(
            decisions[place],
            kind,
            None if scores is None else scores.values[place],
            "" if scores is None else scores.explanations[place],
        )
        for kind, chosen in (("best", best), ("worst", worst), ("refused", refused[:EACH]))
        for place in chosen
    ]
