"""The tracker of continuous training: it counts windows instead of games."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.errors import counted
from rlforge.record.files import JsonlFile, read_json, read_jsonl, write_jsonl
from rlforge.record.progress import HISTORY, Progress, TraderRow, WindowRow
from rlforge.record.tracker import Tracker
from rlforge.run.actors.process import begin
from rlforge.run.actors.state import about
from rlforge.show.formatting import number, percent
from rlforge.statistics import significant
from rlforge.system.checkpoint import step_number
from rlforge.system.garbage import freeze_gc
from rlforge.system.values import json_ready

Row = Mapping[str, Any]


class WindowTracker(Tracker):
    """Writes windows.jsonl and the files of ``Tracker``; a step of the sinks is a window.

    A line of metrics.jsonl is an update. total_updates: windows of the whole run; 0: no end.
    """

    def log_window(self, row: Row, update: Row | None) -> None:
        """A finished window: lines of windows.jsonl and, where it was trained on, metrics.jsonl.

        row: its line (docs/run_directory.md). update: the metrics of its update.
        """
        self._window_file.append(row)
        self._count(row, update)
        self._window = window_line(row, self._total_updates or None)
        scalars = _numbers("window", row)
        for player, figures in row["players"].items():
            scalars |= _numbers(f"window/{player}", figures)
        if update is not None:
            self._files[self.paths.metrics].append(_update_row(row, update))
            scalars |= _numbers("learner", update)
        since = {**self._metrics.drain(), **self._since_update.drain()}
        self._sinks.write(row["window"], {**since, **scalars})
        self._sinks.mark()
        self._pace.update(self._elapsed(), self._counts())
        self._write_summary({})
        self._publish()

    def log_activity(self, doing: str, window_id: str = "") -> None:
        """Set the phase of the run, and its window if it has one."""
        self._active = window_id
        super().log_activity(f"{doing} {window_id}" if window_id else doing)

    def log_decisions(self, window_id: str, count: int) -> None:
        self._decisions[window_id] += count
        self.tick()

    def resume_windows(self, done: Sequence[tuple[Row, Row | None]]) -> None:
        """Write the files again from the windows that are done."""
        write_jsonl(self.paths.windows, (row for row, _ in done))
        updates = (_update_row(row, update) for row, update in done if update is not None)
        write_jsonl(self.paths.metrics, updates)
        # The open file was replaced, so new lines in it would be lost.
        self._files[self.paths.metrics].close()
        self._files[self.paths.metrics] = JsonlFile(self.paths.metrics)
        self._window_file.close()
        # A process that died may have written a window that was not done.
        self._sinks.rewind(len(done))
        self._restore_counters()
        self._write_summary({})
        self._publish()

    def progress(self) -> Progress:
        """Everything the display shows; ``window``: the one that was finished last."""
        known = super().progress()
        made = counted(self._decisions[self._active], "decision")
        doing = known.activity and known.activity + (f", {made}" if self._active else "")
        players = self._windows[-1]["players"] if self._windows else {}
        return dataclasses.replace(
            known,
            unit="window",
            window=self._window,
            windows=tuple(WindowRow.of(row) for row in self._windows),
            traders=tuple(
                TraderRow(name=name, **json_ready(figures)) for name, figures in players.items()
            ),
            activity=doing,
        )

    def tick(self) -> None:
        # Nothing is logged here, because the sinks get one step per window.
        if self._clock() >= self._next_publish:
            self._publish()

    def close(self, summary: Mapping[str, Any]) -> list[str]:
        self._window_file.close()
        return super().close(summary)

    def _read_files(self) -> float:
        self._window_file = JsonlFile(self.paths.windows)
        self._updates, self._window = 0, ""
        self._windows: deque[Row] = deque(maxlen=HISTORY)
        self._decisions: Counter[str] = Counter()
        self._active = ""
        for row in read_jsonl(self.paths.windows):
            self._count(row, None)
        for update in read_jsonl(self.paths.metrics):
            self._count_update(update)
        return float(read_json(self.paths.summary).get("wall_time_s", 0.0))

    def _count(self, row: Row, update: Row | None) -> None:
        self._update = row["window"]
        self._windows.append(row)
        # The display counts the decisions only of windows under way.
        for window_id in [one for one in self._decisions if one <= row["window_id"]]:
            del self._decisions[window_id]
        if update is not None:
            self._count_update(update)

    def _count_update(self, update: Row) -> None:
        self._updates += 1
        self._samples = int(update["samples_seen"])
        self._learner = _finite(update)

    def _write_summary(self, extra: Mapping[str, Any]) -> None:
        reached = {
            "windows": self._update,
            "total_windows": self._total_updates or None,
            "updates": self._updates,
            "total_updates": self._total_updates or None,
        }
        super()._write_summary({**reached, **extra})


class WindowTrackerActor(WindowTracker):
    def __init__(self, config: ContinuousConfig, run_dir: str) -> None:
        begin("tracker", run_dir)
        name, total = config.name, config.total_updates or 0
        super().__init__(Path(run_dir), config.tracker, name, total, about=about(config))
        freeze_gc()


def window_line(row: Row, total: int | None) -> str:
    count = f"{row['window']}/{total}" if total else str(row["window"])
    parts = [f"window {count} {row['window_id']}: {row['trajectories']} decisions"]
    if row["policy_reward"] is not None:
        reward = f"policy reward {row['policy_reward']:.3f}"
        if row["reward_difference"] is not None:
            low, high = row["reward_difference_low"], row["reward_difference_high"]
            difference = f"{row['reward_difference']:+.3f} to the control"
            chance = "" if significant((low, high)) else ": may be chance"
            reward += f" ({difference}, {low:+.3f} to {high:+.3f}{chance})"
        parts.append(f"{reward}, wins {percent(row['win_rate'], 1)}")
    if row["version"] is not None:
        trained = int(row["batch/trained_decisions"])
        parts.append(f"{row['version']} trained on {trained}, loss {number(row['training_loss'])}")
        refused = "refused: " if row["deployment_success"] is False else ""
        parts.append(f"{refused}{row['reason']}" if row["reason"] else "deployed")
    else:
        parts.append(f"nothing trained: {row['reason']}")
    return ", ".join(parts)


def _update_row(row: Row, update: Row) -> dict[str, Any]:
    step = step_number(str(row["version"]))
    return {"step": step, "window_id": row["window_id"], **update}


def _numbers(prefix: str, figures: Row) -> dict[str, float]:
    """The finite numbers below ``prefix``; those of users' code have their own namespace."""
    return {
        name if name.startswith("custom/") else f"{prefix}/{name}": number
        for name, number in _finite(figures).items()
    }


def _finite(figures: Row) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
