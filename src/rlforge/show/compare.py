"""Runs side by side: the settings in which they differ, results, means over seeds, the best."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from rlforge.config.stamp import check_stamp
from rlforge.errors import RlforgeError
from rlforge.record.files import RunPaths, open_run, read_jsonl, values_in
from rlforge.record.results import read_evals
from rlforge.record.signals import Signal, ranked
from rlforge.record.status import is_of_start, read_progress, read_summary
from rlforge.record.sweeps import FAILED, job_of, members
from rlforge.show.formatting import duration, number, percent
from rlforge.system.files import reading
from rlforge.types import EvalResult, value

#: Keys of config.yaml that say where a run is, not what it is.
_PLACES = {"run_dir"}

# The loader in C is a dozen times as fast; the one in Python is there everywhere.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: Results of a window, and of an update of a run without evaluations: key, name.
_OF_WINDOWS = {
    "policy_reward": "reward",
    "control_reward": "control",
    "reward_difference": "difference",
}
_OF_UPDATES = {"reward_mean": "reward", "validation_loss": "held-out loss", "loss": "loss"}


@value
class Result:
    """A figure with its 95 % interval, or a mean over seeds with the range.

    Example:
        >>> print(Result(mean=0.7, low=0.52, high=0.83, share=True))
        70% (52 to 83)
        >>> print(Result(mean=0.17418))
        0.174
    """

    mean: float
    low: float | None = None
    high: float | None = None
    share: bool = False

    def __str__(self) -> str:
        mean, ends = percent(self.mean), [self.low, self.high]
        if not self.share:
            mean, known = number(self.mean, 3), [number(end, 3) for end in ends]
        else:
            known = [f"{100 * (end or 0.0):.0f}" for end in ends]
        return mean if None in ends else f"{mean} ({' to '.join(known)})"


@value
class Compared:
    """A row of a comparison.

    Attributes:
        name: Path of a run below the folder of all, or the number of seeds.
        settings: Settings that differ, by key of config.yaml; overrides of a job without that file.
        results: Figures by what they measure.
        wall_s: Seconds so far.
        objective: Number that a sweep maximises; None until the run ends.
        signals: Names of the signals of a run that go on, the worst first.
    """

    name: str
    settings: Mapping[str, str]
    results: Mapping[str, Result]
    wall_s: float | None
    objective: float | None
    signals: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """Status and progress of a run."""
        return ""


@value
class ComparedRun(Compared):
    """A run, or a job that waits. done: updates or windows, of how many."""

    path: str
    status: str
    done: str
    eta_s: float | None

    @property
    def state(self) -> str:
        unknown = self.status in ("not started", "damaged")
        done = "" if unknown else f" {self.done.partition(' ')[0]}"
        left = "" if self.eta_s is None else f", ETA {duration(self.eta_s)}"
        return f"{self.status}{done}{left}"


@value
class Configuration(Compared):
    """Runs that differ at most in their seed; figures are of finished ones, else of all."""

    runs: tuple[ComparedRun, ...]


Row = TypeVar("Row", bound=Compared)


@value
class Comparison:
    """Runs side by side.

    Attributes:
        folder: The nearest that holds all.
        keys: Keys of config.yaml in which they differ.
        best: Path of the run with the highest objective.
        damaged: Files of runs that cannot be read; such runs are rows without figures.
    """

    folder: str
    keys: tuple[str, ...]
    runs: tuple[ComparedRun, ...]
    configurations: tuple[Configuration, ...]
    best: str | None
    damaged: tuple[str, ...]

    @property
    def by_configuration(self) -> list[ComparedRun]:
        return [run for one in self.configurations for run in one.runs]

    @property
    def seeds(self) -> list[Configuration]:
        """The configurations, if one has several runs."""
        several = any(len(one.runs) > 1 for one in self.configurations)
        return [*self.configurations] if several else []


def runs_of(paths: Iterable[Path]) -> list[Path]:
    """The runs among ``paths`` and below, each once; RlforgeError for a path without."""
    found: dict[Path, Path] = {}
    for path in paths:
        inside = [path] if RunPaths(root=path).is_run() else members(path)
        for run in inside or [open_run(path).root]:
            # A run may be named twice, by a link, or with its folder.
            found.setdefault(run.resolve(), run)
    return [*found.values()]


def compare(paths: Sequence[Path]) -> Comparison:
    files = [_read(path) for path in paths]
    known = [own.config or _overrides(own.path) for own in files]
    waiting = (one for own, one in zip(files, known, strict=True) if not own.config)
    differing = _differing([own.config for own in files if own.config])
    keys = [*dict.fromkeys([*differing, *(key for one in waiting for key in one)])]
    several = len({one.env_id for own in files for one in own.evals}) > 1
    folders = [path.parent for path in paths]
    try:  # the nearest folder above, as the user wrote it where that is possible
        folder = os.path.commonpath(folders) or "."
    except ValueError:  # some are absolute
        folder = os.path.commonpath([one.absolute() for one in folders])
    runs = tuple(
        _run(own, folder, {key: one[key] for key in keys if key in one}, several)
        for own, one in zip(files, known, strict=True)
    )
    groups: dict[str, list[ComparedRun]] = {}
    for run, own in zip(runs, files, strict=True):
        # Of runs without a config it is not known whether they are alike.
        same = {key: text for key, text in own.config.items() if key != "seed"} or run.path
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(run)
    best = best_of(runs)
    return Comparison(
        folder=folder,
        keys=tuple(keys),
        runs=runs,
        configurations=tuple(map(_configuration, groups.values())),
        best=None if best is None else best.path,
        damaged=tuple(own.problem for own in files if own.problem),
    )


def best_of(candidates: Sequence[Row]) -> Row | None:
    """The row with the highest objective; None where results differ in kind, or all are equal."""
    known = [one for one in candidates if one.objective is not None]
    # A win rate and a loss are on no common scale.
    kinds = {tuple(sorted(one.results)) for one in known}
    if len(kinds) != 1 or len({one.objective for one in known}) < 2:
        return None
    return max(known, key=lambda one: one.objective or 0.0)


class _Files(NamedTuple):
    """Files of a run that are compared. problem: why it cannot be read, or empty."""

    path: Path
    config: Mapping[str, str]
    evals: Sequence[EvalResult]
    summary: Mapping[str, Any]
    progress: Mapping[str, Any]
    signals: Sequence[Signal] = ()
    problem: str = ""


def _read(path: Path) -> _Files:
    run = RunPaths(root=path)
    try:
        config, evals = _settings(path), read_evals(run)
        summary, progress = read_summary(run), read_progress(run)
        file, newest = (run.progress, progress) if is_of_start(summary) else (run.summary, summary)
        signals = values_in(Signal, newest.get("signals", ()), file)
        return _Files(path, config, evals, summary, progress, signals)
    except (RlforgeError, OSError) as error:
        # One damaged run must not hide the others.
        why = str(error)
        if isinstance(error, OSError):
            why = f"{error.filename}: {error.strerror}"
        return _Files(path, {}, (), {"status": "damaged"}, {}, problem=why)


def _settings(path: Path) -> dict[str, str]:
    """Dotted keys of config.yaml with their values as text."""
    file = RunPaths(root=path).config
    if not file.is_file():
        return {}
    check_stamp(file)
    with reading(file):
        config = yaml.load(file.read_text(encoding="utf-8"), _LOADER)
        if not isinstance(config, dict):
            raise ValueError("no keys")
    return {
        key: one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
        for key, one in _flat(config).items()
        if key not in _PLACES
    }


def _overrides(path: Path) -> dict[str, str]:
    job = job_of(path)
    pairs = (one.lstrip("+").partition("=") for one in (() if job is None else job.overrides))
    return {key: text for key, _, text in pairs}


def _flat(node: Any, key: str = "") -> dict[str, Any]:
    """The values below ``node`` by dotted key; lists of mappings by their place."""
    inside: Iterable[tuple[Any, Any]]
    if isinstance(node, dict) and node:
        inside = node.items()
    # Any other list is one value, which is shown as it is written.
    elif isinstance(node, list) and node and all(isinstance(one, dict) for one in node):
        inside = enumerate(node)
    else:
        return {key: node}
    found: dict[str, Any] = {}
    for name, child in inside:
        found.update(_flat(child, f"{key}.{name}" if key else str(name)))
    return found


def _differing(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys whose values differ, most values first."""
    names = dict.fromkeys(key for config in configs for key in config)
    values = {key: len({config.get(key) for config in configs}) for key in names}
    # A key with many values separates runs best: it stays where there is room for few.
    differ = sorted((key for key in names if values[key] > 1), key=lambda key: -values[key])
    # Other kinds of runs lack keys: these need no columns where shared keys tell runs apart.
    shared = [key for key in differ if all(key in config for config in configs)]

    def combinations(keys: Sequence[str]) -> int:
        return len({tuple(config.get(key) for key in keys) for config in configs})

    return shared if combinations(shared) == combinations(differ) else differ


def _run(own: _Files, folder: str, settings: Mapping[str, str], several: bool) -> ComparedRun:
    path, run, summary, progress = own.path, RunPaths(root=own.path), own.summary, own.progress
    # A job that failed before it was a run has no summary.
    status = str(summary.get("status", "failed" if (path / FAILED).is_file() else "not started"))
    unit = "windows" if "windows" in summary or run.windows.is_file() else "updates"
    done, total = summary.get(unit, 0), summary.get(f"total_{unit}")
    wall_s = summary.get("wall_time_s")
    if is_of_start(summary):
        done, total = progress.get("update", 0), progress.get("total_updates") or total
        wall_s = progress.get("elapsed_s")
    return ComparedRun(
        name=os.path.relpath(path, folder),
        path=str(path),
        status=status,
        done=f"{done} {unit}" if total is None else f"{done}/{total} {unit}",
        settings=settings,
        results={} if own.problem else _results(run, own.evals, several),
        wall_s=wall_s,
        eta_s=progress.get("eta_s") if status == "running" else None,
        signals=tuple(one.name for one in ranked(own.signals) if one.until is None),
        objective=summary.get("objective"),
    )


def _results(run: RunPaths, evals: Sequence[EvalResult], several: bool) -> dict[str, Result]:
    """Figures of the last evaluations, window or update. several: name the environments."""
    if last := {(one.env_id, one.opponent): one for one in evals}:
        return {
            f"{env} vs {opponent}" if several else f"vs {opponent}": Result(
                mean=one.win_rate, low=one.ci95[0], high=one.ci95[1], share=True
            )
            for (env, opponent), one in sorted(last.items())
        }
    windows = read_jsonl(run.windows)
    names = _OF_WINDOWS if windows else _OF_UPDATES
    *_, row = windows or read_jsonl(run.metrics) or [{}]
    return {
        name: Result(mean=row[key], low=row.get(f"{key}_low"), high=row.get(f"{key}_high"))
        for key, name in names.items()
        if row.get(key) is not None
    }


def _configuration(runs: Sequence[ComparedRun]) -> Configuration:
    # Figures of unfinished runs are of other updates: they count where none is finished.
    counted = [run for run in runs if run.status == "done"] or [run for run in runs if run.results]
    found: dict[str, list[Result]] = {}
    for name, result in (each for run in counted for each in run.results.items()):
        found.setdefault(name, []).append(result)
    missing = f" of {len(runs)}" if len(counted) != len(runs) else ""
    return Configuration(
        name=f"n={len(counted)}{missing}",
        settings={key: text for key, text in runs[0].settings.items() if key != "seed"},
        runs=tuple(runs),
        results={name: _over_seeds(results) for name, results in found.items()},
        wall_s=_mean([run.wall_s for run in counted]),
        objective=_mean([run.objective for run in counted]),
    )


def _over_seeds(results: Sequence[Result]) -> Result:
    means = [result.mean for result in results]
    # Intervals of single runs are over games: they do not tell how seeds differ.
    low, high = (min(means), max(means)) if len(means) > 1 else (None, None)
    return Result(mean=statistics.fmean(means), low=low, high=high, share=results[0].share)


def _mean(figures: Iterable[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return statistics.fmean(known) if known else None
