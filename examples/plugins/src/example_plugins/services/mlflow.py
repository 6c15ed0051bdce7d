"""A sink for MLflow, at the server that ``MLFLOW_TRACKING_URI`` names."""

import importlib.util
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from example_plugins.services import configuration, known_ids, sweep, title
from rlforge import ConfigError, RunPaths


def allowed(key: str) -> str:
    """``key`` without the characters that MLflow refuses."""
    return re.sub(r"[^\w./: -]", "_", key)


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The keys as the command line writes them; MLflow takes 500 characters of a value."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield allowed(prefix + key), str(value)[:500]


@dataclass
class MlflowSink:
    """A run of the experiment ``experiment``. group: None is the folder of the run's sweep."""

    experiment: str
    group: str | None = None
    tags: list[str] = field(default_factory=list)

    def check(self) -> None:
        if importlib.util.find_spec("mlflow") is None:
            raise ConfigError("tracker.sinks: mlflow is not installed; pip install mlflow-skinny")
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            raise ConfigError(
                "tracker.sinks: no MLflow server is named; set MLFLOW_TRACKING_URI, for example to "
                "http://127.0.0.1:5000"
            )

    def open(self, run: RunPaths, name: str) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client, ids = MlflowClient(), known_ids(run)
        if "mlflow" in ids:
            self.id = ids["mlflow"]
            self.client.update_run(self.id, status="RUNNING")
            return
        known = self.client.get_experiment_by_name(self.experiment)
        owner = known.experiment_id if known else self.client.create_experiment(self.experiment)
        tags = dict.fromkeys(self.tags, "true")
        if group := self.group or sweep(run):
            tags["group"] = group
        self.id = self.client.create_run(owner, run_name=title(run, name), tags=tags).info.run_id
        run.trackers.write_text(json.dumps(ids | {"mlflow": self.id}))
        values = [Param(key, value) for key, value in flat(configuration(run))]
        for start in range(0, len(values), 100):  # MLflow takes 100 values in a call
            self.client.log_batch(self.id, params=values[start : start + 100])

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        points = [Metric(allowed(key), value, now, step) for key, value in scalars.items()]
        self.client.log_batch(self.id, metrics=points)

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        # The form in which MLflow draws a table.
        table = {"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}
        self.client.log_dict(self.id, table, f"{name}.json")

    def adapter(self, folder: Path) -> None:
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            self.client.log_artifact(self.id, str(file), f"adapters/{folder.name}")

    def rewind(self, step: int) -> None:
        """Nothing is deleted: points that are made again are there twice."""

    def close(self) -> None:
        self.client.set_terminated(self.id)
