"""Compact boards: a position in a few words, for models with short prompts.

Boards are written from the side of the player to move, so that one set of weights plays all
seats. Prompts of one game have the same number of words in every position (except for the list of
actions in poker), and all end in ``go``, after which the model answers.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from rlforge.games.grids import Grid
from rlforge.types import value

_GRID_NAMES = {"tictactoe": "ttt", "simpletak": "tak", "connectfour": "four"}
_MINE, _THEIRS, _FREE = "m", "o", "_"
_NONE, _END = "none", "go"

#: Most bets of the first and the second round, by game.
_BET_SLOTS = {"kuhn": (2, 0), "leduc": (4, 3)}
_ACTION_ORDER = ("[check]", "[bet]", "[call]", "[raise]", "[fold]")


@value
class Hand:
    """A poker player's information.

    rounds: the bets of each betting round so far, in order; the last one is under way.
    public: the card shown before the second round; None in the first.
    """

    game: str
    card: str
    public: str | None
    rounds: tuple[tuple[str, ...], ...]


def grid_board(grid: Grid) -> str:
    """``tak a_mo_ bm___ c_o__ d____ go``: one word a row, a letter in front, then its cells.

    ``m`` is a stone of the player to move, ``o`` one of the other player, ``_`` a free cell.

    Example:
        >>> grid_board(Grid(game="tictactoe", rows=3, cols=3, me=0b1, op=0b10000))
        'ttt am__ b_o_ c___ go'
    """
    words = [_GRID_NAMES[grid.game]]
    cell = 1
    for row in range(grid.rows):
        word = string.ascii_lowercase[row]
        for _ in range(grid.cols):
            word += _MINE if grid.me & cell else _THEIRS if grid.op & cell else _FREE
            cell <<= 1
        words.append(word)
    words.append(_END)
    return " ".join(words)


def grid_text(grid: Grid) -> str:
    """A row of squares a line: X of the player to move, O of the opponent, a free square's number.

    For language models, whose tokenizers have a token for each, unlike for the compact board's
    words; bars keep letters of neighbours from becoming one token, so that a square is always at
    the same place of the prompt. Numbers count row by row from 0, as in the actions of TicTacToe
    and SimpleTak.

    Example:
        >>> print(grid_text(Grid(game="tictactoe", rows=3, cols=3, me=0b1, op=0b10000)))
        X|1|2
        3|O|5
        6|7|8
    """
    cells = [
        "X" if grid.me >> cell & 1 else "O" if grid.op >> cell & 1 else str(cell)
        for cell in range(grid.rows * grid.cols)
    ]
    rows = (cells[at : at + grid.cols] for at in range(0, len(cells), grid.cols))
    return "\n".join("|".join(row) for row in rows)


def hand_board(hand: Hand, legal_actions: Sequence[str]) -> str:
    """``kuhn K check none [check] [bet] go``: card, bets so far, legal actions.

    Leduc's public card stands between its two rounds; empty places hold ``none``:
    ``leduc Q raise call none none K call none none [call] [raise] go``.
    """
    first_slots, second_slots = _BET_SLOTS[hand.game]
    words = [hand.game, hand.card, *_padded(hand.rounds[0], first_slots)]
    if second_slots:
        second = hand.rounds[1] if len(hand.rounds) > 1 else ()
        words += [hand.public or _NONE, *_padded(second, second_slots)]
    in_words = [action for action in _ACTION_ORDER if action in legal_actions]
    return " ".join([*words, *(in_words or legal_actions), _END])


def state_board(game: str, known: str, legal_actions: Sequence[str]) -> str:
    """``liars_dice 3 1-2 2-1 [2-2] [Liar] go``: what the player knows, and the legal actions."""
    return " ".join([game, *known.split(), *legal_actions, _END])


def _padded(bets: Sequence[str], slots: int) -> list[str]:
    return [*bets, *[_NONE] * (slots - len(bets))]
