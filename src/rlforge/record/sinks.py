"""Sinks of metrics: always a JSONL file; TensorBoard, W&B and others by configuration."""

from __future__ import annotations

import logging
import netrc
import os
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import yaml

from rlforge.config.plugins import SINKS
from rlforge.config.rules import Text
from rlforge.config.schema import TrackerConfig
from rlforge.config.stacks import build_stack
from rlforge.errors import ConfigError, first_line
from rlforge.record.files import JsonlFile, RunPaths, read_json, read_jsonl, write_json
from rlforge.record.metrics import NAMESPACES
from rlforge.record.sweeps import job_of
from rlforge.system.network import check_proxies, spare_loopback, through
from rlforge.system.packages import need_packages

log = logging.getLogger(__name__)

Row = Mapping[str, Any]

#: Seconds after which the server of W&B counts as out of reach.
_WANDB_TIMEOUT_S = 10.0


class Sink(Protocol):
    """Takes the metrics of a run: a dataclass, whose fields are its parameters in YAML.

    Further methods are optional: ``check()`` raises ConfigError before the run starts;
    ``table(step, name, rows)`` replaces a table (``ratings``, ``matches``, at the end ``games``);
    ``adapter(folder)`` keeps the files of a checkpoint, without its state; ``next_step()`` returns
    a command for the user after the run, or None.

    Example:
        >>> @dataclass
        ... class LastLoss:
        ...     file_name: str = "loss.txt"
        ...     def open(self, run: RunPaths, name: str) -> None:
        ...         self.path = run.root / self.file_name
        ...     def write(self, step: int, scalars: Mapping[str, float]) -> None:
        ...         self.path.write_text(str(scalars.get("learner/loss")))
        ...     def rewind(self, step: int) -> None: ...
        ...     def close(self) -> None: ...
        >>> sink: Sink = LastLoss(file_name="last.txt")
    """

    def open(self, run: RunPaths, name: str) -> None:
        """Called once, before any other method. name: of the experiment."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record metrics at an update; that of an evaluation may be below an earlier one."""

    def rewind(self, step: int) -> None:
        """Drop what was recorded after ``step``, where the sink can; the run goes on there."""

    def close(self) -> None:
        """Write everything to disk or server, and close."""


@dataclass
class JsonlSink:
    """``scalars.jsonl``, which every run has."""

    def open(self, run: RunPaths, name: str) -> None:
        self._file = JsonlFile(run.scalars)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self._file.append({"step": step, "unix_time": time.time(), **scalars})

    def rewind(self, step: int) -> None:
        self._file.rewind(step)

    def close(self) -> None:
        self._file.close()


@dataclass
class TensorBoardSink:
    """TensorBoard events below ``tensorboard/`` of the run."""

    def open(self, run: RunPaths, name: str) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2, summary_pb2
        self._writer = EventFileWriter(str(run.root / "tensorboard"))

    def check(self) -> None:
        need_packages("tracker.tensorboard", "tensorboard", "tensorboard")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        entries = [
            self._summary.Summary.Value(tag=key, simple_value=number)
            for key, number in scalars.items()
        ]
        summary = self._summary.Summary(value=entries)
        self._add(self._event.Event(step=step, wall_time=time.time(), summary=summary))

    def rewind(self, step: int) -> None:
        # On a START event TensorBoard drops all points at and after its step.
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._add(self._event.Event(step=step + 1, wall_time=time.time(), session_log=start))

    def _add(self, event: Any) -> None:
        self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


@dataclass
class WandbSink:
    """A Weights & Biases run, offline below the run directory; group: None is the run's sweep."""

    project: Text
    mode: Literal["online", "offline"] = "offline"
    group: str | None = None
    tags: list[str] = field(default_factory=list)

    def open(self, run: RunPaths, name: str) -> None:
        spare_loopback(os.environ.get("WANDB_BASE_URL"))
        self._wandb, self._root = _wandb(), run.root
        # W&B deletes no points. By key, until when earlier parts of the run gave it to every sink,
        # read before a rewind: what a resumed run makes again is left out.
        self._sent: dict[str, int] = {}
        for row in read_jsonl(run.scalars):
            for key in row:
                self._sent[key] = max(row["step"], self._sent.get(key, row["step"]))
        # A resumed run goes on under the id that it had.
        ids = {"wandb": secrets.token_hex(4), **read_json(run.trackers)}
        write_json(run.trackers, ids)
        known, job = run.config.is_file(), job_of(run.root)
        self._run = self._wandb.init(
            project=self.project,
            id=ids["wandb"],
            resume="allow",
            # W&B refuses longer names.
            name=" ".join([name, *(job.overrides if job else ())])[:128],
            group=self.group or (run.root.absolute().parent.name if job else None),
            tags=self.tags,
            dir=str(run.root),
            mode=self.mode,
            config=yaml.safe_load(run.config.read_text(encoding="utf-8")) if known else {},
            settings=self._wandb.Settings(silent=True, console="off"),
        )
        # W&B's own step counts log calls and must rise: the x axis is the update instead.
        for axis in _AXES:
            self._run.define_metric(axis)
        for namespace in NAMESPACES:
            self._run.define_metric(f"{namespace}*", step_metric=_axis(namespace))

    def check(self) -> None:
        """Raise ConfigError where wandb is not installed, has no key, or no server answers it."""
        need_packages("tracker.wandb_project", "wandb", "wandb")
        if self.mode != "online":
            return
        if not _has_wandb_key():
            raise ConfigError(
                "tracker.wandb_mode: online needs a key; set WANDB_API_KEY, run `wandb login`, "
                "or take tracker.wandb_mode=offline"
            )
        import httpx

        server = os.environ.get("WANDB_BASE_URL") or _wandb().Settings().base_url
        spare_loopback(server)
        check_proxies()
        try:  # wandb itself would try for 90 seconds
            httpx.head(server, timeout=_WANDB_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise ConfigError(
                f"tracker.wandb_mode: {server} does not answer{through(server)}: "
                f"{first_line(error)}; mend this, or take tracker.wandb_mode=offline"
            ) from error

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        unsent = {key: scalars[key] for key in scalars if step > self._sent.get(key, step - 1)}
        for axis in _AXES:
            if point := {key: unsent[key] for key in unsent if _axis(key) == axis}:
                self._run.log({**point, axis: step})

    def table(self, step: int, name: str, rows: Sequence[Row]) -> None:
        table = self._wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self._run.log({f"tables/{name}": table, "update": step})

    def adapter(self, folder: Path) -> None:
        artifact = self._wandb.Artifact(f"adapter-{self._run.id}", type="model")
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            artifact.add_file(str(file))
        self._run.log_artifact(artifact, aliases=["latest", folder.name])

    def rewind(self, step: int) -> None:
        """Delete nothing: ``write`` leaves out what is made again."""

    def close(self) -> None:
        self._run.finish()
        # Offline, W&B's process writes the file after ``finish`` has returned: wait for its end.
        self._wandb.teardown()

    def next_step(self) -> str | None:
        """The command that uploads an offline run, with its parts before a resume, or None."""
        if self.mode == "online":
            return None
        return f"wandb sync {shlex.quote(str(self._root))}/wandb/offline-run-*"


#: Metrics that are x axes in W&B: of all but evaluations, and of these.
_AXES = ("update", "evaluated_update")


def _axis(key: str) -> str:
    # Evaluations come late, at the step of the version that played: their axis is their own.
    return _AXES[key.startswith(("evaluation-", "exact-"))]


# ---------------------------------------------------------------- the sinks of a run


class Sinks:
    """The open sinks of a run; a sink that failed is asked again at the next call."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._failure: Exception | None = None

    @property
    def take_tables(self) -> bool:
        """Whether one of them shows tables."""
        return any(hasattr(sink, "table") for sink in self._sinks)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        if scalars:
            self._each("write", step, scalars)

    def table(self, step: int, name: str, rows: Sequence[Row]) -> None:
        if rows:
            self._each("table", step, name, rows)

    def keep(self, versions: Sequence[Path]) -> None:
        """Hand over checkpoints to the sinks that take them."""
        for folder in versions:
            self._each("adapter", folder)

    def rewind(self, step: int) -> None:
        self._each("rewind", step)

    def close(self) -> list[str]:
        """Close all; returns commands for the user, or raises the first failure."""
        self._each("close")
        steps = self._each("next_step")
        if self._failure is not None:
            raise self._failure
        return [step for step in steps if step is not None]

    def _each(self, method: str, *given: Any) -> list[Any]:
        returned = []
        for sink in self._sinks:
            if (act := getattr(sink, method, None)) is None:
                continue
            try:
                returned.append(act(*given))
            except Exception as error:  # a service must not end the training
                log.warning("%s failed: %r", type(sink).__name__, error)
                self._failure = self._failure or error
        return returned


def make_sinks(config: TrackerConfig, run: RunPaths, name: str) -> list[Sink]:
    """The open sinks of a run. Raises ConfigError as ``check_sinks``."""
    # All are checked before one is opened: a wrong one leaves no empty run at a service.
    sinks = check_sinks(config)
    for sink in sinks:
        sink.open(run, name)
    return sinks


def further_sinks(config: TrackerConfig) -> list[Sink]:
    """Make the sinks of ``tracker.sinks``; ConfigError for wrong names and parameters."""
    return build_stack(config.sinks, SINKS, "tracker.sinks")


def check_sinks(config: TrackerConfig) -> list[Sink]:
    """The sinks of a run, not opened; ConfigError where a package or W&B's key is missing."""
    # Always: after a resume W&B's sink reads in its file what it has sent already.
    sinks: list[Sink] = [JsonlSink()]
    if config.tensorboard:
        sinks.append(TensorBoardSink())
    if config.wandb_project is not None:
        project, mode = config.wandb_project, config.wandb_mode
        sinks.append(WandbSink(project, mode, group=config.group, tags=config.tags))
    sinks += further_sinks(config)
    for sink in sinks:
        if (check := getattr(sink, "check", None)) is not None:
            check()
    return sinks


def _wandb() -> Any:
    # wandb reads it when it is imported; by default even offline runs contact an error server.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    return wandb


def _has_wandb_key() -> bool:
    # Without one wandb would ask at the terminal.
    if os.environ.get("WANDB_API_KEY"):
        return True
    file = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    if not file.is_file():
        return False
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    host = server.partition("://")[2].partition("/")[0]
    try:
        return netrc.netrc(str(file)).authenticators(host) is not None
    except netrc.NetrcParseError as error:
        raise ConfigError(f"tracker.wandb_mode: {file} cannot be read ({error})") from error
