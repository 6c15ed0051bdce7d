"""``rlforge report --output``: the page goes to another file than that of the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlforge.cli import main
from rlforge.tracking.files import create_run


def report(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> object:
    """The exit code of ``rlforge report ARGUMENTS``."""
    monkeypatch.setattr(sys, "argv", ["rlforge", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as ending:
        main()
    return ending.value.code


def test_the_page_goes_to_the_file_that_is_named(tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    create_run(run).config.write_text("name: x\n")
    page = tmp_path / "page.html"
    assert report(monkeypatch, run, "--output", page) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert "<h1>" in page.read_text(encoding="utf-8")
    assert not (run / "report.html").exists()


def test_an_output_in_a_folder_that_is_not_there_is_refused_in_one_line(
    tmp_path, monkeypatch, capsys
):
    run = tmp_path / "run"
    create_run(run).config.write_text("name: x\n")
    assert report(monkeypatch, run, "--output", tmp_path / "none" / "page.html") == 2
    error = capsys.readouterr().err
    assert "page.html: it must be a file in a folder that exists" in error
    assert len(error.splitlines()) == 1
