"""comparison.html: tables, links, and a line with a band per configuration."""

import re

import pytest
from tests.harness.pages import charts, check
from tests.harness.sweep_runs import write_job, write_jobs

from rlforge.record.files import create_run, write_jsonl
from rlforge.show.compare import runs_of
from rlforge.show.report import write_report
from rlforge.show.report.comparison import write_comparison


@pytest.fixture
def sweep(tmp_path):
    return write_jobs(tmp_path / "sweep_1")


def text_of(page):
    return check(page.read_text(encoding="utf-8"))[0]


def test_the_page_lies_in_the_folder_of_the_runs_and_opens_offline(sweep):
    page = write_comparison(runs_of([sweep]))
    assert page == sweep / "comparison.html"
    content = page.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=\"https?:", content)
    assert "prefers-color-scheme: dark" in content
    assert "4 of 4 runs done" in text_of(page)


def test_a_run_leads_to_its_report(sweep):
    write_report(sweep / "3")
    page = write_comparison(runs_of([sweep]), sweep.parent / "page.html")
    links = re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8"))
    assert links == ["sweep_1/3/report.html"]
    assert (page.parent / links[0]).is_file()


def test_every_configuration_has_a_line_with_a_band_over_its_seeds(sweep):
    content = write_comparison(runs_of([sweep])).read_text(encoding="utf-8")
    won = charts(content)["SimpleTak-v0-train vs random_legal"]
    first, second = won["lines"]
    assert (first["name"], second["name"]) == tuple(
        f"learner.learning_rate={rate} (n=2)" for rate in (0.001, 0.01)
    )
    assert first["colour"] != second["colour"]
    assert (second["xs"], second["ys"]) == ([0, 2], [0.3, 0.75])
    assert (second["low"], second["high"]) == ([0.3, 0.6], [0.3, 0.9])
    assert "from the least to the highest" in content


def test_a_configuration_with_one_run_has_no_band(tmp_path):
    sweep = write_jobs(tmp_path / "sweep_1", (0, 1))
    page = write_comparison(runs_of([sweep]))
    drawn = charts(page.read_text(encoding="utf-8")).values()
    assert all(line["low"] is None for chart in drawn for line in chart["lines"])
    assert "Configurations" not in text_of(page)


def test_more_configurations_than_colours_are_counted(tmp_path):
    for number in range(11):
        run = write_job(tmp_path / f"group-{number}", 0)
        config = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(config.replace("0.001", f"0.{number + 1}5"))
    text = text_of(write_comparison(runs_of([tmp_path])))
    assert "3 further configurations are not drawn" in text


def test_windows_are_curves_of_their_own(tmp_path):
    for name in ("one", "two"):
        run = create_run(tmp_path / name)
        run.config.write_text(f"name: {name}\n")
        rows = [
            {"window": window, "policy_reward": window / 4, "reward_difference": window / 8}
            for window in (1, 2, 3)
        ]
        usual = {"window_id": "2024-11-13-10:00", "control_reward": None}
        write_jsonl(run.windows, [{**usual, **row} for row in rows])
    text = text_of(write_comparison(runs_of([tmp_path])))
    assert "reward above the control" in text
    assert "reward of the control" not in text


def test_names_are_text(tmp_path):
    for name in ("<b>", "two"):
        create_run(tmp_path / name).config.write_text(f'name: "{name}"\n')
    content = write_comparison(runs_of([tmp_path])).read_text(encoding="utf-8")
    text, tags = check(content)
    assert "b" not in tags
    assert "<b>" in text
