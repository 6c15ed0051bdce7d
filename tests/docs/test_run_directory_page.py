"""docs/run_directory.md names every file and column that a run leaves."""

import dataclasses
import re
from pathlib import Path
from typing import get_type_hints

from rlforge.buffer.batches import READABLE, SCHEMA
from rlforge.record.files import RunFile, RunPaths
from rlforge.samples import Sample
from rlforge.types import EvalResult, GameRecord

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "run_directory.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"## {title}")[1].split("\n## ")[0]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def test_every_file_of_the_run_is_listed():
    listed = PAGE.split("## metrics.jsonl")[0]
    names = [name for name, kind in vars(RunPaths).items() if isinstance(kind, RunFile)]
    assert len(names) > 10
    for name in names:
        assert getattr(RunPaths(root=Path("run")), name).name in listed


def test_every_column_of_games_batches_and_evaluations_is_listed():
    assert set(get_type_hints(GameRecord)) <= words(section("games/*.parquet"))
    assert set(SCHEMA.names) <= words(section("batches/*.parquet, batches/*.csv"))
    columns = {field.name for field in dataclasses.fields(Sample)} | READABLE.keys()
    assert columns == set(SCHEMA.names)
    assert {field.name for field in dataclasses.fields(EvalResult)} <= words(section("evals.jsonl"))
