"""Comparison: what differs, seeds together, the best, and the tables of it."""

import csv
import io
import json

import pytest
from rich.console import Console
from tests.factories import evaluation
from tests.harness.sweep_runs import write_job, write_jobs

from rlforge.config.schema import TrackerConfig
from rlforge.record.files import create_run, write_json, write_jsonl
from rlforge.record.tracker import Tracker
from rlforge.show.compare import compare, runs_of
from rlforge.show.compare_view import show, to_csv, to_markdown
from rlforge.system.values import to_json


@pytest.fixture
def found(tmp_path):
    return compare(runs_of([write_jobs(tmp_path / "sweep_1")]))


def shown(comparison, width):
    console = Console(file=io.StringIO(), width=width, record=True)
    show(comparison, console)
    return console.export_text()


def simple_run(path, config):
    create_run(path).config.write_text(config)
    return path


def test_only_settings_that_differ_are_named(found):
    assert sorted(found.keys) == ["learner.learning_rate", "seed"]
    assert [run.name for run in found.by_configuration] == ["0", "2", "1", "3"]
    assert found.by_configuration[1].settings == {"seed": "1", "learner.learning_rate": "0.001"}


def test_runs_that_differ_in_their_seed_alone_are_one_configuration(found):
    slow, fast = found.configurations
    assert slow.settings == {"learner.learning_rate": "0.001"}
    assert [len(one.runs) for one in (slow, fast)] == [2, 2]
    ((name, result),) = fast.results.items()
    assert (name, result.low, result.high) == ("vs random_legal", 0.6, 0.9)
    assert (result.mean, fast.objective) == (pytest.approx(0.75), pytest.approx(0.75))


def test_runs_with_different_results_have_no_best(tmp_path):
    sweep = write_jobs(tmp_path / "sweep", (0, 1))
    other = simple_run(tmp_path / "other", "name: other\n")
    write_jsonl(create_run(other).metrics, [{"step": 1, "loss": 0.25}])
    write_json(create_run(other).summary, {"status": "done", "objective": 9.0})
    comparison = compare(runs_of([sweep, other]))
    assert comparison.best is None
    assert [one.mean for one in comparison.runs[-1].results.values()] == [0.25]


def test_a_seed_that_still_runs_is_not_in_the_mean(tmp_path):
    sweep = write_jobs(tmp_path / "sweep", (0, 1, 3))
    write_job(sweep, 2, done=False)
    slow, fast = compare(runs_of([sweep])).configurations
    assert [one.name for one in (slow, fast)] == ["n=1 of 2", "n=2"]
    assert slow.results["vs random_legal"].mean == 0.4
    assert (slow.runs[1].status, slow.runs[1].done) == ("running", "2/2 updates")
    assert "n=1 of 2" in shown(compare(runs_of([sweep])), 80)


def test_keys_of_one_algorithm_are_left_out_where_its_name_tells_the_runs_apart(tmp_path):
    one = simple_run(tmp_path / "one", "algorithm: {name: reinforce}\n")
    two = simple_run(tmp_path / "two", "algorithm: {name: ppo, clip: 0.2}\n")
    three = simple_run(tmp_path / "three", "algorithm: {name: ppo, clip: 0.3}\n")
    assert compare([one, two]).keys == ("algorithm.name",)
    assert compare([one, two, three]).keys == ("algorithm.clip", "algorithm.name")


def test_environments_are_named_where_there_are_several(tmp_path):
    for env in ("TicTacToe-v0", "KuhnPoker-v0"):
        tracker = Tracker(tmp_path / env, TrackerConfig(), "demo", 2, ())
        tracker.add_eval(evaluation(0, 30, env_id=env))
    names = [name for run in compare(runs_of([tmp_path])).runs for name in run.results]
    assert sorted(names) == ["KuhnPoker-v0 vs random_legal", "TicTacToe-v0 vs random_legal"]


def test_a_continuous_run_has_the_results_of_its_last_window(tmp_path):
    for name in ("one", "two"):
        run = create_run(simple_run(tmp_path / name, f"name: {name}\n"))
        row = {
            "window": 1,
            "window_id": "2024-11-13-10:00",
            "policy_reward": 0.5,
            "control_reward": 0.375,
            "reward_difference": 0.125,
            "reward_difference_low": -0.25,
            "reward_difference_high": 0.5,
        }
        write_jsonl(run.windows, [row | {"policy_reward": 0.0}, row])
        write_json(run.summary, {"status": "done", "windows": 2, "total_windows": 2})
    text = shown(compare(runs_of([tmp_path])), 100)
    assert "0.125 (-0.25 to 0.5)" in text
    assert text.splitlines()[1].split()[3:6] == ["reward", "control", "difference"]


@pytest.mark.parametrize(
    ("file", "text"), [("config.yaml", "name: [\n"), ("summary.json", "{"), ("progress.json", "3")]
)
def test_a_damaged_file_is_named_in_a_row_beside_the_other_runs(tmp_path, file, text):
    for name in ("one", "two"):
        simple_run(tmp_path / name, f"name: {name}\n")
    (tmp_path / "one" / file).write_text(text)
    shown_as = shown(compare(runs_of([tmp_path])), 100)
    assert f"one/{file} is damaged (" in shown_as
    rows = dict(line.split()[:2] for line in shown_as.splitlines() if line[:4] in ("one ", "two "))
    assert rows == {"one": "damaged", "two": "not"}


def test_a_run_that_is_named_twice_counts_once(tmp_path):
    sweep = write_jobs(tmp_path / "sweep", (0, 1))
    assert len(runs_of([sweep, sweep / "0"])) == 2


@pytest.mark.parametrize("width", [72, 140])
def test_no_setting_and_no_path_is_broken(found, width):
    text = shown(found, width)
    lines = text.splitlines()
    assert max(len(line) for line in lines if found.folder not in line) <= width
    assert found.best.endswith("sweep_1/3")
    assert f"best: {found.best} (objective 0.9)" in lines
    assert f"{found.folder}:" in lines
    for setting in ("0.001", "0.01", "90% (83 to 94)", "75% (60 to 90)"):
        assert setting in text


def test_csv_has_a_row_per_run_with_all_digits(found):
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [row["seed"] for row in rows] == ["0", "1", "0", "1"]
    assert [row["vs random_legal"] for row in rows] == ["0.4", "0.5", "0.6", "0.9"]
    assert [row["best"] for row in rows] == ["False", "False", "False", "True"]
    assert float(rows[3]["vs random_legal low"]) == pytest.approx(0.8256, abs=1e-4)


def test_markdown_has_a_table_of_seeds_and_one_of_runs(found):
    lines = to_markdown(found).splitlines()
    tables = [line for line in lines if line.startswith("| ")]
    assert {line.count("|") for line in tables[:4]} == {6}
    assert sum(line.startswith("| 3 | done 2/2, best |") for line in lines) == 1
    assert "| n=2 | best | 0.01 | 75% (60 to 90) |" in "\n".join(lines)


def test_more_settings_than_fit_are_counted(tmp_path):
    for name in ("one", "two"):
        keys = {f"key_{index}": f"{name}-{index}" for index in range(12)}
        simple_run(tmp_path / name, json.dumps(keys))
    lines = [line.split() for line in shown(compare(runs_of([tmp_path])), 80).splitlines()]
    assert lines[2][:2] == ["one", "key_0=one-0"]
    assert [line for line in lines if "more" in line] == [["and", "4", "more"]] * 2


def test_settings_that_a_column_would_fold_stand_below_the_table(tmp_path):
    rate = "learner: {learning_rate: %s, schedule: a_schedule_with_a_long_name}"
    for name, number in (("a-run-with-a-long-name", 0.1), ("another-run-with-one", 0.2)):
        run = simple_run(tmp_path / name, rate % number)
        write_jsonl(
            run / "evals.jsonl", [to_json(evaluation(0, 5, games=10, opponent="an_opponent"))]
        )
    lines = [line.strip() for line in shown(compare(runs_of([tmp_path])), 60).splitlines()]
    assert "a-run-with-a-long-name: learner.learning_rate=0.1" in lines
    assert max(map(len, lines[1:])) <= 60
