"""docs/quickstart.ipynb: short, runs to its end, and is committed with its outputs."""

import re
from pathlib import Path
from typing import Any

import pytest

from rlforge.models.made import TINY

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "quickstart.ipynb"


def read() -> Any:
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: Any) -> list[str]:
    return [output.output_type for output in cell.outputs]


@pytest.mark.release
@pytest.mark.timeout(600)  # several processes import torch, on a machine with others
def test_every_cell_runs_and_shows_what_is_committed(small_model, tmp_path, monkeypatch):
    from nbclient import NotebookClient

    # In place of the tiny model, which takes a minute to make.
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / TINY.cache_name).symlink_to(small_model)
    monkeypatch.setenv("RLFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    notebook = read()
    NotebookClient(notebook, timeout=400, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for ran, committed in zip(code_cells(notebook), code_cells(read()), strict=True):
        assert kinds(ran) == kinds(committed), ran.outputs
    [run] = (tmp_path / "runs" / "tictactoe_mirror").iterdir()
    assert (run / "report.html").is_file()


def test_the_code_is_at_most_25_lines():
    lines = [line for cell in code_cells(read()) for line in cell.source.splitlines()]
    assert sum(bool(line.strip()) for line in lines) <= 25


def test_outputs_are_committed_small_and_free_of_this_machine():
    notebook, text = read(), NOTEBOOK.read_text()
    assert all(cell.outputs for cell in code_cells(notebook))
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert len(text) < 100_000
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert not any(cell.metadata for cell in notebook.cells)
    shown = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not re.search(r"/(home|root|tmp|work|Users)/", shown)
    assert "Warning" not in shown
    assert "Traceback" not in shown
