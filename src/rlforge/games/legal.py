"""Legal actions of TextArena games, read from their state, since TextArena has no API for them.

A rule takes the unwrapped environment and the player to move.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

Rule = Callable[[Any, int], list[str]]


def family(env_id: str) -> str:
    """The game without version and variant: ``SimpleTak-v0-large-train`` is ``SimpleTak``."""
    return re.split(r"-v\d", env_id, maxsplit=1)[0]


#: A line of an observation that lists moves, as ``Valid moves: [a], [b]``.
_LIST = re.compile(
    r"^(?P<label>.*(?:valid|available|legal) (?:moves|actions)[^\[\]\n]*:)(?P<moves>.*)$",
    re.IGNORECASE | re.MULTILINE,
)


def relisted(observation: str, legal: Sequence[str]) -> str:
    """``observation`` with the ``legal`` actions in place of its last list of moves."""
    # Some games list moves of a former turn or another player, which mislead models.
    *_, last = [None, *_LIST.finditer(observation)]
    if last is None or set(re.findall(r"\[[^\[\]]+\]", last["moves"])) <= set(legal):
        return observation
    rest = observation[: last.start()] + observation[last.end() :].removeprefix("\n")
    # The list goes to the end: after a change, all that follows is shown again.
    return f"{rest.rstrip()}\n\n{last['label']} {', '.join(legal) or 'none'}"


def _liars_dice(env: Any, player: int) -> list[str]:
    state = env.state.game_state
    quantity, face = state["current_bid"]["quantity"], state["current_bid"]["face_value"]
    # The game accepts any quantity, but a bid of more dice than there are cannot be true.
    dice = sum(state["remaining_dice"].values())
    bids = [
        f"[Bid: {q}, {f}]"
        for q in range(max(quantity, 1), dice + 1)
        for f in range(max(face, 1), 7)
        if (q, f) != (quantity, face)
    ]
    return [*bids, "[Call]"] if quantity else bids


def _breakthrough(env: Any, player: int) -> list[str]:
    """Legal moves; in this variant a player without any loses."""
    board, size = env.state.game_state["board"], env.board_size
    own, other, forward = ("W", "B", 1) if player == 0 else ("B", "W", -1)

    def name(r: int, c: int) -> str:
        return f"{chr(ord('a') + c)}{r + 1}"

    return [
        f"[{name(r, c)}{name(r + forward, to)}]"
        for r in range(size)
        for c in range(size)
        if board[r][c] == own and 0 <= r + forward < size
        for to in (c - 1, c, c + 1)
        if 0 <= to < size and board[r + forward][to] == ("" if to == c else other)
    ]


def _santorini(env: Any, player: int) -> list[str]:
    # The stored list is the next seat's, which is wrong where a player tries again.
    moves: str = env._get_valid_moves(player)
    return moves.split(", ") if moves else []


def _empty_cells(env: Any) -> list[int]:
    cells = [cell for row in env.state.game_state["board"] for cell in row]
    return [i for i, cell in enumerate(cells) if cell == ""]


def _always(*actions: str) -> Rule:
    return lambda env, player: list(actions)


RULES: dict[str, Rule] = {
    "KuhnPoker": lambda env, player: [
        f"[{name}]" for name in env.state.game_state["current_legal_action_tree"]
    ],
    "Nim": lambda env, player: [
        f"[{pile} {taken}]"
        for pile, size in enumerate(env.state.game_state["piles"])
        for taken in range(1, size + 1)
    ],
    "LiarsDice": _liars_dice,
    # A player without a legal move passes with any answer; ``[skip]`` stands for all of them.
    "Othello": lambda env, player: (
        [f"[{r}, {c}]" for r, c in env.state.game_state["valid_moves"]] or ["[skip]"]
    ),
    "Breakthrough": _breakthrough,
    "SantoriniBaseFixed": _santorini,
    "WildTicTacToe": lambda env, player: [
        f"[{mark} {cell}]" for cell in _empty_cells(env) for mark in "XO"
    ],
    "ThreePlayerTicTacToe": lambda env, player: [f"[{cell}]" for cell in _empty_cells(env)],
    "PigDice": _always("[roll]", "[hold]"),
    "IteratedRockPaperScissors": _always("[rock]", "[paper]", "[scissors]"),
    "IteratedMatchingPennies": _always("[heads]", "[tails]"),
    "Bandit": lambda env, player: [f"[{arm}]" for arm in env.buttons],
    "Blackjack": _always("[hit]", "[stand]"),
}
