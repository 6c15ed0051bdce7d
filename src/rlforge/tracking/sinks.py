"""Sinks of metrics: always a JSONL file; TensorBoard, Weights & Biases and others by config."""

from __future__ import annotations

import netrc
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import yaml

from rlforge.config.plugins import SINKS
from rlforge.config.rules import Text
from rlforge.config.schema import TrackerConfig
from rlforge.config.stacks import build_stack
from rlforge.errors import ConfigError
from rlforge.system.packages import need_packages
from rlforge.tracking.files import JsonlFile, RunPaths


class Sink(Protocol):
    """Takes the means of one flush: a dataclass, whose fields are its parameters in YAML.

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
        """Called once, before any other method: the run directory, and the experiment's name."""
        ...

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record ``scalars`` (full namespaced keys) at ``step`` learner updates."""
        ...

    def rewind(self, step: int) -> None:
        """Drop what was recorded after ``step``, where the sink can; the run continues there."""
        ...

    def close(self) -> None:
        """Write everything to disk (or to the server) and close."""
        ...


@dataclass
class JsonlSink:
    """``scalars.jsonl``: one object per flush; every run has it."""

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
    """TensorBoard events under ``tensorboard/`` of the run directory."""

    def open(self, run: RunPaths, name: str) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2, summary_pb2
        self._writer = EventFileWriter(str(run.root / "tensorboard"))

    def check(self) -> None:
        """Raises ConfigError where TensorBoard is not installed."""
        need_packages("tracker.tensorboard", "tensorboard", "tensorboard")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        entries = [
            self._summary.Summary.Value(tag=key, simple_value=number)
            for key, number in scalars.items()
        ]
        summary = self._summary.Summary(value=entries)
        self._add(self._event.Event(step=step, wall_time=time.time(), summary=summary))

    def rewind(self, step: int) -> None:
        # On a START event, TensorBoard drops all points at and after its step.
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._add(self._event.Event(step=step + 1, wall_time=time.time(), session_log=start))

    def _add(self, event: Any) -> None:
        self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


@dataclass
class WandbSink:
    """A Weights & Biases run; in offline mode it is stored below the run directory.

    ``wandb sync RUN_DIR/wandb/offline-run-*`` uploads it later.
    """

    project: Text
    mode: Literal["online", "offline"] = "offline"

    def open(self, run: RunPaths, name: str) -> None:
        # wandb reads it when it is imported; by default even offline runs contact an error server.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        config = yaml.safe_load(run.config.read_text()) if run.config.is_file() else {}
        self._run = wandb.init(
            project=self.project,
            name=name,
            dir=str(run.root),
            mode=self.mode,
            config=config,
            settings=wandb.Settings(silent=True, console="off"),
        )
        # W&B's own step counts log calls and must rise: the x axis is the update instead.
        self._run.define_metric("update")
        self._run.define_metric("*", step_metric="update")

    def check(self) -> None:
        """Raises ConfigError where wandb is not installed, or has no key to go online."""
        need_packages("tracker.wandb_project", "wandb", "wandb")
        if self.mode == "online" and not _has_wandb_key():
            raise ConfigError(
                "tracker.wandb_mode: online needs a key; set WANDB_API_KEY, run `wandb login`, "
                "or take tracker.wandb_mode=offline"
            )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self._run.log({**scalars, "update": step})

    def rewind(self, step: int) -> None:
        # A resumed run is a new W&B run, which begins at ``step``.
        return

    def close(self) -> None:
        self._run.finish()


def make_sinks(config: TrackerConfig, run: RunPaths, name: str) -> list[Sink]:
    """The open sinks of a run. Raises ConfigError as ``check_sinks``."""
    sinks = check_sinks(config)
    for sink in sinks:
        sink.open(run, name)
    return sinks


def further_sinks(config: TrackerConfig) -> list[Sink]:
    """Those of ``tracker.sinks``; ConfigError for an unknown one and a wrong parameter."""
    return build_stack(config.sinks, SINKS, "tracker.sinks")


def check_sinks(config: TrackerConfig) -> list[Sink]:
    """The sinks of a run, not opened, after a check that they can work.

    Raises ConfigError where a package is missing, and for W&B without a key to go online.
    """
    sinks = [*_own_sinks(config), *further_sinks(config)]
    for sink in sinks:
        if (check := getattr(sink, "check", None)) is not None:
            check()
    return sinks


def _own_sinks(config: TrackerConfig) -> list[Sink]:
    """Those that have keys of their own."""
    sinks: list[Sink] = [JsonlSink()]
    if config.tensorboard:
        sinks.append(TensorBoardSink())
    if config.wandb_project is not None:
        sinks.append(WandbSink(project=config.wandb_project, mode=config.wandb_mode))
    return sinks


def _has_wandb_key() -> bool:
    """Whether wandb finds a key by itself; without one it asks at the terminal."""
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
