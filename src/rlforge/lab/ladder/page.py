"""``ladder.html``: the card of a ladder, in one file that opens offline."""

from __future__ import annotations

from pathlib import Path

from rlforge.lab.ladder.record import LadderCard
from rlforge.lab.ladder.view import (
    ABOUT_SCORES,
    ABOUT_STRENGTHS,
    ENDINGS,
    cycle_text,
    first_move_text,
    head,
    interval,
    letter,
    meetings,
    neighbour_texts,
    won_and_lost,
)
from rlforge.show.formatting import NOTHING, elo, percent
from rlforge.show.report.charts import plot_of_strengths
from rlforge.show.report.curves import section
from rlforge.show.report.html import Html, el, fold, heat, join, table, write_page


def write_ladder_page(target: Path, card: LadderCard) -> Path:
    """Write the page of ``card`` and return its path."""
    title = f"Ladder of {card.rules.env_id}"
    named = [
        (f"{letter(place)} {one.uid}", one.elo, one.low, one.high)
        for place, one in enumerate(card.ratings)
    ]
    heads, about = ["stronger", "weaker", "score", "games"], "Games that separate neighbours"
    separate = table(heads, neighbour_texts(card), about, names=2)
    body = el(
        "body",
        el("header", el("h1", title), el("p", f"{head(card)}.", cls="soft")),
        section("Strengths", ABOUT_STRENGTHS, plot_of_strengths(named), _strengths(card)),
        section("Scores", ABOUT_SCORES, _scores(card), _pairings(card)),
        section("Cycles", _ABOUT_CYCLES, *_sentences(cycle_text(card))),
        section("First move", _ABOUT_FIRST_MOVE, *_sentences(first_move_text(card))),
        section("Neighbours", _ABOUT_NEIGHBOURS, separate),
        section("How to check it", _ABOUT_CHECKS, _members(card), _rules(card)),
    )
    return write_page(target, title, body)


_ABOUT_CYCLES = (
    "The log-odds of the scores are differences of a rating plus a cyclic rest, whose sum over the "
    "opponents of a member is 0. The share of the rest is without the noise of the games; p is of "
    "the test that there is no rest."
)
_ABOUT_FIRST_MOVE = "Mean reward of seat 0 minus that of seat 1, pairings with equal weight."
_ABOUT_NEIGHBOURS = (
    "Games that separate two members next to each other at 5 % error and 80 % power, if their "
    "expected score and its spread are those measured."
)
_ABOUT_CHECKS = (
    "rlforge ladder --verify ladder.json computes the page again from the games beside it, and "
    "compares these files with those that played."
)


def _sentences(text: str | None) -> list[Html]:
    return [] if text is None else [el("p", text[0].upper() + text[1:])]


def _strengths(card: LadderCard) -> Html:
    rows = []
    for place, one in enumerate(card.ratings):
        won, lost = won_and_lost(one)
        rows.append(
            [
                f"{letter(place)} {one.uid}",
                join([el("b", elo(one.elo)), f" ({elo(one.low)} to {elo(one.high)})"]),
                f"{one.mu:.2f} ± {one.sigma:.2f}",
                percent(one.nash),
                percent(one.nash_score, 1),
                won,
                str(one.draws),
                lost,
            ]
        )
    heads = ["member", "Elo", "TrueSkill", "Nash", "score against Nash", "won", "drawn", "lost"]
    return table(heads, rows, "Strengths of the members")


def _scores(card: LadderCard) -> Html:
    uids, met = [one.uid for one in card.ratings], meetings(card)
    body = []
    for place, uid in enumerate(uids):
        cells = []
        for other in uids:
            one = met.get((uid, other))
            if one is None or one.score is None:
                cells.append(el("td", NOTHING, cls="soft"))
                continue
            tone = "good" if one.low > 0.5 else "bad" if one.high < 0.5 else "soft"
            shown = [
                el("b", percent(one.score), cls=tone),
                el("div", interval(one.low, one.high), cls="soft"),
                el("div", f"{one.pairs} pairs", cls="soft"),
            ]
            cells.append(el("td", *shown, style=f"--heat:{one.score:.2f}"))
        body.append((f"{letter(place)} {uid}", cells))
    return heat("Score of each member against each other", map(letter, range(len(uids))), body)


def _pairings(card: LadderCard) -> Html:
    heads = ["first", "second", "won", "drawn", "lost", "failed", "cyclic log-odds", "ended"]
    rows = [
        [
            one.first,
            one.second,
            *map(str, (one.wins, one.draws, one.losses, one.failed)),
            f"{one.cyclic:+.2f}",
            ENDINGS[one.ended],
        ]
        for one in card.pairings
    ]
    return fold("Games of each pairing", table(heads, rows, "Games of each pairing", names=2))


def _members(card: LadderCard) -> Html:
    rows = [
        [
            one.uid,
            one.source or one.about,
            one.about,
            join([el("div", el("code", f"{f.name} {f.sha256}")) for f in one.files]),
        ]
        for one in card.members
    ]
    return table(["member", "source", "of", "SHA-256"], rows, "The members' files", names=4)


def _rules(card: LadderCard) -> Html:
    rules = card.rules
    versions = ", ".join(f"{name} {version}" for name, version in card.versions.items())
    return el(
        "p",
        f"{rules.env_id}, seed {rules.seed}, at most {rules.games} games a pairing, which stops "
        f"once its interval excludes one half or is at most {rules.precision:g} wide. {versions}.",
        cls="note",
    )
