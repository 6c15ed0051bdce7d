"""The tracker of continuous training as an actor."""

from __future__ import annotations

from pathlib import Path

from rlforge.actors.process import begin
from rlforge.actors.state import about
from rlforge.config.continuous import ContinuousConfig
from rlforge.system.garbage import freeze_gc
from rlforge.tracking.window_tracker import WindowTracker


class WindowTrackerActor(WindowTracker):
    """Counts windows, in a process of its own."""

    def __init__(self, config: ContinuousConfig, run_dir: str) -> None:
        begin("tracker", run_dir)
        name, total = config.name, config.total_updates or 0
        super().__init__(Path(run_dir), config.tracker, name, total, about=about(config))
        freeze_gc()
