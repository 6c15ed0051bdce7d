"""``rlforge why``: what a run's records say about what it learned, at 80 columns."""

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.factories import equal_turns, game_spec, seat
from tests.factories import game_record as made
from tests.harness.records import write_games, write_signals

from rlforge.config.compose import compose
from rlforge.record.files import read_jsonl, write_json, write_jsonl
from rlforge.record.game_files import GameWriter
from rlforge.record.signals import Signal

ENV = "TicTacToe-v0-train"
GRPO = f"kind: games\nname: demo\nalgorithm: {{name: grpo}}\nenv: {{train: [{{id: {ENV}}}]}}\n"


def explained(rlforge, run):
    code, out, err = rlforge("why", run, "--json", "why.json")
    assert (code, err) == (0, "")
    # Commands alone are wider: they are pasted.
    assert all(len(line) <= 80 or line.startswith("  ") for line in out.splitlines())
    return out, json.loads(Path("why.json").read_text())


@pytest.fixture(autouse=True)
def here(own_folder):
    """Runs and files are written to a folder of the test."""


def test_games_that_are_cut_are_shown_with_their_curve_and_what_to_change(rlforge):
    run = write_signals(Path("run"), games_turn_limit_rate=1.0)
    run.command.write_text("rlforge train tictactoe_mirror name='my game' run_dir=run\n")
    cut = {"turns": 9, "version": 5, "text": "I take [4]", "rewards": {0: 0.0, 1: 0.0}}
    ended = equal_turns("finished", ENV, version=5)
    write_games(Path("run"), equal_turns("cut", ENV, end_reason="turn_limit", **cut), ended)
    out, found = explained(rlforge, "run")
    assert out.startswith("Nothing was learned since update 1: turn_limit.\n")
    assert re.search(r"^turn_limit_rate +█+ +100% +100% +100% +100%$", out, re.MULTILINE)
    assert [(one["game_id"], one["turns"]) for one in found["games"]] == [
        ("cut", [{"turn": 9, "answer": "I take [4]"}])
    ]
    assert "turn_limit: turn limit at turn 9" in out
    assert "… 5 turns" in out
    assert "\nI take [4]\n" in out or "plays I take [4]" in out
    again = "  rlforge train tictactoe_mirror 'name=my game' env.train.0.max_turns=400"
    assert again in out.splitlines()
    assert compose(shlex.split(again)[2:]).config.env.train[0].max_turns == 400


def test_answers_that_are_not_in_the_form_are_shown_in_full(rlforge):
    write_signals(Path("run"), games_format_success=0.0)
    answer = "I think about it. " * 40 + "[[5]]"
    asked = {"version": 5, "text": answer, "turn_is": {"well_formed": False}}
    write_games(Path("run"), *(equal_turns(f"game-{n}", ENV, **asked) for n in range(4)))
    out, found = explained(rlforge, "run")
    assert len(found["games"]) == 3
    assert out.count("[[5]]") == 6, "two answers of each"
    assert "format: wrong format" in out


def test_a_run_without_a_batch_is_explained_by_what_it_told_and_its_training_games(rlforge):
    run = write_signals(Path("run"), updates=0)
    told = Signal(name="no_batch", step=0, text="9 games", mend="play", weight="final")
    write_json(run.progress, {"signals": [told]})
    seats = [seat(0), seat(1, trained=False)]
    games = [made(game_spec(name, ENV, seats, purpose=name)) for name in ("train", "eval")]
    write_games(Path("run"), *games)
    out, found = explained(rlforge, "run")
    assert out.startswith("Nothing was learned since update 0: no_batch.\n")
    assert [one["game_id"] for one in found["games"]] == ["train"]


@pytest.mark.parametrize(
    ("figure", "ending"), [("timeout_rate", "timeout"), ("context_limit_rate", "context_limit")]
)
def test_games_that_a_limit_ends_are_shown(rlforge, figure, ending):
    write_signals(Path("run"), **{f"games_{figure}": 1.0})
    seats = [seat(0), seat(1, trained=False)]
    games = [made(game_spec(name, ENV, seats), end_reason=name) for name in (ending, "finished")]
    write_games(Path("run"), *games)
    _, found = explained(rlforge, "run")
    assert [one["game_id"] for one in found["games"]] == [ending]


def test_games_of_a_group_that_all_end_alike_are_shown(rlforge):
    write_signals(Path("run"), config=GRPO, no_advantage_share=1.0)
    seats = [seat(0), seat(1, trained=False)]
    group = [
        made(game_spec(f"game-{n}", ENV, seats, group_id="7"), rewards={0: -1.0, 1: 1.0})
        for n in range(2)
    ]
    alone = made(game_spec("alone", ENV, seats))
    write_games(Path("run"), *group, alone)
    out, found = explained(rlforge, "run")
    assert [one["game_id"] for one in found["games"]] == ["game-1", "game-0"]
    assert "no_advantage: one of 2 games of a group, all of reward -1" in out
    assert found["change"] == {"algorithm.group_size": 16}


def test_of_causes_that_compete_the_command_changes_the_first_alone(rlforge):
    figures = {"games_turn_limit_rate": 1.0, "no_advantage_share": 1.0, "reward_spread": 0.0}
    run = write_signals(Path("run"), config=GRPO, **figures)
    run.command.write_text("rlforge train +experiment=tictactoe_mirror algorithm=grpo\n")
    out, found = explained(rlforge, "run")
    assert found["signals"][0]["signal"]["name"] == "turn_limit"
    assert found["change"] == {"env.train.0.max_turns": 400}
    assert "equal_rewards: follows from turn_limit" in out
    assert "group_size" not in out


def test_where_no_setting_mends_the_first_cause_the_step_of_a_person_stands_in_for_a_command(
    rlforge,
):
    figures = {"games_format_success": 0.0, "games_invalid_rate": 1.0, "seat_share_max": 1.0}
    run = write_signals(Path("run"), **figures)
    run.command.write_text("rlforge train +experiment=tictactoe_mirror\n")
    out, found = explained(rlforge, "run")
    assert (found["change"], found["again"]) == ({}, "")
    assert "to try it" not in out
    assert "No value of a key mends format: it takes the step above." in out
    write_signals(Path("slow"), learner_share=0.01)
    assert "`rlforge doctor --run slow` measures" in " ".join(explained(rlforge, "slow")[0].split())


def test_a_rate_that_moves_nothing_is_named_with_its_curves_and_another_rate(rlforge):
    write_signals(Path("run"), kl=2e-6, moved=2e-8)
    out, found = explained(rlforge, "run")
    assert [one["signal"]["name"] for one in found["signals"]] == ["not_moved"]
    assert {"moved", "lr"} <= {one["name"] for one in found["signals"][0]["curves"]}
    assert "  learner.learning_rate=0.0007\n" in out
    assert "No games to show: no game is finished yet." in out


def test_evaluations_below_the_start_show_games_that_were_lost_against_that_opponent(rlforge):
    write_signals(Path("run"), wins=(60, 30, 20, 22))
    seats = [seat(0, trained=False), seat(1, trained=False)]
    about = {"purpose": "eval", "focus": 0}
    lost = made(game_spec("lost", ENV, seats, **about), rewards={0: -1.0, 1: 1.0})
    won = made(game_spec("won", ENV, seats, **about))
    write_games(Path("run"), lost, won)
    rows = read_jsonl(Path("run/evals.jsonl"))
    write_jsonl(Path("run/evals.jsonl"), [{**row, "opponent": "step-3"} for row in rows])
    out, found = explained(rlforge, "run")
    assert out.startswith("Worse than at its start: 60% of the games against step-3 were won after")
    assert [one["game_id"] for one in found["games"]] == ["lost"]
    assert "below_start: lost against step-3" in out


def test_a_run_that_learned_says_so_and_shows_the_newest_game_that_it_lost(rlforge):
    write_signals(Path("run"), wins=(30, 50, 72))
    about = {"purpose": "eval", "focus": 1}
    write_games(Path("run"), *(equal_turns(f"eval-{n}", ENV, **about) for n in range(2)))
    out, found = explained(rlforge, "latest" if Path("runs").is_dir() else "run")
    assert out.startswith("Learned: 30% of the games against base were won after 0 updates, 72%")
    assert "No signal that the run learns less than it could." in out
    assert found["games"][0]["game_id"] == "eval-1"
    assert "the newest evaluation game that is a loss" in out
    assert found["change"] == {}
    assert "what to change" not in out
    assert "  rlforge report run" in out.splitlines()


def test_a_run_without_games_on_disk_or_with_a_damaged_file_says_so(rlforge):
    config = "kind: games\nname: demo\ncollector: {num_train_workers: 4, save_games: false}\n"
    run = write_signals(Path("run"), config=config, games_turn_limit_rate=1.0)
    out, _ = explained(rlforge, "run")
    assert "No games to show: the run has no games on disk (collector.save_games=false)." in out
    writer = GameWriter(run.root)
    writer.add([equal_turns("g", ENV)])
    writer.close()
    next(run.games.glob("*.parquet")).write_bytes(b"PAR1")
    assert "is damaged" in explained(rlforge, "run")[0]


def test_a_run_that_goes_on_and_one_of_an_earlier_version_are_explained(rlforge):
    run = write_signals(Path("run"), updates=3, reward_spread=0.0)
    rows = read_jsonl(run.metrics)
    run.summary.unlink()
    assert explained(rlforge, "run")[0].startswith(
        "Nothing is learned since update 1: equal_rewards.\n"
    )
    write_jsonl(run.metrics, [{"step": row["step"], "reward_mean": 0.5} for row in rows])
    run.config.write_text("name: demo\nseed: 7\nlearner: {warm_restarts: 2}\n")
    out, _ = explained(rlforge, "run")
    assert out.startswith("Not known: no policy was evaluated twice; the mean reward was 0.5, then")


def test_a_supervised_run_plays_no_games(rlforge):
    write_signals(Path("run"), config="kind: sft\nname: demo\n")
    assert "No games to show: a supervised run plays none." in explained(rlforge, "run")[0]


def test_a_continuous_run_is_refused_with_its_own_commands(rlforge):
    run = write_signals(Path("run"))
    run.windows.write_text("{}\n")
    code, _, err = rlforge("why", "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "rlforge windows list run" in err


def test_a_run_that_ended_before_its_first_update_is_not_said_to_learn(rlforge):
    run = write_signals(Path("run"), updates=0)
    out, _ = explained(rlforge, run.root)
    assert out.startswith("The run ended before its first update.")
    assert "No signal" not in out


@pytest.mark.parametrize("lines", [0, 3])
def test_a_run_whose_metrics_are_cut_has_the_signals_of_its_summary(rlforge, lines):
    run = write_signals(Path("run"), games_turn_limit_rate=1.0)
    write_jsonl(run.metrics, read_jsonl(run.metrics)[:lines])
    out, _ = explained(rlforge, run.root)
    assert out.startswith("Nothing was learned since update 1: turn_limit.")
    healthy = write_signals(Path("healthy"))
    write_jsonl(healthy.metrics, read_jsonl(healthy.metrics)[:lines])
    out, _ = explained(rlforge, healthy.root)
    assert "before its first update" not in out
