"""How commands end: on terminals of any encoding, on full disks, and at Ctrl-C."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlforge.cli import main
from rlforge.config.compose import compose, to_yaml
from rlforge.config.schema import TrackerConfig
from rlforge.tracking.game_files import GameWriter
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

RLFORGE = [sys.executable, "-m", "rlforge"]
RUN = Path("run")


@pytest.fixture
def run_dir() -> Path:
    """A finished run whose texts have characters that no 8-bit encoding has."""
    tracker = Tracker(RUN, TrackerConfig(), "größe – 🎮", 2, about={"seed": 0})
    config = compose(["+experiment=tictactoe_mirror"]).config
    (RUN / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    for version in (1, 2):
        tracker.log_learner(
            UpdateResult(version=version, samples=8, tokens=8, metrics={"loss": 0.5}),
            {"engine_share": 0.4, "learner_share": 0.5, "idle_share": 0.1},
        )
    for step, wins in ((0, 1), (2, 3)):
        tracker.add_eval(
            EvalResult(
                step=step,
                env_id="TicTacToe-v0-train",
                opponent="random_legal",
                policy_uid=f"step-{step}",
                games=4,
                wins=wins,
                draws=1,
                losses=3 - wins,
                win_rate=wins / 4,
                ci95=(0.3, 0.95),
                mean_reward=0.75,
                invalid_rate=0.0,
            )
        )
    tracker.close({"status": "done"})
    policy = PolicyRef(uid="step-2", kind="checkpoint", path_or_name="adapter", version=2)
    answer = Completion(
        text="ich ziehe → [4] … 🎮",
        prompt_token_ids=(5,),
        token_ids=(9,),
        logprobs=(-0.5,),
        finish_reason="stop",
        policy_uid="step-2",
        policy_version=2,
    )
    games = GameWriter(RUN)
    games.add(
        [
            GameRecord(
                spec=GameSpec(
                    game_id="g1",
                    env=EnvSpec(id="TicTacToe-v0-train"),
                    seed=1,
                    purpose="train",
                    seats=tuple(
                        Seat(
                            player_id=player,
                            policy=policy,
                            trained=True,
                            prompt_template="board",
                            action_extraction="bracket",
                        )
                        for player in (0, 1)
                    ),
                ),
                turns=(
                    Turn(
                        player_id=0,
                        observation="┌─┐ 🎮",
                        completion=answer,
                        action="[4]",
                        well_formed=True,
                        legal=True,
                    ),
                ),
                rewards={0: 1.0, 1: -1.0},
                end_reason="finished",
                duration_s=0.5,
            )
        ]
    )
    games.close()
    return RUN


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    "command",
    [
        ("train", "--help"),
        ("models",),
        ("graph", "+experiment=simpletak_mirror"),
        ("monitor", str(RUN)),
        ("monitor", str(RUN), "--once"),
        ("replay", str(RUN)),
        ("eval", str(RUN), "--checkpoint", "step–9"),
        ("trän",),
    ],
    ids=" ".join,
)
def test_commands_write_to_terminals_of_any_encoding(run_dir, monkeypatch, command, encoding):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "argv", ["rlforge", *command])
    with pytest.raises(SystemExit) as ending:
        main()
    monkeypatch.undo()
    written = []
    for stream in (out, err):
        stream.flush()
        written.append(stream.buffer.getvalue().decode(encoding, "replace"))
    assert ending.value.code == (2 if {"eval", "trän"} & {*command} else 0), written
    assert any(written)
    assert "Traceback" not in "".join(written)
    if command == ("models",):
        assert max(map(len, written[0].splitlines())) <= 80


def test_a_terminal_without_utf8_gets_question_marks(run_dir):
    done = subprocess.run(
        [*RLFORGE, "monitor", str(run_dir), "--once"],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "latin-1", "COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stderr
    assert "größe ? ?" in done.stdout.decode("latin-1")
    assert "30%?95%" in done.stdout.decode("latin-1")


def test_a_full_disk_is_one_message() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*RLFORGE, "config", "+experiment=simpletak_mirror"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == (
        "rlforge: the disk or its quota is full (No space left on device); free some and run the "
        "command again\n"
    )


def test_ctrl_c_shows_the_message_of_the_run_that_it_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("at once; step-2 is saved")

    monkeypatch.setattr("rlforge.launch.composed", interrupted)
    monkeypatch.setattr(sys, "argv", ["rlforge", "config"])
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == 130
    assert capsys.readouterr().err == "rlforge: interrupted at once; step-2 is saved\n"
