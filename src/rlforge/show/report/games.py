"""A few games of the run, to be stepped through by ``player.js``."""

from __future__ import annotations

import math
from pathlib import Path

from rlforge.games.observations import news
from rlforge.record.analyses import Analysis
from rlforge.record.game_files import read_games
from rlforge.record.samples import choose, end_of
from rlforge.show.formatting import number, percent
from rlforge.show.report.charts import Series, line_chart
from rlforge.show.report.curves import charts, section
from rlforge.show.report.data import RunData
from rlforge.show.report.html import Html, changed, el, fold, join
from rlforge.types import GameRecord, Turn

#: Most turns of a game; of a longer one, equally many from its start and its end.
MOST_TURNS = 40

_SCRIPT = Path(__file__).with_name("player.js")


def sample_games(run: RunData) -> Html | None:
    """The games of ``choose``, annotated."""
    chosen = choose(run.games)
    records = {
        record.spec.game_id: record
        for record in read_games(run.paths.root, [game.spec.game_id for game in chosen.values()])
    }
    cards = [_card(title, records[game.spec.game_id]) for title, game in chosen.items()]
    return section(
        "Games",
        "A turn shows what is new to its player. Probability: of the whole answer under the "
        "sampling distribution. A red frame marks an answer in another format than asked for, or "
        "an illegal move. In a game, the arrow keys go back and forth.",
        *cards,
        el("script", Html(_SCRIPT.read_text(encoding="utf-8"))) if cards else None,
    )


def analysed(run: RunData) -> Html | None:
    """The value of each analysed game over its turns, and its decisive turns."""
    return section(
        "Analysed games",
        "The value of a position is the mean reward of games played on from it. Turn 0 is "
        "the start; each other value is after its turn. The band is the 95 % interval. Turns "
        "listed below a chart change the value by more than chance.",
        charts(map(_value_over_turns, run.analyses)),
    )


def _value_over_turns(done: Analysis) -> Html:
    points = [done.moments[0].before, *(moment.after for moment in done.moments)]
    line = Series(
        name="value",
        xs=range(len(points)),
        ys=[each.mean for each in points],
        low=[each.low for each in points],
        high=[each.high for each in points],
    )
    who = f"player {done.player} ({done.seats[done.player]})"
    chart = line_chart(f"{done.game_id}, for {who}", [line], x_name="turn", exact=True)
    turning = [
        el(
            "li",
            f"turn {moment.turn}, player {moment.player}: {moment.action or 'no action'} ",
            changed(moment.change, f"{moment.change:+.2f}", sure=True),
            f"; {moment.best} {moment.best_reward.mean - moment.own_before.mean:+.2f}"
            if moment.best_reward is not None
            else None,
        )
        for moment in done.moments
        if moment.decisive
    ]
    return el("div", chart, el("ul", *turning) if turning else None)


def _card(title: str, record: GameRecord) -> Html:
    spec, turns = record.spec, record.turns
    hidden = max(len(turns) - MOST_TURNS, 0)
    half = MOST_TURNS // 2
    shown = enumerate(zip(turns, news(record), strict=True), start=1)
    items = [_turn(place, turn, new, record) for place, (turn, new) in shown]
    if hidden:
        gap = el("li", el("header", f"{hidden} turns left out"), cls="turn c7")
        items = [*items[:half], gap, *items[-half:]]
    seats = [
        el(
            "span",
            el("i", cls=f"key c{seat.player_id % 8}"),
            f"player {seat.player_id}: {seat.policy.uid}{' (trained)' if seat.trained else ''}, "
            f"reward {number(record.rewards.get(seat.player_id))}",
        )
        for seat in spec.seats
    ]
    return el(
        "article",
        el("h3", title),
        el(
            "p",
            f"{spec.env_id}, {len(turns)} turns, end: {record.ending}, game ",
            el("code", spec.game_id),
            f", seed {spec.seed}",
            cls="note",
        ),
        el("p", join(seats, "  ·  ")),
        fold(f"{len(items)} turns", el("ol", *items, cls="turns")),
        cls="card game",
    )


def marks(turn: Turn) -> list[str]:
    """What was wrong with the answer of a turn."""
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


def _turn(place: int, turn: Turn, new: str, record: GameRecord) -> Html:
    answer, player = turn.completion, turn.player_id
    wrong = " wrong" if not turn.well_formed or not turn.legal else ""
    ended = None
    if turn is record.turns[-1]:
        rewards = ", ".join(f"player {one} {reward:+g}" for one, reward in record.rewards.items())
        ended = el("p", el("b", f"{record.ending}: {record.error or rewards}"))
    return el(
        "li",
        el(
            "header",
            el("span", f"{place}. player {player}"),
            el("span", answer.policy_uid or record.spec.seats[player].policy.uid),
            *(el("span", mark, cls="badge bad") for mark in marks(turn)),
        ),
        el("pre", end_of(new), tabindex=0, aria_label="observation", cls="from-end"),
        el("pre", end_of(answer.text), tabindex=0, aria_label="answer", cls="answer"),
        el("footer", "plays ", el("code", turn.action or "nothing"), _likelihood(turn), ended),
        cls=f"turn c{player % 8}{wrong}",
    )


def _likelihood(turn: Turn) -> str | None:
    logprobs = turn.completion.logprobs
    if not logprobs:
        return None
    total = sum(logprobs)
    tokens = "1 token" if len(logprobs) == 1 else f"{len(logprobs)} tokens"
    chance = percent(math.exp(total), 1) if total > math.log(1e-3) else "below 0.1%"
    mean = "" if len(logprobs) == 1 else f", mean {total / len(logprobs):.2f}"
    return f", log-prob {total:.2f} in {tokens}{mean}, probability {chance}"
