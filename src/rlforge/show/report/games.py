"""A few games of the run, to be stepped through by ``page.js``."""

from __future__ import annotations

import math

from rlforge.games.observations import news
from rlforge.record.analyses import Analysis
from rlforge.record.game_files import read_games
from rlforge.record.samples import choose
from rlforge.show.formatting import percent
from rlforge.show.report.charts import Chart, Series
from rlforge.show.report.data import RunData
from rlforge.types import GameRecord, Turn, value

#: Most turns of a game; of a longer one, equally many from its start and its end.
MOST_TURNS = 40


@value
class ShownTurn:
    """A turn of a game. new: what its player had not seen before."""

    place: int
    turn: Turn
    new: str
    marks: list[str]
    likelihood: str


@value
class ShownGame:
    """A game: the turns that are shown, and those left out between its two halves."""

    title: str
    record: GameRecord
    turns: list[ShownTurn]
    left_out: int


def sample_games(run: RunData) -> list[ShownGame]:
    """The games of ``choose``."""
    chosen = choose(run.games)
    records = {
        record.spec.game_id: record
        for record in read_games(run.paths.root, [game.spec.game_id for game in chosen.values()])
    }
    return [_shown(title, records[game.spec.game_id]) for title, game in chosen.items()]


def _shown(title: str, record: GameRecord) -> ShownGame:
    turns = [
        ShownTurn(place=place, turn=turn, new=new, marks=marks(turn), likelihood=_likelihood(turn))
        for place, (turn, new) in enumerate(zip(record.turns, news(record), strict=True), start=1)
    ]
    left_out = max(len(turns) - MOST_TURNS, 0)
    half = len(turns) if not left_out else MOST_TURNS // 2
    kept = turns[:half] + turns[half + left_out :]
    return ShownGame(title=title, record=record, turns=kept, left_out=left_out)


def value_over_turns(done: Analysis) -> Chart:
    """The value of an analysed game after each of its turns."""
    points = [done.moments[0].before, *(moment.after for moment in done.moments)]
    line = Series(
        name="value",
        xs=range(len(points)),
        ys=[each.mean for each in points],
        low=[each.low for each in points],
        high=[each.high for each in points],
    )
    who = f"player {done.player} ({done.seats[done.player]})"
    title = f"{done.game_id}, for {who}"
    return Chart(title=title, series=[line], x_name="turn", exact=True)


def marks(turn: Turn) -> list[str]:
    """Fault of the answer of a turn."""
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


def _likelihood(turn: Turn) -> str:
    """The log-probs of an answer, after a comma; empty without them."""
    logprobs = turn.completion.logprobs
    if not logprobs:
        return ""
    total = sum(logprobs)
    tokens = "1 token" if len(logprobs) == 1 else f"{len(logprobs)} tokens"
    chance = percent(math.exp(total), 1) if total > math.log(1e-3) else "below 0.1%"
    mean = "" if len(logprobs) == 1 else f", mean {total / len(logprobs):.2f}"
    return f", log-prob {total:.2f} in {tokens}{mean}, probability {chance}"
