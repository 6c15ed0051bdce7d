"""docs/benchmarks.md is what the results say."""

import importlib
import json
import subprocess
import sys

import pytest


@pytest.fixture
def table():
    return importlib.import_module("table")


def test_the_page_is_not_stale(on_path):
    command = [sys.executable, str(on_path / "table.py"), "--check"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_every_result_has_a_section_with_its_machine_and_date(on_path, table):
    page = table.PAGE.read_text()
    files = list(on_path.glob("results/*.json"))
    assert files
    for file in files:
        content = json.loads(file.read_text())
        section = page.split(f"\n## {file.stem}\n")[1].split("\n## ")[0]
        assert content["command"] in section
        assert content["date"] in section


def test_figures_are_unmeasured_until_there_is_a_result(table):
    spread = {"median_per_s": 61234.5, "q1_per_s": 60000.0, "q3_per_s": 62000.0, "repeats": 5}
    about = {
        "command": "python benchmarks/learner.py --shape qwen3-0.6b",
        "date": "2026-01-01",
        "hardware": {"processor": "P", "cores": 2, "gpus": ["NVIDIA H200"]},
        "versions": {"python": "3.11", "torch": "2"},
    }

    def row_of(page):
        return next(line for line in page.splitlines() if "Qwen3-0.6B shape" in line)

    assert row_of(table.render({})).endswith("| *unmeasured* |")
    measured = table.render({"learner_qwen3-0.6b": about | {"tokens_per_second": spread}})
    assert row_of(measured).endswith("| 61,234 [60,000, 62,000]/s |")
    assert "P, 2 cores, NVIDIA H200; 2026-01-01; python 3.11, torch 2" in measured


def test_a_peer_that_was_absent_is_unmeasured(table):
    def speed(value):
        return {"tokens": {"median_per_s": value, "q1_per_s": value, "q3_per_s": value}}

    results = {"contenders": {"rlforge_learner": speed(30.0), "plain_peft": speed(10.0)}}
    read = {f.what: f.read for f in table.FIGURES}
    assert read["learner tokens/s, tiny, against plain padded PEFT"](results) == "3.00 ×"
    assert read["learner tokens/s, tiny, against TRL"](results) == "*unmeasured*"


def test_rows_tell_entries_of_a_list_apart_by_their_words_and_whole_numbers(table):
    seconds = {"median_s": 0.0123, "q1_s": 0.01, "q3_s": 0.02, "repeats": 3}
    content = {"runs": [{"game": "Nim", "at_once": 8, "took": seconds}], "share": 0.25, "n": 1200}
    assert list(table.rows(content)) == [
        ("runs · Nim · at once 8 · took", "12.3 [10.0, 20.0] ms"),
        ("share", "0.25"),
        ("n", "1,200"),
    ]


def test_whole_training_is_shown_with_the_least_ratio_of_all_sittings(table):
    def sitting(cpu, clock):
        return {"ratios": {"2": {"trl_grpo": {"by_cpu_time": cpu, "by_wall_time": clock}}}}

    read = {figure.what: figure.read for figure in table.FIGURES}
    name = "turns played and learned a second, whole training, tiny, against "
    results = {"sittings": [sitting(1.1, 1.6), sitting(1.5, 1.4)]}
    cell = "1.50 × by CPU time (least 1.10), 1.40 × by the clock (least 1.40); 2 sittings"
    assert read[f"{name}TRL"](results) == cell
    assert read[f"{name}transformers and PEFT in a loop"](results) == "*unmeasured*"
