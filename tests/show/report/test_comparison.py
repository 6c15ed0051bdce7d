"""comparison.html: tables, links, and a line with a band per configuration."""

import html.parser
import re

import pytest
from tests.harness.sweep_runs import write_job, write_jobs

from rlforge.record.files import create_run, write_jsonl
from rlforge.show.compare import runs_of
from rlforge.show.report import write_report
from rlforge.show.report.comparison import write_comparison


@pytest.fixture
def sweep(tmp_path):
    return write_jobs(tmp_path / "sweep_1")


def text_of(page):
    found: list[str] = []
    reader = html.parser.HTMLParser()
    reader.handle_data = found.append  # type: ignore[method-assign]
    reader.feed(page.read_text(encoding="utf-8"))
    return " ".join(" ".join(found).split())


def test_the_page_lies_in_the_folder_of_the_runs_and_opens_offline(sweep):
    page = write_comparison(runs_of([sweep]))
    assert page == sweep / "comparison.html"
    content = page.read_text(encoding="utf-8")
    assert "<script" not in content
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
    won = content.split("<figure>")[1]
    assert "SimpleTak-v0-train vs random_legal" in won
    assert "learner.learning_rate=0.01 (n=2)" in won
    for colour in ("c0", "c1"):
        assert won.count(f'class="line {colour}"') == won.count(f'class="band {colour}"') == 1
    assert "learner.learning_rate=0.01 (n=2): 75% (60% to 90%)" in won
    assert "from the least to the highest" in content


def test_a_configuration_with_one_run_has_no_band(tmp_path):
    sweep = write_jobs(tmp_path / "sweep_1", (0, 1))
    page = write_comparison(runs_of([sweep]))
    assert 'class="band' not in page.read_text(encoding="utf-8")
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
        write_jsonl(run.windows, [{"control_reward": None, **row} for row in rows])
    text = text_of(write_comparison(runs_of([tmp_path])))
    assert "reward above the control" in text
    assert "reward of the control" not in text


def test_names_are_text(tmp_path):
    for name in ("<b>", "two"):
        create_run(tmp_path / name).config.write_text(f'name: "{name}"\n')
    content = write_comparison(runs_of([tmp_path])).read_text(encoding="utf-8")
    assert "<b>" not in content.partition("<body>")[2].replace("<b><", "")
    assert "&lt;b&gt;" in content
