"""A few games of the run, to be stepped through by ``page.js``."""

from __future__ import annotations

import math

from rlforge.errors import counted
from rlforge.games.observations import news
from rlforge.record.analyses import Analysis
from rlforge.record.game_files import read_games
from rlforge.record.samples import choose
from rlforge.show.formatting import percent
from rlforge.show.report.charts import Chart, Series
from rlforge.show.report.data import RunData
from rlforge.types import GameRecord, Turn

#: Most turns of a game; of a longer one, equally many from its start and its end.
MOST_TURNS = 40


def sample_games(run: RunData) -> dict[str, GameRecord]:
    chosen = {title: game.spec.game_id for title, game in choose(run.games).items()}
    records = read_games(run.paths.root, list(chosen.values()))
    found = {record.spec.game_id: record for record in records}
    return {title: found[game_id] for title, game_id in chosen.items()}


def shown_turns(record: GameRecord) -> list[tuple[int, Turn, str]]:
    """Turns with their places, and what their players had not seen before."""
    turns = list(zip(range(1, len(record.turns) + 1), record.turns, news(record), strict=True))
    half = MOST_TURNS // 2
    return turns if len(turns) <= MOST_TURNS else turns[:half] + turns[-half:]


def value_over_turns(done: Analysis) -> Chart:
    values = [done.moments[0].before, *(moment.after for moment in done.moments)]
    points = [(turn, each.mean, each.low, each.high) for turn, each in enumerate(values)]
    who = f"player {done.player} ({done.seats[done.player]})"
    title = f"{done.game_id}, for {who}"
    return Chart(title=title, series=[Series.banded("value", points)], x_name="turn", exact=True)


def marks(turn: Turn) -> list[str]:
    reason = turn.completion.finish_reason
    return [
        text
        for text, applies in (
            ("wrong format", not turn.well_formed),
            ("illegal move", not turn.legal),
            ("cut at the token limit", reason == "length"),
            ("cut by the context", reason == "context"),
        )
        if applies
    ]


def likelihood(turn: Turn) -> str:
    """Log-probs of an answer, after a comma, or nothing."""
    logprobs = turn.completion.logprobs
    if not logprobs:
        return ""
    total = sum(logprobs)
    tokens = counted(len(logprobs), "token")
    # Smaller ones would read 0.0%.
    chance = percent(math.exp(total), 1) if total > math.log(1e-3) else "below 0.1%"
    mean = "" if len(logprobs) == 1 else f", mean {total / len(logprobs):z.2f}"
    return f", log-prob {total:z.2f} in {tokens}{mean}, probability {chance}"
