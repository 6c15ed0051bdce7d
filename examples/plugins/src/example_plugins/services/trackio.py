"""A sink for trackio, which keeps runs on this machine; ``trackio show`` draws them."""

import importlib.util
import json
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from example_plugins.services import configuration, known_ids, sweep, title
from rlforge import ConfigError, RunPaths


@dataclass
class TrackioSink:
    """A run of the project ``project``. group: None is the folder of the run's sweep."""

    project: str
    group: str | None = None

    def check(self) -> None:
        if importlib.util.find_spec("trackio") is None:
            raise ConfigError("tracker.sinks: trackio is not installed; pip install trackio")

    def open(self, run: RunPaths, name: str) -> None:
        import trackio

        self.trackio, ids = trackio, known_ids(run)
        if "trackio" not in ids:  # a name is the identity of a run
            ids["trackio"] = f"{title(run, name)} {secrets.token_hex(4)}"
            run.trackers.write_text(json.dumps(ids))
        self.run = trackio.init(
            project=self.project,
            name=ids["trackio"],
            group=self.group or sweep(run),
            config=configuration(run),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self.run.log(dict(scalars), step=step)

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        table = self.trackio.Table(list(rows[0]), data=[list(row.values()) for row in rows])
        self.run.log({f"tables/{name}": table}, step=step)

    def rewind(self, step: int) -> None:
        """Nothing is deleted: points that are made again are there twice."""

    def close(self) -> None:
        self.run.finish()

    def next_step(self) -> str:
        return f"trackio show --project {shlex.quote(self.project)}"
