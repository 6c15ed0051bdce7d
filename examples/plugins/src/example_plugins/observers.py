"""An observer of every run of games: it says when a version has passed a mark."""

from typing import Any

from rlforge.record.results import ExactResult
from rlforge.run.observers import Observer
from rlforge.types import EvalResult

MARK = 0.9
"""The share of games to win."""


class Milestones(Observer):
    """A line for each opponent that a version beats in ``MARK`` of the games for the first time."""

    def __init__(self, context: Any) -> None:
        self._note, self._passed = context.note, set[str]()

    def evaluated(self, result: EvalResult | ExactResult) -> None:
        if isinstance(result, EvalResult) and result.win_rate >= MARK:
            if result.opponent not in self._passed:
                self._note(
                    f"step-{result.step} wins {result.win_rate:.0%} against {result.opponent}"
                )
            self._passed.add(result.opponent)

    def state_dict(self) -> dict[str, Any]:
        return {"passed": sorted(self._passed)}

    def load_state_dict(self, state: Any) -> None:
        self._passed = set(state["passed"])
