"""Damage and ends are on top of the report, and the rest of the run is shown."""

import html

import pytest

from rlforge.errors import RlforgeError
from rlforge.record.files import open_run
from rlforge.record.status import write_end, write_start
from rlforge.show.report import write_report
from rlforge.show.report.page import write_page
from rlforge.system.locks import RunLock


def warnings(page):
    """The text between the tiles and the first section; empty without a warning."""
    _, mark, rest = page.partition('role="alert"')
    assert not mark or "Results" in rest
    return html.unescape(rest.partition("</div>")[0])


def test_damaged_lines_are_named_and_the_others_drawn(own_run):
    assert warnings(write_report(own_run).read_text()) == ""
    file = own_run / "metrics.jsonl"
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([*lines[:2], b"\xff\xfe", *lines[3:]]) + b"\n")
    page = write_report(own_run).read_text()
    assert f"{file}:3 is damaged (" in warnings(page)
    assert f"{file} lacks 1 of the 6 updates that summary.json counts." in warnings(page)
    assert "Learner" in page or "loss" in page


def test_a_line_of_no_update_is_left_out_and_said(own_run):
    file = own_run / "metrics.jsonl"
    file.write_text(f'{file.read_text()}{{"a": 1}}\n')
    page = write_report(own_run).read_text()
    assert f"{file}:7 is damaged (no step) and left out." in warnings(page)


def test_a_configuration_that_is_not_utf_8_is_named(own_run):
    (own_run / "config.yaml").write_bytes("kind: games\nname: ä\n".encode("latin-1"))
    with pytest.raises(RlforgeError, match=r"config\.yaml is damaged \(not UTF-8\); save it"):
        write_report(own_run)


@pytest.mark.parametrize("left", [0, 2])
def test_a_metrics_file_that_is_cut_or_gone_is_no_finished_curve(own_run, left):
    file = own_run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:left]))
    if not left:
        file.unlink()
    page = write_report(own_run).read_text()
    expected = f"{file} lacks {6 - left} of the 6 updates that summary.json counts."
    assert expected in warnings(page)


def test_failed_and_killed_runs_say_why(own_run):
    run = open_run(own_run)
    with RunLock(own_run):
        write_start(run, "demo", 10)
        assert warnings(write_report(own_run).read_text()) == ""
    page = write_report(own_run).read_text()
    assert "The run was killed: its process has not" in warnings(page)
    assert "6 of 10" in page  # not the 0 of the summary, which is of the start
    with RunLock(own_run):
        write_end(run, "failed", "the learner <died>")
    assert "The run failed: the learner <died>." in warnings(write_report(own_run).read_text())


def test_a_page_that_cannot_be_written_is_named_with_the_option_that_helps(tmp_path):
    page = tmp_path / "gone" / "report.html"
    with pytest.raises(RlforgeError, match=rf"^{page} cannot be written \(No such .*--output FILE"):
        write_page(page, "")
