"""Sinks of metrics: always a JSONL file; TensorBoard, W&B and others by configuration."""

from __future__ import annotations

import contextlib
import logging
import netrc
import os
import secrets
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import yaml

from rlforge.config.plugins import SINKS
from rlforge.config.rules import Text, is_address
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

#: Seconds for which a sink may hold points before they are on disk or at its service: W&B's
#: process writes every 15.
HELD_S = 60.0

#: Seconds after which a sink that failed is asked again, at least.
ASK_AGAIN_S = 60.0

#: A sink that takes longer to fail is not tried again at the end of the run.
_QUICK_S = 10.0

#: Seconds after which the server of W&B counts as out of reach.
_WANDB_TIMEOUT_S = 10.0


class Sink(Protocol):
    """Takes the metrics of a run: a dataclass, whose fields are its parameters in YAML.

    Further methods are optional: ``check()`` raises ConfigError before the run starts;
    ``table(step, name, rows)`` replaces a table (``ratings``, ``matches``, at the end ``games``);
    ``adapter(folder)`` keeps the files of a checkpoint, without its state; ``next_step()`` returns
    a command for the user after the run, or None. ``durable = True`` says that points are on disk
    when ``write`` returns: other sinks get those of the last minute before a kill twice.

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
        """Called before any other method, and again after a failure. name: of the experiment."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record metrics at an update; that of an evaluation may be below an earlier one."""

    def rewind(self, step: int) -> None:
        """Drop what was recorded after ``step``, where the sink can; the run goes on there."""

    def close(self) -> None:
        """Write everything to disk or server, and close."""


@dataclass
class JsonlSink:
    """``scalars.jsonl``, which every run has."""

    durable: ClassVar[bool] = True

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

    durable: ClassVar[bool] = True

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
        if not is_address(server):
            raise ConfigError(f"WANDB_BASE_URL={server}: must be an http:// or https:// address")
        spare_loopback(server)
        check_proxies()
        try:  # wandb itself would try for 90 seconds
            httpx.head(server, timeout=_WANDB_TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConfigError(
                f"tracker.wandb_mode: {server} does not answer{through(server)}: "
                f"{first_line(error)}; mend this, or take tracker.wandb_mode=offline"
            ) from error

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        for axis in _AXES:
            if point := {key: scalars[key] for key in scalars if _axis(key) == axis}:
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
        """Delete nothing, which W&B cannot: points that are made again are there twice."""

    def close(self) -> None:
        try:
            self._run.finish()
        finally:
            # Offline, W&B's process writes the file after ``finish`` has returned: wait for its
            # end. Where it has died, another one starts only after this.
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


@dataclass
class _Fed:
    """A sink with what it is known to have.

    Attributes:
        sent: Until when it has all points, in seconds of the wall clock.
        failed: Whether it does not answer.
        took: Seconds after which it failed.
        ask_again: When it is asked next, by the clock of ``Sinks``.
    """

    sink: Sink
    name: str
    sent: float = 0.0
    opened: bool = False
    failed: bool = False
    took: float = 0.0
    ask_again: float = 0.0

    @property
    def durable(self) -> bool:
        return bool(getattr(self.sink, "durable", False))


class Sinks:
    """The sinks of a run. One that fails is a line for the user, and never ends the run.

    It is opened again later, and gets all that it lacks by then; so does one of a resumed run.
    ``trackers.json`` says until when each has its points.

    Args:
        sinks: Not opened; the first keeps ``scalars.jsonl``, from which others get what they lack.
        name: Name of the experiment.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        run: RunPaths,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._name, self._clock = run, name, clock
        self._said = list[str]()
        #: How sinks failed, by name.
        self.failures: dict[str, str] = {}
        #: Times and steps of the points that sinks may hold.
        self._held = deque[tuple[float, int]]()
        self._step = 0
        known = (
            {} if all(getattr(one, "durable", False) for one in sinks) else read_json(self._file)
        )
        # A run of an earlier version has no marks: what it gave to sinks counts as sent.
        marks = known.get("sent", {}) if "sent" in known or not known else None
        self._fed = list[_Fed]()
        for sink in sinks:
            name = type(sink).__name__.removesuffix("Sink")
            name += f"-{count}" if (count := sum(one.name == name for one in self._fed)) else ""
            sent = time.time() if marks is None else marks.get(name, 0.0)
            self._fed.append(_Fed(sink, name, sent))
        for one in self._fed:
            self._open(one)
        self._keep_marks()

    @property
    def _file(self) -> Path:
        return self._run.trackers

    @property
    def take_tables(self) -> bool:
        """Whether one of them shows tables."""
        return any(hasattr(one.sink, "table") for one in self._fed)

    def said(self) -> list[str]:
        """Lines for the user since the last call."""
        said, self._said = self._said, []
        return said

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        if not scalars:
            return
        self._step = step
        self._held.append((time.time(), step))
        while self._held[0][0] < time.time() - HELD_S:
            self._held.popleft()
        for one in self._fed:
            if not one.failed or one.durable:
                self._ask(one, "write", step, scalars)
            elif self._clock() >= one.ask_again:
                self._recover(one)

    def table(self, step: int, name: str, rows: Sequence[Row]) -> None:
        if rows:
            self._each("table", step, name, rows)

    def keep(self, versions: Sequence[Path]) -> None:
        """Hand over checkpoints to the sinks that take them."""
        for folder in versions:
            self._each("adapter", folder)

    def rewind(self, step: int) -> None:
        """Go on after ``step``: later points are dropped, and made again."""
        self._step = step
        self._each("rewind", step)
        for one in self._fed:
            if not one.durable and not one.failed:
                self._send_again(one)

    def mark(self) -> None:
        """Note until when the sinks surely have their points."""
        for one in self._fed:
            if not one.failed:
                one.sent = max(one.sent, time.time() - HELD_S)
        self._keep_marks()

    def close(self) -> list[str]:
        """Close all; returns lines for the user, with commands."""
        for one in self._fed:
            # The last chance of one that fails at once; another would hold up the run's end.
            if one.failed and not one.durable and one.took < _QUICK_S:
                self._recover(one)
            if one.opened and self._ask(one, "close")[0] and not one.failed:
                one.sent = time.time()
        self._keep_marks()
        steps = [step for step in self._each("next_step") if step is not None]
        return [*self.said(), *steps]

    def _open(self, one: _Fed) -> bool:
        if not one.opened:
            one.opened = self._ask(one, "open", self._run, self._name)[0]
        return one.opened

    def _recover(self, one: _Fed) -> None:
        """Try a sink that failed from the start; it may have lost its connection."""
        if one.opened:
            with contextlib.suppress(Exception, SystemExit):
                one.sink.close()
            one.opened = False
        if self._open(one) and self._send_again(one):
            one.failed, again = False, "answers again, and has all points"
            self._said.append(f"{one.name} {again}")
            self.failures[one.name] += f"; it {again}"

    def _send_again(self, one: _Fed) -> bool:
        """Give a sink the points that it may lack; whether it took them."""
        for row in read_jsonl(self._run.scalars):
            if row.get("unix_time", 0.0) > one.sent and "step" in row:
                scalars = {key: row[key] for key in row if key not in ("step", "unix_time")}
                if not self._ask(one, "write", row["step"], scalars)[0]:
                    return False
        return True

    def _keep_marks(self) -> None:
        if marks := {one.name: one.sent for one in self._fed if not one.durable}:
            write_json(self._file, {**read_json(self._file), "sent": marks})

    def _each(self, method: str, *given: Any) -> list[Any]:
        asked = [self._ask(one, method, *given) for one in self._fed if one.opened]
        return [answer for done, answer in asked if done]

    def _ask(self, one: _Fed, method: str, *given: Any) -> tuple[bool, Any]:
        """Whether a sink did what it was asked, and its answer."""
        act, begun = getattr(one.sink, method, None), self._clock()
        if act is None:
            return True, None
        try:
            return True, act(*given)
        except (Exception, SystemExit) as error:  # a service must not end the training
            if method == "open" and isinstance(error, ConfigError):
                raise
            log.warning("%s failed: %r", one.name, error)
            # One that takes minutes to fail must not hold up the others all the time.
            one.took = self._clock() - begun
            one.ask_again = self._clock() + max(ASK_AGAIN_S, 10 * one.took)
            if not one.failed:
                one.failed = True
                at: int = given[0] if method == "write" else self._step
                held = [step for when, step in self._held if when > one.sent and not one.durable]
                self.failures[one.name] = (
                    f"{one.name} failed at step {at} ({first_line(error)}): points from step "
                    f"{min(held, default=at)} on may be missing there"
                )
                kept = "" if one.durable else "; scalars.jsonl has all, for a later try or --resume"
                self._said.append(f"{self.failures[one.name]}{kept}")
            return False, None


def further_sinks(config: TrackerConfig) -> list[Sink]:
    """Make the sinks of ``tracker.sinks``; ConfigError for wrong names and parameters."""
    return build_stack(config.sinks, SINKS, "tracker.sinks")


def check_sinks(config: TrackerConfig) -> list[Sink]:
    """The sinks of a run, not opened; ConfigError where a package or W&B's key is missing."""
    # Always, and first: from its file the others get what they lack.
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
