"""Builders of test values: games, evaluations, updates, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rlforge.config.schema import TrackerConfig
from rlforge.tracking.metrics import wilson_interval
from rlforge.tracking.tracker import Tracker
from rlforge.types import (
    Completion,
    EnvSpec,
    EvalResult,
    GameRecord,
    GameSpec,
    PolicyRef,
    Seat,
    Turn,
    UpdateResult,
)


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def game(
    game_id: str = "g1",
    *,
    env_id: str = "SimpleTak-v0-train",
    rewards: Mapping[int, float] | None = None,
    trained: tuple[int, ...] = (0, 1),
    purpose: str = "train",
    focus: int | None = None,
    version: int = 3,
    turns: int = 2,
    text: str = "[4]",
    observation: str = "board",
    legal: bool = True,
    well_formed: bool = True,
    finish_reason: str = "stop",
    error: str | None = None,
    invalid_by: int | None = None,
) -> GameRecord:
    seats = tuple(
        Seat(
            player_id=player,
            policy=PolicyRef(
                uid=f"step-{version}", kind="checkpoint", path_or_name="adapter", version=version
            ),
            trained=player in trained,
            prompt_template="default",
            action_extraction="bracket",
        )
        for player in (0, 1)
    )
    answer = Completion(
        text=text,
        prompt_token_ids=(5, 6, 7),
        token_ids=(9, 2),
        logprobs=(-0.5, -0.1),
        finish_reason=finish_reason,
        policy_uid=f"step-{version}",
        policy_version=version,
    )
    return GameRecord(
        spec=GameSpec(
            game_id=game_id,
            env=EnvSpec(id=env_id),
            seed=11,
            purpose=purpose,
            seats=seats,
            focus=focus,
        ),
        turns=tuple(
            Turn(
                player_id=index % 2,
                observation=observation,
                completion=answer,
                action=text,
                well_formed=well_formed,
                legal=legal,
                info={"legal_moves": 3},
            )
            for index in range(turns)
        ),
        rewards={} if error else dict(rewards or {0: 1.0, 1: -1.0}),
        end_reason="error" if error else "invalid_move" if invalid_by is not None else "finished",
        invalid_by=invalid_by,
        error=error,
        duration_s=0.25,
    )


def evaluation(
    step: int,
    wins: int,
    *,
    env_id: str = "SimpleTak-v0-train",
    opponent: str = "random_legal",
    games: int = 100,
) -> EvalResult:
    draws = (games - wins) // 2
    losses = games - wins - draws
    return EvalResult(
        step=step,
        env_id=env_id,
        opponent=opponent,
        policy_uid=f"step-{step}",
        games=games,
        wins=wins,
        draws=draws,
        losses=losses,
        win_rate=wins / games,
        ci95=wilson_interval(wins, games),
        mean_reward=(wins - losses) / games,
        invalid_rate=0.03,
        failed=1,
    )


def update(version: int, **metrics: float) -> UpdateResult:
    numbers = {
        "loss": 0.5 / version,
        "lr": 0.003,
        "grad_norm": 0.4,
        "entropy": 1.2,
        "kl": 0.01,
        "reward_mean": 0.25,
        "lag_mean": 0.5,
        "logprob_gap_mean": 2e-6,
        "logprob_gap_max": 3e-4,
        "tokens": 700.0,
        "tokens_per_s": 21_000.0,
    }
    return UpdateResult(version=version, samples=64, tokens=700, metrics={**numbers, **metrics})


SHARES = {"engine_share": 0.61, "learner_share": 0.42, "idle_share": 0.06, "restarts": 0.0}


def snapshot(step: int, most_uids: int = 100) -> dict[str, Any]:
    """A pool whose newest policy is ``step-STEP``, as ``ModelPool.snapshot`` gives it."""
    uids = ["base", *(f"step-{version}" for version in range(1, step + 1))][:most_uids]
    entries = [
        {
            "uid": uid,
            "kind": "checkpoint",
            "version": index,
            "mu": 25.0 + index,
            "sigma": 4.0,
            "active": index > step - 3,
            "games": 10 * index,
            "rated_games": 10 * index,
        }
        for index, uid in enumerate(uids)
    ]
    matches: dict[str, dict[str, int]] = {uid: {} for uid in uids}
    for index, (first, second) in enumerate(pairwise(uids)):
        matches[first][second] = matches[second][first] = 7 + index
    return {
        "mode": "mirror",
        "current": uids[-1],
        "entries": entries,
        "matches": matches,
        "ladder": [
            {"uids": [uid], "elo": 10.0 * index, "low": -40.0, "high": 400.0, "games": 7 + index}
            for index, uid in reversed(list(enumerate(uids)))
        ][:48],
        "exploration": {"envs": {"SimpleTak-v0-train": {"coverage": 0.375}}, "opponents": {}},
    }


@pytest.fixture
def make() -> Any:
    """The builders above, as attributes: ``make.game(...)``."""

    class Make:
        game = staticmethod(game)
        evaluation = staticmethod(evaluation)
        update = staticmethod(update)
        snapshot = staticmethod(snapshot)
        shares = SHARES

    return Make


@pytest.fixture
def new_tracker(clock: Clock) -> Callable[..., Tracker]:
    """A tracker on the fake clock, without sinks unless they are given."""

    def build(run_dir: Path, sinks: Any = (), **config: Any) -> Tracker:
        return Tracker(
            run_dir,
            TrackerConfig(**config),
            "demo",
            10,
            sinks,
            about={"seed": 7, "versions": {"torch": "2.13.0"}},
            clock=clock,
        )

    return build


@pytest.fixture
def full_run(tmp_path: Path, clock: Clock, make: Any, new_tracker: Any) -> Path:
    """A run directory of six updates with evaluations, ratings and games on disk."""
    from rlforge.tracking.game_files import GameWriter

    run_dir = tmp_path / "runs" / "demo" / "one"
    tracker = new_tracker(run_dir)
    (run_dir / "config.yaml").write_text("name: demo\nseed: 7\n")
    (run_dir / "command.txt").write_text("rlforge train +experiment=demo\n")
    with_games = GameWriter(run_dir)
    tracker.log_pool(make.snapshot(0))
    tracker.add_eval(make.evaluation(0, 33))
    tracker.add_eval(make.evaluation(0, 50, opponent="base"))
    for step in range(1, 7):
        clock.now += 10.0
        games = [make.game(f"train-{step}-{index}", version=step) for index in range(5)]
        tracker.add_games(games)
        with_games.add(games)
        tracker.log_inference(
            "engine-0", {"queued": 3, "running": 128, "tok_s": 2200.0, "tokens": 4400}
        )
        tracker.log_learner(make.update(step), make.shares)
        tracker.log_pool(make.snapshot(step))
    failed = make.game("failed", error="GameError: SimpleTak-v0-train raised IndexError")
    tracker.add_games([failed])
    ended = [
        make.game("won", purpose="eval", focus=0, trained=(), version=6),
        make.game("lost", purpose="eval", focus=1, trained=(), version=6),
    ]
    with_games.add([failed, *ended])
    with_games.close()
    tracker.add_eval(make.evaluation(6, 72))
    tracker.add_eval(make.evaluation(6, 66, opponent="base"))
    tracker.close({"status": "done", "seed": 7, "objective": 0.72})
    return run_dir
