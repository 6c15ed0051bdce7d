"""``rlforge runs``, ``compare``, ``monitor`` and ``report`` with the runs of a sweep."""

import json
import re
from pathlib import Path

import pytest
from tests.harness.records import write_signals
from tests.harness.sweep_runs import write_jobs

SWEEP = Path("runs/demo/sweep_1")


@pytest.fixture(autouse=True)
def sweep(own_folder):
    write_jobs(SWEEP)


def test_a_sweep_is_compared_and_written_to_files(rlforge):
    code, out, _ = rlforge("compare", SWEEP, "--json", "all.json", "--output", "all.csv")
    assert code == 0
    assert f"best: {SWEEP}/3 (objective 0.9)" in out.splitlines()
    found = json.loads(Path("all.json").read_text())
    assert found["best"] == f"{SWEEP}/3"
    assert [len(one["runs"]) for one in found["configurations"]] == [2, 2]
    assert len(Path("all.csv").read_text().splitlines()) == 5


def test_runs_are_compared_by_name_and_as_latest(rlforge):
    code, out, _ = rlforge("compare", SWEEP / "0", "latest", "-o", "all.md")
    assert code == 0
    assert "learner.learning_rate" in out
    assert Path("all.md").read_text().startswith("Runs:")


@pytest.mark.parametrize(
    ("paths", "page", "said"),
    [
        ([SWEEP], SWEEP / "comparison.html", "4 of 4 runs done"),
        ([SWEEP / "0", SWEEP / "1"], SWEEP / "comparison.html", "2 of 2 runs done"),
        ([SWEEP / "0"], SWEEP / "0" / "report.html", "random_legal"),
    ],
)
def test_the_report_of_several_runs_is_a_comparison_and_that_of_one_its_own(
    rlforge, paths, page, said
):
    assert rlforge("report", *paths, "--output", "page.html") == (0, "page.html\n", "")
    assert not page.exists()
    assert rlforge("report", *paths) == (0, f"{page}\n", "")
    for file in (page, Path("page.html")):
        assert said in " ".join(re.sub("<[^>]*>", " ", file.read_text()).split())


def test_monitor_shows_the_jobs_of_a_sweep(rlforge):
    code, out, _ = rlforge("monitor", SWEEP, "--once")
    assert code == 0
    assert "4 jobs: 4 done" in out
    assert "runs/demo/sweep_1  4 jobs: 4 done" in rlforge("monitor", "runs", "--once")[1]


def test_a_run_that_is_named_is_listed_alone(rlforge):
    code, out, _ = rlforge("runs", f"{SWEEP}/1", "--json", "one.json")
    assert (code, "no runs yet" in out) == (0, False)
    (run,) = json.loads(Path("one.json").read_text())
    assert Path(run["path"]).name == "1"


def test_runs_of_a_sweep_are_listed_together(rlforge):
    code, out, _ = rlforge("runs", "--json", "runs.json")
    assert code == 0
    assert out.splitlines()[0] == f"{SWEEP}  4 jobs: 4 done"
    rows = [line.split() for line in out.splitlines()[2:6]]
    assert rows[0] == ["0", "done", "2/2", "0", "0.001", "40%", "(31", "to", "50)", "0:00"]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert json.loads(Path("runs.json").read_text())[0]["settings"]["seed"] == "0"


def test_a_run_with_signals_is_marked_and_its_signals_stand_below_the_table(rlforge):
    learner = "learner: {warmup_updates: 12, total_updates: 12}"
    config = f"kind: games\nname: demo\n{learner}\nenv: {{train: [{{id: TicTacToe-v0-train}}]}}\n"
    for number in (4, 5):
        write_signals(SWEEP / str(number), config=config, games_turn_limit_rate=1.0)
    code, out, _ = rlforge("runs", "--json", "runs.json")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert [" !" in line for line in lines if "done" in line][-4:] == [False, False, True, True]
    assert "! turn_limit, warmup: 4, 5" in lines
    assert json.loads(Path("runs.json").read_text())[-1]["signals"] == ["turn_limit", "warmup"]
    _, out, _ = rlforge("compare", SWEEP, "-o", "all.md")
    assert "! turn_limit, warmup: 4, 5" in out.splitlines()
    assert "\n! turn_limit, warmup: 4, 5\n" in Path("all.md").read_text()
    assert rlforge("report", SWEEP).code == 0
    assert (SWEEP / "comparison.html").read_text().count(">turn_limit</span>") == 2
