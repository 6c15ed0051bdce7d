"""The sinks of ``examples/plugins`` for trackio and MLflow record what they get.

What needs the services themselves is marked ``release`` and runs where they are installed.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.conftest import PACKAGE
from tests.record.two_parts import EVALUATED, RATINGS, checkpoint, write_two_parts

from rlforge.config.schema import TrackerConfig
from rlforge.errors import ConfigError
from rlforge.record.files import create_run
from rlforge.record.sinks import check_sinks, further_sinks

TRACKIO = {"name": "example_plugins.services.trackio:TrackioSink", "project": "p"}
MLFLOW = {"name": "example_plugins.services.mlflow:MlflowSink", "experiment": "e"}

#: Updates of a run in two parts, of which the first is killed: what it may have held comes again.
AS_SENT = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6]


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PACKAGE / "src")


def sink(settings: dict[str, Any]) -> Any:
    """The sink that ``tracker.sinks`` names so."""
    (made,) = further_sinks(TrackerConfig(sinks=[settings]))
    return made


@pytest.mark.release
def test_trackio_keeps_a_resumed_run_as_one_with_all_points(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))  # read when it is imported
    trackio = pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    paths = create_run(tmp_path / "run")
    paths.config.write_text("seed: 7\n")
    write_two_parts(lambda: sink(TRACKIO), paths)
    last = sink(TRACKIO)
    last.open(paths, "demo")
    last.table(6, "ratings", RATINGS)
    last.close()
    assert last.next_step() == "trackio show --project p"
    (run,) = trackio.Api().runs("p")
    assert (run.name.partition(" ")[0], run.config["seed"]) == ("demo", 7)
    logged = SQLiteStorage.get_logs("p", run.name)
    assert [row["step"] for row in logged if "learner/loss" in row] == AS_SENT
    assert {row["step"] for row in logged if EVALUATED in row} == {0, 2, 4}
    (table,) = [row["tables/ratings"] for row in logged if "tables/ratings" in row]
    assert table["_value"] == RATINGS


@pytest.fixture
def mlflow_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder in place of a server."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return pytest.importorskip("mlflow").MlflowClient()


@pytest.mark.release
def test_mlflow_keeps_a_resumed_run_as_one_with_all_points(tmp_path, mlflow_server):
    paths = create_run(tmp_path / "sweep_2026" / "0")
    paths.command.write_text("rlforge train seed=7\n")
    paths.config.write_text(f"learner: {{batch_size: 8}}\nprompt: {'x' * 600}\n")
    write_two_parts(lambda: sink(MLFLOW | {"tags": ["ablation"]}), paths)
    experiment = mlflow_server.get_experiment_by_name("e").experiment_id
    (run,) = mlflow_server.search_runs([experiment])
    assert (run.info.run_name, run.info.status) == ("demo seed=7", "FINISHED")
    assert run.data.tags.items() >= {"ablation": "true", "group": "sweep_2026"}.items()
    assert (run.data.params["learner.batch_size"], len(run.data.params["prompt"])) == ("8", 500)
    losses = mlflow_server.get_metric_history(run.info.run_id, "learner/loss")
    assert [(point.step, point.value) for point in losses] == [(n, 1 / n) for n in AS_SENT]
    rates = mlflow_server.get_metric_history(run.info.run_id, EVALUATED)
    assert {point.step for point in rates} == {0, 2, 4}


@pytest.mark.release
def test_mlflow_takes_tables_adapters_and_keys_of_every_game(tmp_path, mlflow_server):
    made = sink(MLFLOW)
    made.open(create_run(tmp_path / "run"), "demo")
    made.write(1, {"evaluation-kuhn_poker(players=2)/base/win_rate": 0.5})
    made.table(2, "ratings", RATINGS)
    made.adapter(checkpoint(tmp_path))
    made.close()
    (run,) = mlflow_server.search_runs([mlflow_server.get_experiment_by_name("e").experiment_id])
    assert run.data.metrics == {"evaluation-kuhn_poker_players_2_/base/win_rate": 0.5}
    kept = Path(run.info.artifact_uri.removeprefix("file://"))
    files = {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()}
    saved = ("manifest.json", "adapter_model.safetensors")
    assert files == {"ratings.json", *(f"adapters/step-3/{name}" for name in saved)}
    assert json.loads((kept / "ratings.json").read_text())["columns"] == ["uid", "mu"]


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [(TRACKIO, "pip install trackio"), (MLFLOW, "pip install mlflow-skinny")],
    ids=["trackio", "mlflow"],
)
def test_a_missing_package_is_named_before_the_run(settings, remedy, monkeypatch):
    missing = remedy.split()[-1].partition("-")[0]
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=f"{missing} is not installed; {remedy}"):
        check_sinks(TrackerConfig(sinks=[settings]))


def test_mlflow_needs_the_name_of_its_server(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match="no MLflow server is named; set MLFLOW_TRACKING_URI"):
        check_sinks(TrackerConfig(sinks=[MLFLOW]))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    check_sinks(TrackerConfig(sinks=[MLFLOW]))
