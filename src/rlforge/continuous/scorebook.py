"""Scores on disk: one file per window, whole or not there."""

from __future__ import annotations

from pathlib import Path

from rlforge.errors import RunError
from rlforge.ruler.base import Scores
from rlforge.tracking.files import read_json, write_json
from rlforge.trajectories.records import TrainingWindow


class Scorebook:
    """``scores/WINDOW.json`` below the run directory, without colons in the name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, window: TrainingWindow, scores: Scores) -> None:
        """Keep what the scorer said about the decisions of ``window``, in their order."""
        self._folder.mkdir(parents=True, exist_ok=True)
        rows = zip(window.trajectories, scores.values, scores.explanations, strict=True)
        content = {
            "window_id": window.id,
            "metrics": dict(scores.metrics),
            "scores": {
                decision.id: {"score": score, "explanation": explanation}
                for decision, score, explanation in rows
            },
        }
        write_json(self._path(window.id), content)

    def read(self, window: TrainingWindow) -> Scores:
        """Scores of the decisions of ``window``; those that came later have none.

        Raises RunError when the window was never scored.
        """
        path = self._path(window.id)
        content = read_json(path)
        if not content:
            raise RunError(f"{path} is missing: restore it to go on with this window")
        found = [content["scores"].get(decision.id, {}) for decision in window.trajectories]
        return Scores(
            values=tuple(entry.get("score") for entry in found),
            explanations=tuple(entry.get("explanation", "") for entry in found),
            metrics=content["metrics"],
        )

    def _path(self, window_id: str) -> Path:
        return self._folder / f"{window_id.replace(':', '.')}.json"
