"""The card of a ladder in the terminal, and the texts that its page shares with it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from rlforge.lab.ladder.record import Ending, LadderCard, LadderPairing, LadderRating
from rlforge.show.console import Console
from rlforge.show.formatting import NOTHING, count, elo, number, percent
from rlforge.show.panels import Listing

ENDINGS: dict[Ending, str] = {
    "separated": "separated",
    "precise": "precise enough",
    "maximum": "all games played",
    "open": "interrupted",
}

ABOUT_SCORES = (
    "Score of the row's member, a win 1 and a draw 1/2, over mirrored pairs of games; the 95 % "
    "interval holds at whatever time a pairing stops, and covers more often than that."
)
ABOUT_STRENGTHS = (
    "Elo: Bradley-Terry strength around the mean of the members, each pairing with equal weight, a "
    "draw as half a win, 95 % intervals by a bootstrap over pairs. Won and lost: by play + by an "
    "invalid move of the loser. Nash: share of the equilibrium nearest to uniform play."
)


def letter(place: int) -> str:
    """A short name of the member at ``place``: A … Z, AA and so on.

    Example:
        >>> [letter(place) for place in (0, 25, 26)]
        ['A', 'Z', 'AA']
    """
    before, own = divmod(place, 26)
    return (letter(before - 1) if before else "") + chr(ord("A") + own)


def meetings(card: LadderCard) -> dict[tuple[str, str], LadderPairing]:
    """The pairings by both orders of their members; the one of (b, a) is seen from b."""
    found = {(one.first, one.second): one for one in card.pairings}
    for one in card.pairings:
        found[one.second, one.first] = dataclasses.replace(
            one,
            first=one.second,
            second=one.first,
            wins=one.losses,
            losses=one.wins,
            score=None if one.score is None else 1 - one.score,
            low=1 - one.high,
            high=1 - one.low,
            cyclic=-one.cyclic,
        )
    return found


def head(card: LadderCard) -> str:
    endings = Counter(one.ended for one in card.pairings)
    ends = ", ".join(f"{endings[key]} {text}" for key, text in ENDINGS.items() if endings[key])
    failed = sum(one.failed for one in card.pairings)
    lost = f", {count(failed)} failed" if failed else ""
    left = f", {card.unpaired} without their mirror game" if card.unpaired else ""
    return f"{len(card.members)} members, {count(card.games)} games{lost}{left}; pairings: {ends}"


def interval(low: float, high: float) -> str:
    """Bounds of a score in percent, without the sign.

    Example:
        >>> interval(0.414, 0.8)
        '41 to 80'
    """
    return f"{100 * low:.0f} to {100 * high:.0f}"


def won_and_lost(rating: LadderRating) -> tuple[str, str]:
    """Games won and lost by play, and after a plus sign those by an invalid move."""
    pairs = ((rating.wins, rating.forfeits_won), (rating.losses, rating.forfeits_lost))
    won, lost = (f"{play} + {forfeit}" if forfeit else str(play) for play, forfeit in pairs)
    return won, lost


def cycle_text(card: LadderCard) -> str | None:
    if card.cyclic_p is None:
        # Two members form no cycle.
        return None
    share = "not measurable yet"
    if (found := card.cyclic_share) is not None:
        share = f"{percent(found.mean)} (95 % interval {interval(found.low, found.high)})"
    p = "below 0.001" if card.cyclic_p < 0.001 else f"{card.cyclic_p:.3f}"
    verdict = "a rating does not explain" if card.cyclic_p < 0.05 else "a rating may explain"
    most = max(card.pairings, key=lambda one: abs(one.cyclic))
    first, second = (most.first, most.second)[:: 1 if most.cyclic > 0 else -1]
    return (
        f"cyclic share of the variance of the log-odds: {share}; {verdict} the results "
        f"(p {'' if card.cyclic_p < 0.001 else '= '}{p}). Furthest above the rating: {first} "
        f"against {second}, by {abs(most.cyclic):.2f}."
    )


def first_move_text(card: LadderCard) -> str | None:
    if (worth := card.first_move) is None:
        return None
    low, high = number(worth.low, 3), number(worth.high, 3)
    return (
        f"first move: {number(worth.mean, 3)} more reward than the second (95 % interval {low} to "
        f"{high})."
    )


def neighbour_texts(card: LadderCard) -> Iterator[tuple[str, str, str, str]]:
    for one in card.neighbours:
        games = "above a million" if one.games is None else count(one.games)
        yield one.stronger, one.weaker, percent(one.score), games


def show_ladder(card: LadderCard, console: Console) -> None:
    """Print the card; it fits in 80 columns, with up to seven members in the matrix of scores."""
    console.print(Text(card.rules.env_id, style="bold"))
    console.print(Text(head(card)))
    console.print()
    console.print(_strengths(card))
    console.print(Text(ABOUT_STRENGTHS, style="dim"))
    console.print()
    console.print(_scores(card, console.width))
    console.print(Text(ABOUT_SCORES, style="dim"))
    console.print()
    for text in (cycle_text(card), first_move_text(card)):
        if text is not None:
            console.print(Text(text[0].upper() + text[1:]))
    console.print()
    names = ("stronger", "weaker")
    neighbours = Listing(*names, "score", "games to tell", left=names)
    for texts in neighbour_texts(card):
        neighbours.add_row(*texts)
    console.print(neighbours)


def _strengths(card: LadderCard) -> Table:
    titles = ("member", "Elo", "95% CI", "TrueSkill", "Nash", "won", "drawn", "lost")
    table = Listing(*titles, left=["member"])
    for place, one in enumerate(card.ratings):
        won, lost = won_and_lost(one)
        table.add_row(
            f"{letter(place)} {one.uid}",
            Text(elo(one.elo), style="bold"),
            f"{elo(one.low)} to {elo(one.high)}",
            f"{one.mu:.1f} ± {one.sigma:.1f}",
            percent(one.nash),
            won.replace(" ", ""),
            str(one.draws),
            lost.replace(" ", ""),
        )
    return table


def _scores(card: LadderCard, width: int) -> Table:
    uids, met = [one.uid for one in card.ratings], meetings(card)
    # Narrow terminals show scores alone, because intervals would not fit.
    wide = 4 + 11 * len(uids) <= width
    table = Listing("score", *map(letter, range(len(uids))), left=["score"])
    for place, uid in enumerate(uids):
        cells = []
        for other in uids:
            one = met.get((uid, other))
            if one is None or one.score is None:
                cells.append(Text(NOTHING, style="dim"))
                continue
            low, high = one.low, one.high
            tone = "green" if low > 0.5 else "red" if high < 0.5 else ""
            cell = Text(percent(one.score), style=tone)
            if wide:
                cell.append(f"\n{interval(low, high)}\n{one.pairs} pairs", style="dim")
            cells.append(cell)
        table.add_row(letter(place), *cells)
    return table
