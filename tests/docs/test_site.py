"""The docs site: generated pages are up to date, links lead to files, docstrings render."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import typer.cli
from typer.testing import CliRunner

import rlforge

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("ex*/*/README.md")),  # examples and experiments
]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
RECORDS = [*ROOT.glob("experiments/*/results.json"), *ROOT.glob("benchmarks/results/*.json")]
LINK = re.compile(r"\]\((?P<path>[^)\s#:]+)(?:#[^)\s]*)?\)")


def test_the_page_of_commands_is_up_to_date():
    command = "rlforge.cli utils docs --name rlforge --title 'Command line'"
    page = CliRunner().invoke(typer.cli.app, shlex.split(command)).stdout
    assert (ROOT / "docs" / "cli.md").read_text().strip() == page.strip(), (
        f"docs/cli.md is stale: run `typer {command} --output docs/cli.md`"
    )
    for option in ("--resume", "--multirun", "--config-dir", "--gpu-memory", "--skip-bad"):
        assert re.search(rf"^\* `[^`]*{option}[` ]", page, re.MULTILINE)


def test_every_public_name_is_on_the_page_of_the_api():
    page = (ROOT / "docs" / "api.md").read_text()
    named = re.findall(r"^::: rlforge\.(\w+)$", page, re.MULTILINE)
    assert sorted(named) == sorted(rlforge.__all__)


def test_relative_links_lead_to_files_of_the_repository():
    links = {
        page: [found["path"] for found in LINK.finditer(CODE.sub("", page.read_text()))]
        for page in PAGES
    }
    assert sum(map(len, links.values())) > 100
    assert [
        (page.relative_to(ROOT), link)
        for page, found in links.items()
        for link in found
        if not (page.parent / link).is_file()
    ] == []


def test_records_name_no_path_of_the_machine_that_made_them():
    named = {file: re.findall(r"[\": ](/\w[^\" ]*)", file.read_text()) for file in RECORDS}
    assert {file: paths for file, paths in named.items() if paths} == {}


def of_site(name: str):
    """A module of docs/site."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def to_markdown():
    return of_site("docstrings").to_markdown


def test_an_example_becomes_code(to_markdown):
    text = "Adds.\n\nExample: of two numbers:\n    >>> add(1, 2)  # doctest: +SKIP\n    3\n\nMore."
    code = "```pycon\n>>> add(1, 2)\n3\n```"
    assert to_markdown(text, []) == f"Adds.\n\n**Example**, of two numbers:\n\n{code}\n\nMore."


def test_sentences_about_arguments_become_a_list(to_markdown):
    text = "Adds.\n\nx, y: numbers. scale: of\nthe sum. Raises ValueError: never."
    items = "- `x`, `y`: numbers.\n- `scale`: of\n    the sum.\n\nRaises ValueError: never."
    assert to_markdown(text, ["x", "y", "scale"]) == f"Adds.\n\n{items}"
    assert to_markdown(text, ["other"]) == text
    text = "mask [B, T]: 1 for answers. entropy [B, T] | None: in nats."
    listed = "- `mask` [B, T]: 1 for answers.\n- `entropy` [B, T] | None: in nats."
    assert to_markdown(text, ["mask", "entropy"]) == listed


def test_a_notebook_becomes_a_page_with_its_outputs():
    table = ["<style>x {}</style>\n", '<table border="1">\n', "  <tr><td>1</td></tr></table>"]
    outputs = [
        {"output_type": "stream", "text": ["\x1b[1mdone\x1b[0m\n"]},
        {"output_type": "execute_result", "data": {"text/html": table, "text/plain": "1"}},
        {"output_type": "display_data", "data": {"image/png": "AB\nCD", "text/plain": "figure"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Tour\n", "Text."]},
        {"cell_type": "code", "source": ["run = 1"], "outputs": outputs},
        {"cell_type": "code", "source": [], "outputs": []},
    ]
    assert of_site("notebooks").to_markdown({"cells": cells}) == (
        "# Tour\nText.\n\n```python\nrun = 1\n```\n\n```text\ndone\n```\n\n"
        "<table><tr><td>1</td></tr></table>\n\n"
        '<img alt="output" src="data:image/png;base64,ABCD">'
    )
