"""The run's files, read once for the report."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import yaml

from rlforge.config.roots import kind_of_run, read_any
from rlforge.config.schema import RunConfig
from rlforge.config.stamp import check_stamp
from rlforge.errors import ConfigError, DamagedError, RlforgeError
from rlforge.record.analyses import Analysis, read_analyses
from rlforge.record.files import RunPaths, open_run, read_intact, read_json, value_in, values_in
from rlforge.record.game_files import GameIndex, index_games
from rlforge.record.judge import judged
from rlforge.record.results import Alarm, ExactResult, PoolSnapshot, Ratings
from rlforge.record.signals import Signal
from rlforge.record.status import is_of_start, read_summary, why_it_ended
from rlforge.system.files import reading
from rlforge.types import EvalResult, value

Row = dict[str, Any]


@value
class RunData:
    """Contents of a run's files, empty where there are none.

    policies: names; empty where there is one. games_error: why ``games`` cannot be read. damage:
    sentences on unreadable lines, and on updates and windows that files lack.
    """

    paths: RunPaths
    kind: str
    metrics: tuple[Row, ...]
    windows: tuple[Row, ...]
    comparison: Row
    decisions: Row
    evals: tuple[EvalResult, ...]
    exact: tuple[ExactResult, ...]
    alarms: tuple[Alarm, ...]
    signals: tuple[Signal, ...]
    ratings: tuple[Ratings, ...]
    pool: PoolSnapshot | None
    api: Row
    summary: Row
    config: str
    policies: tuple[str, ...]
    command: str
    games: tuple[GameIndex, ...]
    games_error: str | None
    analyses: tuple[Analysis, ...]
    damage: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.summary.get("run_name", self.paths.root.name))

    @property
    def status(self) -> str:
        return str(self.summary.get("status", "running"))

    @property
    def warnings(self) -> list[str]:
        """Sentences on why the run ended, and on what its files lack."""
        ending = why_it_ended(self.summary)
        found = [*self.damage, *self.summary.get("sinks", {}).values()]
        return [*([f"The run {ending}."] if ending else ()), *(f"{each}." for each in found)]


def load_run(run_dir: Path | str) -> RunData:
    """Read a run, with the intact lines of growing files; DamagedError for damaged JSON."""
    paths = open_run(run_dir)
    games: list[GameIndex] = []
    games_error = None
    try:
        games = index_games(paths.root)
    except RlforgeError as error:
        # A bad chunk must not hide the curves: the report shows the message instead of the games.
        games_error = str(error)
    summary = read_summary(paths)
    files = (paths.metrics, paths.windows, paths.evals, paths.exact, paths.sentinel, paths.ratings)
    # The page names what is damaged: warnings in a log would not reach its reader.
    read, found = zip(*map(read_intact, files), strict=True)
    metrics, windows, evals, exact, alarms, ratings = read
    damage = [sentence for sentence in found if sentence is not None]
    try:
        check_stamp(paths.config)
    except DamagedError as error:
        damage.append(str(error))
    results = values_in(EvalResult, evals, paths.evals)
    return RunData(
        paths=paths,
        kind=_kind(paths.root),
        metrics=tuple(metrics),
        windows=tuple(windows),
        comparison=read_json(paths.comparison),
        decisions=read_json(paths.decisions),
        evals=tuple(results),
        exact=tuple(values_in(ExactResult, exact, paths.exact)),
        alarms=tuple(values_in(Alarm, alarms, paths.sentinel)),
        signals=tuple(_signals(paths, summary, metrics, results)),
        ratings=tuple(values_in(Ratings, ratings, paths.ratings)),
        pool=value_in(PoolSnapshot, pool, paths.pool) if (pool := read_json(paths.pool)) else None,
        api=read_json(paths.api),
        summary=summary,
        config=(config := _text(paths.config)),
        policies=_policies(config),
        command=str(summary.get("command") or _text(paths.command)).strip(),
        games=tuple(games),
        games_error=games_error,
        analyses=tuple(read_analyses(paths.root)),
        damage=(*damage, *_gaps(summary, paths, metrics, windows)),
    )


def _signals(
    run: RunPaths, summary: Row, metrics: list[Row], evals: list[EvalResult]
) -> list[Signal]:
    """Signals that the records show, and those announced by it that cannot be judged."""
    # The summary is of the end or, in a run that goes on or was killed, of its start.
    progress = read_json(run.progress)
    announced = values_in(
        Signal, progress.get("signals") or summary.get("signals", []), run.summary
    )
    if len(metrics) < max(progress.get("update", 0), summary.get("updates", 0)) and (
        "signals" in progress or "signals" in summary
    ):
        return announced  # the records are cut, and would show other signals
    found = list[Signal]()
    # A condition, a kind or a value may be of a package that is not installed here.
    with contextlib.suppress(ConfigError, DamagedError):
        games = read_any(run.root, gone=True).games
        found = judged(games, metrics, evals) if games is not None else []
    # What was played without a batch is in no record.
    shown = {one.name for one in found}
    return [*found, *(one for one in announced if one.name not in shown)]


def _gaps(summary: Row, run: RunPaths, metrics: list[Row], windows: list[Row]) -> list[str]:
    """Sentences on updates and windows that the files lack."""
    if is_of_start(summary):
        return []
    sentences = []
    for file, rows, key in ((run.metrics, metrics, "updates"), (run.windows, windows, "windows")):
        made = summary.get(key, 0)
        if (missing := made - len(rows)) > 0:
            sentences.append(f"{file} lacks {missing} of the {made} {key} that summary.json counts")
    return sentences


def _kind(run_dir: Path) -> str:
    # A kind of another package may not be installed here: the page is then that of games.
    with contextlib.suppress(ConfigError, DamagedError):
        return kind_of_run(run_dir).kind
    return RunConfig.kind


def _policies(config: str) -> tuple[str, ...]:
    try:
        return tuple(yaml.safe_load(config)["policies"])
    except (yaml.YAMLError, TypeError, KeyError):  # empty, or of one policy
        return ()


def _text(path: Path) -> str:
    with reading(path, "save it as UTF-8, or move it away"):
        return path.read_text(encoding="utf-8") if path.is_file() else ""
