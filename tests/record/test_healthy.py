"""Runs that learn give no signals: records of shipped experiments, judged again.

``benchmarks/signals.py`` makes the records of updates; evaluations are those of the studies.
"""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.composed import composed

from rlforge.record.judge import judged
from rlforge.types import EvalResult

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests/record/healthy.json.xz"
STUDIES = sorted(
    path
    for path in (ROOT / "experiments").glob("*/results.json")
    if (ROOT / "conf/experiment" / f"{path.parent.name}.yaml").is_file()
)


def results(rows: list[dict[str, Any]]) -> Iterator[EvalResult]:
    for row in rows:
        known = {key: row[key] for key in EvalResult.__dataclass_fields__ if key in row}
        yield EvalResult(**known | {"ci95": tuple(row["ci95"])})


def test_of_thirty_healthy_runs_at_most_one_gives_a_signal():
    runs = json.loads(lzma.decompress(KEPT.read_bytes()))
    configs = {
        name: composed(f"+experiment={name}").config for name in {r["experiment"] for r in runs}
    }
    found = [
        f"{run['experiment']}, seed {run['seed']}: {signal.name}, {signal.text}"
        for run in runs
        for signal in judged(configs[run["experiment"]], run["rows"], results(run["evals"]))
    ]
    assert len(runs) == 30
    assert len(found) <= 1, found


@pytest.mark.parametrize("study", STUDIES, ids=[path.parent.name for path in STUDIES])
def test_no_evaluations_of_a_study_give_a_signal(study):
    made = json.loads(study.read_text())["results"]
    runs = [one["evals"] for one in made if isinstance(one, dict) and one.get("evals")]
    if study.parent.name in ("simpletak_mirror", "tictactoe_mirror", "smollm2_kuhn"):
        assert len(runs) >= 3
    config = composed(f"+experiment={study.parent.name}").config
    for evals in runs:
        assert judged(config, [], results(evals)) == []
