"""The tracker of continuous training as an actor."""

from __future__ import annotations

from pathlib import Path

from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.tracker import WindowTracker
from rlforge.run.actors.process import begin
from rlforge.run.actors.state import about
from rlforge.system.garbage import freeze_gc


class WindowTrackerActor(WindowTracker):
    """Counts windows, in a process of its own."""

    def __init__(self, config: ContinuousConfig, run_dir: str) -> None:
        begin("tracker", run_dir)
        name, total = config.name, config.total_updates or 0
        super().__init__(Path(run_dir), config.tracker, name, total, about=about(config))
        freeze_gc()
