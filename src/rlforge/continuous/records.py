"""The files of a continuous run that reports and ``rlforge monitor`` read: a line per window, a
line per update, a summary.

The journal is the authority: when a run is resumed, the files are written again from it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlforge.config.schema import TrackerConfig
from rlforge.continuous.journal import Entry
from rlforge.continuous.learner import Trained
from rlforge.continuous.performance import POLICY, by_player
from rlforge.system.checkpoint import step_number
from rlforge.system.values import json_ready
from rlforge.tracking.files import (
    JsonlFile,
    RunPaths,
    read_json,
    write_json,
    write_jsonl,
)
from rlforge.tracking.formatting import number, percent
from rlforge.tracking.progress import Progress, RunStatus
from rlforge.tracking.sinks import make_sinks
from rlforge.trajectories.records import Decision, TrainingWindow
from rlforge.trajectories.reward import DecisionReward, mean_parts

Row = dict[str, Any]


def window_row(
    work: Entry,
    window: TrainingWindow,
    gathered: Mapping[str, int],
    trained: Trained | None,
    deployed: bool | None,
    *,
    reason: str,
    rewards: Mapping[str, float],
    scorer: Mapping[str, float],
    minutes: float,
) -> Row:
    """One line of ``windows.jsonl`` (see docs/run_directory.md).

    gathered: figures of its ``WindowBatch``. training_loss, kl_divergence and deployment_success
    are None where nothing was trained.
    """
    metrics = trained.metrics if trained else {}
    players = by_player(window.decisions)
    policy = players.get(POLICY)
    row: Row = json_ready(
        {
            "window_id": window.id,
            "agents": len(window.agents),
            "trajectories": len(window.decisions),
            "avg_reward": window.avg_reward,
            "high_score_count": gathered["selected"],
            "training_loss": metrics.get("loss"),
            "kl_divergence": metrics.get("kl"),
            "deployment_success": deployed,
            "duration_minutes": minutes,
            "window": work.number,
            "reason": reason,
            "version": trained.checkpoint.uid if trained else None,
            "win_rate": policy.win_rate if policy else None,
            "policy_reward": policy.avg_reward if policy else None,
            "avg_pnl": policy.avg_pnl if policy else None,
            "players": {name: one.to_json() for name, one in players.items()},
            **{f"batch/{name}": n for name, n in gathered.items() if name != "selected"},
            **{f"reward/{name}": number for name, number in rewards.items()},
            **{f"scorer/{name}": number for name, number in scorer.items()},
        }
    )
    return row


def reward_figures(reward: DecisionReward, decisions: Sequence[Decision]) -> Mapping[str, float]:
    """Means of the reward's terms, and of the agents' discounted returns."""
    parts = mean_parts([reward(d.result) for d in decisions if d.result is not None])
    returns = reward.returns(decisions)
    if returns:
        parts["return"] = math.fsum(returns.values()) / len(returns)
    return {name.removeprefix("reward_"): number for name, number in parts.items()}


class Records:
    """Writes ``windows.jsonl``, ``metrics.jsonl``, ``progress.json`` and ``summary.json``.

    about: goes into the summary. total: windows of the whole run; None: no end. The means go to
    the sinks of ``tracker`` as well, one step per window.
    """

    def __init__(
        self,
        paths: RunPaths,
        tracker: TrackerConfig,
        name: str,
        total: int | None,
        about: Mapping[str, Any],
    ) -> None:
        self._paths, self._name, self._total, self._about = paths, name, total, dict(about)
        self._rows: list[Row] = []
        self._updates: list[Row] = []
        before = read_json(paths.summary)
        self._began = time.time() - float(before.get("wall_time_s", 0.0))
        self._sinks = make_sinks(tracker, paths, name)
        self._window_file: JsonlFile
        self._update_file: JsonlFile

    def take_up(self, entries: Sequence[Entry], say: Callable[[str], None]) -> None:
        """Write the files again from the windows that are done; called once, before ``add``.

        say: prints one line per window.
        """
        self._say = say
        done = [entry.facts["done"] for entry in entries if entry.phase == "done"]
        self._rows = [facts["window"] for facts in done]
        self._updates = []
        for facts in done:
            if facts["update"] is not None:
                self._updates.append(self._update_row(facts["window"], facts["update"]))
        write_jsonl(self._paths.windows, self._rows)
        write_jsonl(self._paths.metrics, self._updates)
        self._window_file = JsonlFile(self._paths.windows)
        self._update_file = JsonlFile(self._paths.metrics)
        for sink in self._sinks:
            sink.rewind(len(self._rows))
        self._publish("running", {})

    def add(self, row: Row, update: Mapping[str, float] | None) -> None:
        """Record a finished window, and the metrics of its update if there was one."""
        self._rows.append(row)
        self._window_file.append(row)
        self._say(window_line(row, self._total))
        scalars = _scalars("window", row)
        for player, figures in row["players"].items():
            scalars |= _scalars(f"window/{player}", figures)
        if update is not None:
            self._updates.append(self._update_row(row, update))
            self._update_file.append(self._updates[-1])
            scalars |= {f"learner/{key}": number for key, number in update.items()}
        finite = {key: number for key, number in scalars.items() if math.isfinite(number)}
        for sink in self._sinks:
            sink.write(row["window"], finite)
        self._publish("running", {})

    @property
    def policy_reward(self) -> float:
        """Mean reward of the policy's decisions in the last window; nan where there are none."""
        mean = self._rows[-1]["policy_reward"] if self._rows else None
        return math.nan if mean is None else float(mean)

    def close(self, status: RunStatus, extra: Mapping[str, Any]) -> None:
        """Write the last summary, with ``extra`` in it."""
        self._publish(status, extra)
        self._window_file.close()
        self._update_file.close()
        for sink in self._sinks:
            sink.close()

    def _update_row(self, row: Row, update: Mapping[str, float]) -> Row:
        step = step_number(str(row["version"]))
        return {"step": step, "window_id": row["window_id"], **update}

    def _publish(self, status: RunStatus, extra: Mapping[str, Any]) -> None:
        elapsed = time.time() - self._began
        last = self._updates[-1] if self._updates else {}
        write_json(
            self._paths.summary,
            {
                **self._about,
                "run_name": self._name,
                "status": status,
                "windows": len(self._rows),
                "total_windows": self._total,
                "updates": len(self._updates),
                "total_updates": self._total,
                "wall_time_s": elapsed,
                "samples_seen": last.get("samples_seen", 0),
                **extra,
            },
        )
        progress = Progress(
            run_name=self._name,
            status=status,
            updated_at=time.time(),
            elapsed_s=elapsed,
            update=len(self._rows),
            total_updates=self._total or len(self._rows),
            samples=int(last.get("samples_seen", 0)),
            learner={key: value for key, value in last.items() if _is_number(value)},
        )
        write_json(self._paths.progress, progress.to_json())


def window_line(row: Row, total: int | None) -> str:
    """One window in one line of text."""
    count = f"{row['window']}/{total}" if total else str(row["window"])
    parts = [f"window {count} {row['window_id']}: {row['trajectories']} decisions"]
    if row["policy_reward"] is not None:
        parts.append(
            f"policy reward {row['policy_reward']:.3f}, wins {percent(row['win_rate'], 1)}"
        )
    if row["version"] is not None:
        trained = int(row["batch/trained_decisions"])
        parts.append(f"{row['version']} trained on {trained}, loss {number(row['training_loss'])}")
        parts.append("deployed" if row["deployment_success"] else f"refused: {row['reason']}")
    else:
        parts.append(f"nothing trained: {row['reason']}")
    return ", ".join(parts)


def _scalars(prefix: str, figures: Mapping[str, Any]) -> dict[str, float]:
    return {f"{prefix}/{name}": float(x) for name, x in figures.items() if _is_number(x)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
