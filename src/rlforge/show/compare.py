"""Runs side by side, those that differ only in their seed together: settings, results, the best."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rlforge.errors import RlforgeError
from rlforge.record.files import RunPaths, open_run, read_jsonl
from rlforge.record.results import read_evals
from rlforge.record.status import read_progress, read_summary
from rlforge.record.sweeps import FAILED, job_of, members
from rlforge.types import EvalResult, value

#: Keys of config.yaml that say where a run is, not what it is.
_PLACES = {"run_dir"}

#: A dozen times as fast as the one in Python, which is there everywhere.
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
    """A figure with its 95 % interval, or a mean over seeds with the range. share: of 0 to 1."""

    name: str
    mean: float
    low: float | None = None
    high: float | None = None
    share: bool = False


@value
class ComparedRun:
    """A run, or a job that waits.

    done: updates or windows, of how many. settings: those that differ between the runs, as text, by
    key of config.yaml; of a job without one, its overrides. eta_s: seconds left, of a running one.
    objective: what a sweep maximises, None until the run ends.
    """

    path: str
    status: str
    done: str
    settings: Mapping[str, str]
    results: tuple[Result, ...]
    wall_s: float | None
    eta_s: float | None
    objective: float | None


@value
class Configuration:
    """Runs that differ at most in their seed; figures are of those that are done, else of all."""

    settings: Mapping[str, str]
    runs: tuple[ComparedRun, ...]
    counted: int
    results: tuple[Result, ...]
    wall_s: float | None
    objective: float | None


Row = Mapping[str, Any]

T = TypeVar("T", ComparedRun, Configuration)


@value
class Comparison:
    """Several runs.

    paths: as they were given. folder: the nearest that holds all. keys: in which they differ.
    best: path.
    """

    paths: tuple[str, ...]
    folder: str
    keys: tuple[str, ...]
    configurations: tuple[Configuration, ...]
    best: str | None

    @property
    def runs(self) -> list[ComparedRun]:
        """All runs, by configuration."""
        return [run for one in self.configurations for run in one.runs]

    @property
    def seeds(self) -> list[Configuration]:
        """The configurations, where one of them has several runs."""
        several = any(len(one.runs) > 1 for one in self.configurations)
        return [*self.configurations] if several else []

    def name(self, run: ComparedRun) -> str:
        """The path of a run, from ``folder`` on."""
        return os.path.relpath(run.path, self.folder)


def runs_of(paths: Iterable[Path]) -> list[Path]:
    """The runs among ``paths`` and below them, each once; RlforgeError where a path has none."""
    found: dict[Path, Path] = {}
    for path in paths:
        inside = [path] if RunPaths(root=path).is_run() else members(path)
        for run in inside or [open_run(path).root]:
            found.setdefault(run.resolve(), run)
    return [*found.values()]


def compare(paths: Sequence[Path]) -> Comparison:
    """The comparison of runs, at any moment; RlforgeError for damaged YAML or JSON."""
    configs = [_settings(path) for path in paths]
    waiting = [
        {} if config else _overrides(path) for path, config in zip(paths, configs, strict=True)
    ]
    differing = _differing([config for config in configs if config])
    keys = [*dict.fromkeys([*differing, *(key for own in waiting for key in own)])]
    evals = [read_evals(RunPaths(root=path)) for path in paths]
    several = len({one.env_id for own in evals for one in own}) > 1
    groups: dict[str, list[ComparedRun]] = {}
    for path, config, own, rows in zip(paths, configs, waiting, evals, strict=True):
        known = {**own, **config}
        settings = {key: known[key] for key in keys if key in known}
        same = {key: text for key, text in config.items() if key != "seed"} or str(path)
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(
            _run(path, settings, rows, several)
        )
    configurations = tuple(map(_configuration, groups.values()))
    best = best_of([run for one in configurations for run in one.runs])
    folders = [path.parent for path in paths]
    try:  # the nearest folder above, as the user wrote it where that is possible
        folder = os.path.commonpath(folders) or "."
    except ValueError:  # some are absolute
        folder = os.path.commonpath([one.absolute() for one in folders])
    return Comparison(
        paths=tuple(map(str, paths)),
        folder=folder,
        keys=tuple(keys),
        configurations=configurations,
        best=None if best is None else best.path,
    )


def best_of(candidates: Sequence[T]) -> T | None:
    """The one with the highest objective; None where results differ in kind, or all are equal."""
    known = [one for one in candidates if one.objective is not None]
    kinds = {tuple(sorted(result.name for result in one.results)) for one in known}
    if len(kinds) != 1 or len({one.objective for one in known}) < 2:
        return None
    return max(known, key=lambda one: one.objective or 0.0)


def _settings(path: Path) -> dict[str, str]:
    """The keys of config.yaml, dotted, with their values as text; empty where there is none."""
    file = RunPaths(root=path).config
    if not file.is_file():
        return {}
    try:
        config = yaml.load(file.read_text(encoding="utf-8"), _LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RlforgeError(f"{file} is damaged ({str(error).splitlines()[0]})") from error
    return {
        key: one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
        for key, one in _flat(config).items()
        if key not in _PLACES
    }


def _overrides(path: Path) -> dict[str, str]:
    """Overrides that set a job of a sweep apart; empty for other runs."""
    job = job_of(path)
    pairs = (one.lstrip("+").partition("=") for one in (() if job is None else job.overrides))
    return {key: text for key, _, text in pairs}


def _flat(node: Any, key: str = "") -> dict[str, Any]:
    """The values below ``node`` by dotted key; lists of mappings by their place."""
    inside: Iterable[tuple[Any, Any]]
    if isinstance(node, dict) and node:
        inside = node.items()
    elif isinstance(node, list) and node and all(isinstance(one, dict) for one in node):
        inside = enumerate(node)
    else:
        return {key: node}
    found: dict[str, Any] = {}
    for name, child in inside:
        found.update(_flat(child, f"{key}.{name}" if key else str(name)))
    return found


def _differing(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys whose values differ, those with most values first.

    Keys that only some have, with another choice, are left out where the others tell runs apart.
    """
    names = dict.fromkeys(key for config in configs for key in config)
    values = {key: len({config.get(key) for config in configs}) for key in names}
    differ = sorted((key for key in names if values[key] > 1), key=lambda key: -values[key])
    shared = [key for key in differ if all(key in config for config in configs)]

    def combinations(keys: Sequence[str]) -> int:
        return len({tuple(config.get(key) for key in keys) for config in configs})

    return shared if combinations(shared) == combinations(differ) else differ


def _run(
    path: Path, settings: Mapping[str, str], evals: Sequence[EvalResult], several: bool
) -> ComparedRun:
    run = RunPaths(root=path)
    summary, progress = read_summary(run), read_progress(run)
    status = str(summary.get("status", "failed" if (path / FAILED).is_file() else "not started"))
    unit = "windows" if "windows" in summary or run.windows.is_file() else "updates"
    done, total = summary.get(unit, 0), summary.get(f"total_{unit}")
    if status in ("running", "killed"):  # summary.json is of an earlier part
        done, total = progress.get("update", 0), progress.get("total_updates") or total
    running = status == "running"
    return ComparedRun(
        path=str(path),
        status=status,
        done=f"{done} {unit}" if total is None else f"{done}/{total} {unit}",
        settings=settings,
        results=tuple(_results(run, evals, several)),
        wall_s=progress.get("elapsed_s") if running else summary.get("wall_time_s"),
        eta_s=progress.get("eta_s") if running else None,
        objective=summary.get("objective"),
    )


def _results(run: RunPaths, evals: Sequence[EvalResult], several: bool) -> list[Result]:
    """Figures of the last evaluations, window or update. several: name the environments, too."""
    last = {(one.env_id, one.opponent): one for one in evals}
    if last:
        return [
            Result(
                name=f"{env} vs {opponent}" if several else f"vs {opponent}",
                mean=one.win_rate,
                low=one.ci95[0],
                high=one.ci95[1],
                share=True,
            )
            for (env, opponent), one in sorted(last.items())
        ]
    windows = read_jsonl(run.windows)
    names = _OF_WINDOWS if windows else _OF_UPDATES
    *_, row = windows or read_jsonl(run.metrics) or [{}]
    return [
        Result(name=name, mean=row[key], low=row.get(f"{key}_low"), high=row.get(f"{key}_high"))
        for key, name in names.items()
        if row.get(key) is not None
    ]


def _configuration(runs: Sequence[ComparedRun]) -> Configuration:
    counted = [run for run in runs if run.status == "done"] or [run for run in runs if run.results]
    found: dict[str, list[Result]] = {}
    for result in (result for run in counted for result in run.results):
        found.setdefault(result.name, []).append(result)
    results = []
    for name, of_runs in found.items():
        means = [result.mean for result in of_runs]
        low, high = (min(means), max(means)) if len(means) > 1 else (None, None)
        mean, share = statistics.fmean(means), of_runs[0].share
        results.append(Result(name=name, mean=mean, low=low, high=high, share=share))
    return Configuration(
        settings={key: text for key, text in runs[0].settings.items() if key != "seed"},
        runs=tuple(runs),
        counted=len(counted),
        results=tuple(results),
        wall_s=_mean(counted, lambda run: run.wall_s),
        objective=_mean(counted, lambda run: run.objective),
    )


def _mean(
    runs: Sequence[ComparedRun], figure: Callable[[ComparedRun], float | None]
) -> float | None:
    known = [number for run in runs if (number := figure(run)) is not None]
    return statistics.fmean(known) if known else None
