"""Which window comes next, and what it holds."""

from __future__ import annotations

from rlforge.trajectories.records import TrainingWindow
from rlforge.trajectories.windows import Windows


class Calendar:
    """The windows of a store in the order in which they are trained on.

    skips: the clock goes on without us, as a clock on the wall does: windows that passed while
    nobody lived in them are left out.
    """

    def __init__(self, windows: Windows, *, skips: bool) -> None:
        self._windows, self._skips = windows, skips

    def first(self, now: float) -> str:
        """The window that training begins with at ``now``."""
        return self._windows.grid.id_of(now)

    def after(self, window_id: str, now: float) -> str:
        """The one that follows, which has decisions or is still to come."""
        following = self._windows.grid.after(window_id)
        if not self._skips or self.due(following) > now:
            return following
        filled = [one for one in self._windows.ids() if self.due(one) >= self.due(following)]
        # Ids are in order of time, and so is the list.
        return filled[0] if filled else max(following, self.first(now), key=self.due)

    def due(self, window_id: str) -> float:
        """When it is over, its time of grace included."""
        return self._windows.due_at(window_id)

    def window(self, window_id: str) -> TrainingWindow:
        """What is trained on after it."""
        return self._windows.batch(window_id)
