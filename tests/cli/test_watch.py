"""``rlforge runs``, ``compare``, ``monitor`` and ``report`` with the runs of a sweep."""

import json
from pathlib import Path

import pytest
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


def test_the_report_of_a_sweep_is_a_comparison(rlforge):
    code, out, _ = rlforge("report", SWEEP)
    assert (code, out) == (0, f"{SWEEP}/comparison.html\n")
    assert Path(out.strip()).is_file()
    code, out, _ = rlforge("report", SWEEP / "0", SWEEP / "1", "--output", "page.html")
    assert (code, out) == (0, "page.html\n")


def test_the_report_of_a_run_is_a_file_of_its_own(rlforge):
    code, out, _ = rlforge("report", SWEEP / "0")
    assert (code, out) == (0, f"{SWEEP}/0/report.html\n")
    assert "random_legal" in Path(out.strip()).read_text()
    code, out, _ = rlforge("report", SWEEP / "1", "--output", "page.html")
    assert (code, out) == (0, "page.html\n")
    assert "<h1>" in Path("page.html").read_text()
    assert not (SWEEP / "1" / "report.html").exists()


def test_monitor_shows_the_jobs_of_a_sweep(rlforge):
    code, out, _ = rlforge("monitor", SWEEP, "--once")
    assert code == 0
    assert "4 jobs: 4 done" in out
    assert "runs/demo/sweep_1  4 jobs: 4 done" in rlforge("monitor", "runs", "--once")[1]


def test_runs_of_a_sweep_are_listed_together(rlforge):
    code, out, _ = rlforge("runs", "--json", "runs.json")
    assert code == 0
    assert out.splitlines()[0] == f"{SWEEP}  4 jobs: 4 done"
    rows = [line.split() for line in out.splitlines()[2:6]]
    assert rows[0] == ["0", "done", "2/2", "0", "0.001", "40%", "(31", "to", "50)", "0:00"]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert json.loads(Path("runs.json").read_text())[0]["settings"]["seed"] == "0"
