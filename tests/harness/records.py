"""A clock and trackers for tests, and a run whose numbers are chosen."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests import factories
from tests.factories import Clock

from rlforge.config.roots import read_any
from rlforge.config.schema import TrackerConfig
from rlforge.record.files import (
    RunPaths,
    create_run,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
)
from rlforge.record.game_files import GameWriter
from rlforge.record.judge import Judge, judged
from rlforge.record.progress import Progress
from rlforge.record.tracker import Tracker
from rlforge.show.view import progress_view
from rlforge.system.values import from_json, to_json
from rlforge.types import GameRecord

NewTracker = Callable[..., Tracker]


def tracker_of(
    run_dir: Path,
    clock: Clock,
    *sinks: Any,
    judge: Callable[[], Judge] | None = None,
    **config: Any,
) -> Tracker:
    """The tracker of a run of ten updates, with no sinks but those that are given."""
    settings = TrackerConfig(**config)
    given = {"about": {"seed": 7, "versions": {"torch": "2.13.0"}}, "clock": clock, "judge": judge}
    return Tracker(run_dir, settings, "demo", 10, sinks, **given)


#: A line of metrics.jsonl of a run that learns.
HEALTHY = {
    "games": 400,
    "failed_games": 0,
    "samples": 384,
    "kl": 0.04,
    "moved": 0.01,
    "lag_mean": 1.0,
    "grad_norm": 0.7,
    "lr": 1e-3,
    "no_advantage_share": 0.1,
    "reward_mean": 0.1,
    "reward_spread": 2.0,
    "entropy": 1.2,
    "collection-TicTacToe-v0-train/turn_limit_rate": 0.02,
    "collection-TicTacToe-v0-train/format_success": 0.95,
}


def write_signals(
    run_dir: Path,
    updates: int = 12,
    config: str = "kind: games\nname: demo\nenv: {train: [{id: TicTacToe-v0-train}]}\n",
    wins: Sequence[int] = (),
    **figures: float,
) -> RunPaths:
    """A run that is done, of healthy updates but for these figures (``games_X``: of its games).

    wins: of 100 games against ``base``, in evaluations after 0, 4, 8 … updates.
    """
    paths = create_run(run_dir)
    paths.config.write_text(config)
    env = "collection-TicTacToe-v0-train"
    own = {name.replace("games_", f"{env}/", 1): figure for name, figure in figures.items()}
    write_jsonl(paths.metrics, [{"step": n + 1, **HEALTHY, **own} for n in range(updates)])
    about = {"env_id": "TicTacToe-v0-train", "opponent": "base"}
    evals = [factories.evaluation(4 * n, won, **about) for n, won in enumerate(wins)]
    write_jsonl(paths.evals, map(to_json, evals))
    found = judged(read_any(run_dir).games, read_jsonl(paths.metrics), evals)
    ended = {"run_name": "demo", "status": "done", "updates": updates, "total_updates": updates}
    write_json(paths.summary, {**ended, "wall_time_s": 60.0, "signals": found})
    return paths


def write_games(run_dir: Path, *games: GameRecord) -> None:
    writer = GameWriter(run_dir)
    writer.add(games)
    writer.close()


def running(**changes: Any) -> Progress:
    """Progress of a run of three updates after its first second."""
    fields = {"run_name": "demo", "status": "running", "updated_at": 0.0, "elapsed_s": 1.0}
    return Progress(**{**fields, "update": 0, "total_updates": 3, **changes})


def progress_of(run: Path, **changes: Any) -> Progress:
    return from_json(Progress, {**read_json(run / "progress.json"), **changes})


def draw(progress: Progress, width: int, now: float | None = None, **options: Any) -> list[str]:
    """The lines of a frame."""
    console = Console(record=True, width=width, file=io.StringIO(), **options)
    console.print(progress_view(progress, now))
    return console.export_text().rstrip("\n").split("\n")


def one_line(lines: list[str]) -> str:
    """The text of a frame, with single spaces and without its borders."""
    return " ".join("".join(lines).replace("│", " ").split())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def new_tracker(tmp_path: Path, clock: Clock) -> NewTracker:
    """Makes trackers of ``tmp_path`` on the clock: ``new_tracker(*sinks, **config)``."""
    return lambda *sinks, **config: tracker_of(tmp_path, clock, *sinks, **config)


@pytest.fixture
def tracker(new_tracker: NewTracker) -> Tracker:
    return new_tracker()


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six updates with evaluations, ratings and games; tests only read it."""
    run_dir, clock = tmp_path_factory.mktemp("full") / "one", Clock()
    tracker = tracker_of(run_dir, clock)
    (run_dir / "config.yaml").write_text("name: demo\nseed: 7\n")
    (run_dir / "command.txt").write_text("rlforge train +experiment=demo\n")
    tracker.log_pool(factories.pool_snapshot(0))
    tracker.add_eval(factories.evaluation(0, 33))
    tracker.add_eval(factories.evaluation(0, 50, opponent="base"))
    games = []
    for step in range(1, 7):
        clock.now += 10.0
        made = [factories.equal_turns(f"train-{step}-{index}", version=step) for index in range(5)]
        tracker.add_games(made)
        games += made
        tracker.log_inference("engine-0", factories.LOAD)
        tracker.log_learner(factories.update(step), factories.SHARES)
        tracker.log_pool(factories.pool_snapshot(step))
    failed = factories.equal_turns(
        "failed", error="GameError: SimpleTak-v0-train raised IndexError"
    )
    tracker.add_games([failed])
    evaluated = {"purpose": "eval", "trained": (), "version": 6}
    won = factories.equal_turns("won", focus=0, **evaluated)
    lost = factories.equal_turns("lost", focus=1, **evaluated)
    write_games(run_dir, *games, failed, won, lost)
    tracker.add_eval(factories.evaluation(6, 72))
    tracker.add_eval(factories.evaluation(6, 66, opponent="base"))
    tracker.close({"status": "done", "seed": 7, "objective": 0.72})
    return run_dir


@pytest.fixture
def own_run(full_run: Path, tmp_path: Path) -> Path:
    """A copy of ``full_run`` to change."""
    return Path(shutil.copytree(full_run, tmp_path / "one"))
