"""Training data of a tiny model: the states of random play as arrays.

No action is marked as good: the trained model plays like ``random_legal``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from rlforge.errors import RlforgeError
from rlforge.games.base import View
from rlforge.games.board import grid_board
from rlforge.games.grids import Grid, placements, winning_cells
from rlforge.models.tiny.recipe import State, TinyRecipe
from rlforge.models.tiny.vocabulary import build_tokenizer, spaced_words, token_id
from rlforge.types import value

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float32]
_Bools = npt.NDArray[np.bool_]


@value
class Lessons:
    """N states of one game over its A actions.

    Attributes:
        prompt_ids, action_ids: [N, T], and [A]: the token of each action.
        legal, outcome: [N, A], and [N] in [-1, 1] for the player to move.
        wins, blocks: [N, A]: actions whose cell completes the player's or the opponent's line; None
            without a grid.
        facts: [N, F]: see ``State``; None where there are none.
    """

    prompt_ids: _Ints
    action_ids: _Ints
    legal: _Bools
    outcome: _Floats
    wins: _Bools | None
    blocks: _Bools | None
    facts: _Bools | None = None

    def __len__(self) -> int:
        return len(self.prompt_ids)


def vocabulary(games: list[list[State]], known: Iterable[str] = ()) -> Any:
    """The tokenizer to which every word of these games is one token, and of ``known``."""
    words = set(known)
    for states in games:
        for state in states:
            words.update(f" {action}" for action in state.view.legal_actions or ())
            if state.view.grid is None:
                words.update(spaced_words(_board(state.view)))
        grid = states[0].view.grid
        if grid is not None:
            words.update(word for pattern in _row_boards(grid) for word in spaced_words(pattern))
    return build_tokenizer(words)


def lessons(states: list[State], tokenizer: Any) -> Lessons:
    """The states as arrays; those of square grids in all eight orientations."""
    if grid := states[0].view.grid:
        return _grid_lessons(states, grid, tokenizer)
    actions = sorted({action for state in states for action in state.view.legal_actions or ()})
    prompts = [tokenizer.encode(_board(s.view), add_special_tokens=False) for s in states]
    if len({len(prompt) for prompt in prompts}) > 1:
        raise RlforgeError("the boards of a warm-up game must all have the same number of words")
    legal = [[action in (s.view.legal_actions or ()) for action in actions] for s in states]
    return Lessons(
        prompt_ids=np.array(prompts),
        action_ids=np.array([token_id(tokenizer, f" {action}") for action in actions]),
        legal=np.array(legal),
        outcome=np.array([s.outcome for s in states], dtype=np.float32),
        wins=None,
        blocks=None,
        facts=np.array([s.facts for s in states]) if states[0].facts else None,
    )


def _grid_lessons(states: list[State], first: Grid, tokenizer: Any) -> Lessons:
    rows, cols = first.rows, first.cols
    grids = [grid for s in states if (grid := s.view.grid) is not None]
    mine, theirs = (_cells([getattr(g, side) for g in grids], first) for side in ("me", "op"))
    free = ~(mine | theirs)
    wins = _cells([winning_cells(g, g.me) for g in grids], first) & free
    blocks = _cells([winning_cells(g, g.op) for g in grids], first) & free
    if rows == cols:
        parts = (mine, theirs, free, wins, blocks)
        mine, theirs, free, wins, blocks = map(_orientations, parts)
    # The token of a row follows from its cells: 0 free, 1 mine, 2 theirs, as digits to base 3.
    digits = (mine + 2 * theirs.astype(np.int64)) @ 3 ** np.arange(cols)
    patterns = [spaced_words(board)[1:-1] for board in _row_boards(first)]
    # [rows, 3 ** cols]: the token of each row of cells, in each place.
    table = np.array([[token_id(tokenizer, word) for word in words] for words in patterns]).T
    copies = len(free) // len(grids)
    empty = dataclasses.replace(first, me=0, op=0)
    name, *_, end = tokenizer.encode(grid_board(empty), add_special_tokens=False)
    edge = np.ones((len(free), 1), dtype=np.int64)
    by_cell = {cell: action for action, cell in placements(empty).items()}
    return Lessons(
        prompt_ids=np.hstack([edge * name, table[np.arange(rows), digits], edge * end]),
        action_ids=np.array(
            [token_id(tokenizer, f" {by_cell[cell]}") for cell in range(rows * cols)]
        ),
        legal=free.reshape(len(free), -1),
        outcome=np.tile(np.array([s.outcome for s in states], dtype=np.float32), copies),
        wins=wins.reshape(len(free), -1),
        blocks=blocks.reshape(len(free), -1),
    )


def _cells(masks: list[int], grid: Grid) -> _Bools:
    bits = np.array(masks, dtype=np.int64)[:, None] >> np.arange(grid.rows * grid.cols) & 1
    return bits.astype(np.bool_).reshape(-1, grid.rows, grid.cols)


def _orientations(boards: _Bools) -> _Bools:
    """[N, n, n] to [8 N, n, n]: each quarter turn, as it is and mirrored."""
    turns = [np.rot90(boards, k, axes=(1, 2)) for k in range(4)]
    return np.concatenate([*turns, *(turned[:, :, ::-1] for turned in turns)])


def _row_boards(grid: Grid) -> list[str]:
    """Boards that together hold every possible row: in board i each row shows i in base 3."""
    column = sum(1 << row * grid.cols for row in range(grid.rows))

    def stones(pattern: int, side: int) -> int:
        digits = (pattern // 3**col % 3 for col in range(grid.cols))
        return sum(column << col for col, digit in enumerate(digits) if digit == side)

    return [
        grid_board(dataclasses.replace(grid, me=stones(pattern, 1), op=stones(pattern, 2)))
        for pattern in range(3**grid.cols)
    ]


def _board(view: View) -> str:
    assert view.board is not None
    return view.board


def corpus(recipe: TinyRecipe) -> tuple[Any, list[Lessons]]:
    """Play the games of ``recipe``; returns the tokenizer and the lessons of each game."""
    played = [game.play(recipe.discount, recipe.seed) for game in recipe.games]
    tokenizer = vocabulary(played, [f" {word}" for game in recipe.games for word in game.words])
    return tokenizer, [lessons(states, tokenizer) for states in played]
