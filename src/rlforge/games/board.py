"""Compact boards: a position in a few words, for models with short prompts."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence

from rlforge.games.grids import Grid
from rlforge.types import value

_GRID_NAMES = {"tictactoe": "ttt", "simpletak": "tak", "connectfour": "four"}
_NONE, _END = "none", "go"

#: Most bets of the first and the second round, by game.
_BET_SLOTS = {"kuhn": (2, 0), "leduc": (4, 3)}
_ACTION_ORDER = ("[check]", "[bet]", "[call]", "[raise]", "[fold]")


@value
class Hand:
    """A poker player's information.

    rounds: the bets of each betting round. public: the card shown before the second one.
    """

    game: str
    card: str
    public: str | None
    rounds: tuple[tuple[str, ...], ...]


def grid_board(grid: Grid) -> str:
    """One word a row: a letter, then ``m`` for own stones, ``o`` for others, ``_`` for free cells.

    Example:
        >>> grid_board(Grid(game="tictactoe", rows=3, cols=3, me=0b1, op=0b10000))
        'ttt am__ b_o_ c___ go'
    """
    # The player to move is always ``m``, so that one set of weights plays all seats.
    rows = _rows(grid, "m", "o", ["_"] * grid.rows * grid.cols)
    words = [f"{string.ascii_lowercase[i]}{''.join(row)}" for i, row in enumerate(rows)]
    return " ".join([_GRID_NAMES[grid.game], *words, _END])


def grid_text(grid: Grid) -> str:
    """A row of squares a line: X of the player to move, O of the opponent, or a number.

    Example:
        >>> print(grid_text(Grid(game="tictactoe", rows=3, cols=3, me=0b1, op=0b10000)))
        X|1|2
        3|O|5
        6|7|8
    """
    # X, O and numbers are one token each. Bars keep neighbours from becoming one, so that a square
    # is always at the same place of the prompt.
    return "\n".join(map("|".join, _rows(grid, "X", "O", map(str, range(grid.rows * grid.cols)))))


def _rows(grid: Grid, mine: str, theirs: str, free: Iterable[str]) -> Iterator[list[str]]:
    cells = [
        mine if grid.me >> cell & 1 else theirs if grid.op >> cell & 1 else mark
        for cell, mark in enumerate(free)
    ]
    return (cells[at : at + grid.cols] for at in range(0, len(cells), grid.cols))


def hand_board(hand: Hand, legal_actions: Sequence[str]) -> str:
    """``kuhn K check none [check] [bet] go``: card, bets so far, legal actions.

    Leduc's public card stands between its rounds:
    ``leduc Q raise call none none K call none none [call] [raise] go``.
    """
    # Bets to come are ``none``, so that prompts have one length up to the actions.
    first_slots, second_slots = _BET_SLOTS[hand.game]
    words = [hand.game, hand.card, *_padded(hand.rounds[0], first_slots)]
    if second_slots:
        second = hand.rounds[1] if len(hand.rounds) > 1 else ()
        words += [hand.public or _NONE, *_padded(second, second_slots)]
    in_words = [action for action in _ACTION_ORDER if action in legal_actions]
    return " ".join([*words, *(in_words or legal_actions), _END])


def state_board(game: str, known: str, legal_actions: Sequence[str]) -> str:
    """Known state and legal actions, as ``liars_dice 3 1-2 2-1 [2-2] [Liar] go``."""
    return " ".join([game, *known.split(), *legal_actions, _END])


def _padded(bets: Sequence[str], slots: int) -> list[str]:
    return [*bets, *[_NONE] * (slots - len(bets))]
