"""Signals are the first thing of the report, judged from the records of a run of any version."""

import json

from tests.harness.pages import check
from tests.harness.records import write_signals

from rlforge.record.files import write_json
from rlforge.show.report import write_report


def first_screen(page):
    """The text above the results."""
    text, _ = check(page)
    return text.partition(" Results ")[0]


def test_a_signal_stands_above_the_results_with_its_sentence_and_its_override(tmp_path):
    write_signals(tmp_path, games_turn_limit_rate=1.0)
    said = first_screen(write_report(tmp_path).read_text())
    assert "turn_limit since update 1 All games of TicTacToe-v0-train are cut at" in said
    assert "What to change: raise max_turns in env.train: env.train.0.max_turns=400" in said


def test_a_signal_that_has_ended_says_from_when_to_when(tmp_path):
    run = write_signals(tmp_path)
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    flat = [{**row, "reward_spread": 0.0} if row["step"] < 3 else row for row in rows]
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in flat))
    page = write_report(tmp_path).read_text()
    assert "equal_rewards updates 1 to 5, ended" in first_screen(page)
    assert '<li class="card soft">' in page


def test_a_run_without_signals_says_so_in_a_clause(tmp_path):
    write_signals(tmp_path)
    said = first_screen(write_report(tmp_path).read_text())
    assert "No signal that the run learns less than it could." in said
    assert "What to change" not in said


def test_keys_that_are_gone_since_the_run_do_not_hide_signals(tmp_path):
    old = "kind: games\nname: demo\nengine: {fast_mode: true, max_tokens: 7}\n"
    run = write_signals(tmp_path, games_truncated_rate=1.0)
    run.config.write_text(old)
    assert "are cut at engine.max_tokens=7" in first_screen(write_report(tmp_path).read_text())


def test_where_the_configuration_cannot_be_read_the_signals_are_those_that_the_run_told(tmp_path):
    run = write_signals(tmp_path, games_turn_limit_rate=1.0)
    run.config.write_text("kind: of_another_package\n")
    assert "turn_limit since update 1" in first_screen(write_report(tmp_path).read_text())
    write_json(run.summary, {"status": "done"})
    assert "turn_limit" not in first_screen(write_report(tmp_path).read_text())
