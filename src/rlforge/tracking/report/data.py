"""The run's files, read once for the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlforge.errors import RlforgeError
from rlforge.tracking.files import RunPaths, open_run, read_json, read_jsonl
from rlforge.tracking.game_files import GameIndex, index_games
from rlforge.types import value

Row = dict[str, Any]


@value
class RunData:
    """Contents of a run's files; empty for those that are not there yet.

    games_error: why the games could not be read; ``games`` is empty then.
    """

    paths: RunPaths
    metrics: tuple[Row, ...]
    windows: tuple[Row, ...]
    comparison: Row
    decisions: Row
    evals: tuple[Row, ...]
    ratings: tuple[Row, ...]
    pool: Row
    summary: Row
    config: str
    command: str
    games: tuple[GameIndex, ...]
    games_error: str | None

    @property
    def name(self) -> str:
        """The run's name, or its folder's."""
        return str(self.summary.get("run_name", self.paths.root.name))

    @property
    def continuous(self) -> bool:
        """Whether it is a continuous run, which trains on windows of a market."""
        return self.paths.windows.is_file()


def load_run(run_dir: Path | str) -> RunData:
    """Read a run.

    Raises:
        RlforgeError: it is not a run, or one of its JSON files is damaged.
    """
    paths = open_run(run_dir)
    games: list[GameIndex] = []
    games_error = None
    try:
        games = index_games(paths.root)
    except RlforgeError as error:
        # A bad chunk must not hide the curves: the report shows the message instead of the games.
        games_error = str(error)
    summary = read_json(paths.summary)
    return RunData(
        paths=paths,
        metrics=tuple(read_jsonl(paths.metrics)),
        windows=tuple(read_jsonl(paths.windows)),
        comparison=read_json(paths.comparison),
        decisions=read_json(paths.decisions),
        evals=tuple(read_jsonl(paths.evals)),
        ratings=tuple(read_jsonl(paths.ratings)),
        pool=read_json(paths.pool),
        summary=summary,
        config=_text(paths.config),
        command=str(summary.get("command") or _text(paths.command)).strip(),
        games=tuple(games),
        games_error=games_error,
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
