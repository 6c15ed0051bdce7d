"""Rules, points and notation of OpenSpiel's games, which it does not show a player."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import pyspiel

_TOGETHER = "turn_based_simultaneous_game"
_PREFIX = "Turn-based "


@lru_cache(maxsize=64)
def introduction(game_name: str) -> tuple[str, str]:
    """The title of a game of OpenSpiel, and a paragraph about it.

    Example:
        >>> title, text = introduction("nim(is_misere=False)")
        >>> title, text.splitlines()[1]
        ('Nim', 'You end the game with -1 to 1 points; what you gain, your opponent loses.')
    """
    game = pyspiel.load_game(game_name)
    kind, parameters = game.get_type(), game.get_parameters()
    name, together = kind.short_name, kind.short_name == _TOGETHER
    if together:
        parameters = parameters["game"]
        name = parameters["name"]
    lines = [
        _RULES[name](parameters) if name in _RULES else "",
        _payoffs(game) if name.startswith("matrix_") else "",
        "All players choose before any choice is shown." if together else "",
        _points(game),
        "An action is written in square brackets, as in the list of available actions.",
    ]
    return kind.long_name.removeprefix(_PREFIX), "\n".join(line for line in lines if line)


def _points(game: pyspiel.Game) -> str:
    text = f"You end the game with {game.min_utility():g} to {game.max_utility():g} points"
    players, sums = game.num_players(), pyspiel.GameType.Utility
    utility = game.get_type().utility
    if players == 1:
        return f"{text}."
    if utility == sums.ZERO_SUM and players == 2:
        return f"{text}; what you gain, your opponent loses."
    if utility in (sums.ZERO_SUM, sums.CONSTANT_SUM):
        return f"{text}; the points of all players add up to {game.utility_sum():g}."
    if utility == sums.IDENTICAL:
        return f"{text}; all players have the same."
    return f"{text}; what one player gains, others need not lose."


def _payoffs(game: pyspiel.Game) -> str:
    first = game.new_initial_state()
    rows = []
    for one in first.legal_actions():
        second = first.child(one)
        for other in second.legal_actions():
            chosen = first.action_to_string(0, one), second.action_to_string(1, other)
            points = [f"{number:g}" for number in second.child(other).returns()]
            rows.append(f"{' and '.join(chosen)} {' and '.join(points)}")
    return f"Choices of player 0 and player 1, and their points: {'; '.join(rows)}."


# ---------------------------------------------------------------- rules by OpenSpiel's short name

_Parameters = Mapping[str, Any]
_NEIGHBOURS = (
    "A cell's neighbours are the next ones in its row and its column, the one above to the right "
    "and the one below to the left. Columns have letters, rows numbers from the top."
)


def _hex(parameters: _Parameters) -> str:
    text = (
        "Players take turns to place a stone on a free cell. Player 0, with x, wins with a chain "
        "of neighbouring stones from the top row to the bottom row, player 1, with o, with one "
        f"from the left column to the right one. {_NEIGHBOURS}"
    )
    if parameters.get("swap"):
        text += (
            " Player 1 may answer the first stone with [swap]: it becomes an o, with row and "
            "column exchanged."
        )
    return text


def _hidden(parameters: _Parameters, what: str, abrupt: str) -> str:
    then = "your turn is over" if parameters["gameversion"] == abrupt else "you choose again"
    return (
        f" You do not see your opponent's {what}. If you choose a cell that one of them occupies, "
        f"it is shown to you and {then}. Below the board are "
    )


def _liars_dice(parameters: _Parameters) -> str:
    higher = {
        "reset-face": "more dice of any face, or as many of a higher face",
        "reset-quantity": "any number of dice of a higher face, or more of the same face",
    }[parameters["bidding_rule"]]
    return (
        f"Each player has rolled dice with {parameters['dice_sides']} sides, "
        f"{parameters['numdice']} per player, and sees only its own. The bid [2-3] says that at "
        "least two of all dice show a three; dice with the highest face count as any face. Players "
        f"take turns to bid higher: {higher}. Instead of a bid, [Liar] ends the game: the player "
        "who made the last bid wins if it is true, otherwise the other one. The state is your "
        "dice, followed by all bids."
    )


def _goofspiel(parameters: _Parameters) -> str:
    cards = parameters["num_cards"]
    order = {
        "random": "drawn at random",
        "descending": "the highest first",
        "ascending": "the lowest first",
    }[parameters["points_order"]]
    text = (
        f"There are point cards from 1 to {cards}, and each player has bidding cards from 1 to "
        f"{cards}, each for one bid. In every round a point card is shown, {order}, and each "
        "player bids a card: the highest bid wins the points; after a tie, -3 in the win sequence, "
        "they are lost."
    )
    if parameters["imp_info"]:
        text += " Of the others' bids you only see who won."
    if parameters["num_turns"] < 0:
        text += " The last round is played by itself."
    if parameters["returns_type"] == "win_loss":
        text += " The player with the most points at the end wins."
    return text


def _pig(parameters: _Parameters) -> str:
    sides = parameters["diceoutcomes"]
    roll = (
        f"adds 1 to the turn total, or, one time in {sides}, ends the turn without any points"
        if parameters["piglet"]
        else f"of the die with {sides} sides adds its number to the turn total, but a 1 ends the "
        "turn without any points"
    )
    return (
        f"In its turn a player rolls as often as it likes. Each roll {roll}. [stop] adds the turn "
        f"total to the player's score and ends the turn. The first player with a score of "
        f"{parameters['winscore']} wins."
    )


_RULES: Mapping[str, Callable[[_Parameters], str]] = {
    "breakthrough": lambda _: (
        "Player 0 has the pieces b and moves down the board, player 1 has w and moves up. A piece "
        "moves one square forward, straight or diagonally, to a free square; it captures on "
        "diagonal moves only. [a7b6] moves from a7 to b6, [a7b6*] captures there. A piece on the "
        "opponent's first row wins, and so does the capture of all pieces."
    ),
    "connect_four": lambda parameters: (
        f"Players take turns to drop a stone into one of {parameters['columns']} columns, numbered "
        f"from 0; player 0 has x, player 1 has o. {parameters['x_in_row']} stones in a line win; a "
        "full board without one is a draw."
    ),
    "dark_hex": lambda parameters: (
        _hex(parameters)
        + _hidden(parameters, "stones", "adh")
        + "the number of actions of both players so far, and yours, each as player,cell."
    ),
    "goofspiel": _goofspiel,
    "hex": _hex,
    "kuhn_poker": lambda _: (
        "The deck has one card more than there are players. Each player has put one chip into the "
        "pot and holds one card; a higher card is better. Each may check or bet one chip; after a "
        "bet the answer is call or fold. After a call, or without any bet, the highest card takes "
        "the pot."
    ),
    "leduc_poker": lambda _: (
        "The deck holds two suits of each rank. Each player has put one chip into the pot and "
        "holds one card. After a first round of betting a public card is shown and a second round "
        "follows. At most two raises a round, of two chips in the first and four in the second. "
        "A pair with the public card wins, otherwise the higher card."
    ),
    "liars_dice": _liars_dice,
    "nim": lambda parameters: (
        "In its turn a player takes any number of objects from one pile; the one that takes the "
        f"last object {'loses' if parameters['is_misere'] else 'wins'}. [pile:2, take:3;] takes "
        "three from the second pile. The state is the player to move and the sizes of the piles."
    ),
    "othello": lambda _: (
        "Player 0 has x, player 1 has o. Players take turns to place a stone that encloses stones "
        "of the opponent in a straight line between itself and another own stone; all stones "
        "enclosed become the player's. A player without such a move passes. When neither can move, "
        "the player with more stones wins."
    ),
    "phantom_ttt": lambda parameters: (
        "Player 0 marks cells of a 3 by 3 board with x, player 1 with o; three marks in a line "
        "win, a full board without one is a draw. [x(0,2)] marks the last cell of the first row."
        + _hidden(parameters, "marks", "abrupt")
        + "your actions, each as player,cell."
    ),
    "pig": _pig,
    "tic_tac_toe": lambda _: (
        "Players take turns to mark a free cell of a 3 by 3 board, numbered 0 to 8 row by row; "
        "player 0 has x, player 1 has o. Three marks in a line win; a full board without one is a "
        "draw."
    ),
    "y": lambda _: (
        "Players take turns to place a stone on a free cell of a board with three sides; player 0 "
        "has O, player 1 has @. A chain of neighbouring stones that touches all three sides wins; "
        f"a corner touches two of them. {_NEIGHBOURS}"
    ),
}
