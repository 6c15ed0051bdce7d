"""Best actions in placement games on a grid, by alpha-beta search with a transposition table.

A side that wins with n cells free before its last stone has the value WIN + n, its opponent the
negative, a draw 0: best actions win soon and lose late.
"""

from __future__ import annotations

from functools import cache

from rlforge.games.grids import (
    LINE_LENGTHS,
    Grid,
    GridGame,
    connecting_cells,
    line_completing_cells,
    lines_through,
    placements,
    playable_cells,
)

#: Boards of up to this many cells are solved.
SOLVED_CELLS = 16

#: More than the free cells of any board, and than any estimate.
WIN = 100_000


def best_actions(grid: Grid) -> list[str]:
    """All actions of the highest value, in the game's notation."""
    return _search(grid.game, grid.rows, grid.cols).best_actions(grid)


def search_depth(game: GridGame, cells: int) -> int:
    """Moves that are searched: all on a board that is solved."""
    # Depths are fixed, so that choices do not depend on the speed of the machine.
    if cells <= SOLVED_CELLS:
        return cells
    if game == "connectfour":
        return 8 if cells <= 42 else 4
    return 4 if cells <= 36 else 3


class _Search:
    def __init__(self, game: GridGame, rows: int, cols: int) -> None:
        self._game, self._rows, self._cols = game, rows, cols
        cells = range(rows * cols)
        self._full = (1 << len(cells)) - 1
        self._solved = len(cells) <= SOLVED_CELLS
        self._depth = search_depth(game, len(cells))
        self._length = LINE_LENGTHS.get(game)
        self._lines = lines_through(rows, cols, self._length) if self._length else ()
        weights = [len(self._lines[cell]) if self._lines else 0 for cell in cells]
        #: Cells whose number of lines has bit k: the sum over stones is a few bit counts.
        self._planes = [
            (1 << k, sum(1 << cell for cell in cells if weights[cell] >> k & 1))
            for k in range(max(weights).bit_length())
        ]
        middle = (rows - 1) / 2, (cols - 1) / 2
        self._order = [
            1 << cell
            for cell in sorted(
                cells,
                key=lambda cell: (cell // cols - middle[0]) ** 2 + (cell % cols - middle[1]) ** 2,
            )
        ]
        #: Lower and upper bound of the value by (me, op, depth).
        self._known: dict[tuple[int, int, int], tuple[int, int]] = {}

    def best_actions(self, grid: Grid) -> list[str]:
        if not self._solved:
            self._known.clear()
            # With bounds of former moves in the table, the choice would depend on those moves.
        me, op = grid.me, grid.op
        wins, threats = self._completing(me), self._completing(op)
        actions = {1 << cell: action for action, cell in placements(grid).items()}
        best, found = -WIN * 2, 0
        for stone in self._order:
            if stone not in actions:
                continue
            if wins & stone:
                value = WIN + (self._full & ~(me | op)).bit_count()
            else:
                mine = me | stone
                grown = self._grown(wins, mine, stone.bit_length() - 1)
                value = -self._value(op, mine, threats, grown, self._depth - 1, -WIN * 2, 1 - best)
            found = found | stone if value == best else stone if value > best else found
            best = max(best, value)
        return [action for stone, action in actions.items() if stone & found]

    def _value(
        self, me: int, op: int, wins: int, threats: int, depth: int, low: int, high: int
    ) -> int:
        """Value for the side to move if in (low, high), else a bound of it.

        wins, threats: the cells that complete something for each side.
        """
        playable = playable_cells(self._game, self._rows, self._cols, me | op)
        if not playable:
            return 0
        free = (self._full & ~(me | op)).bit_count()
        if wins & playable:
            return WIN + free
        if forced := threats & playable:
            # Two threats cannot both be blocked. A block is forced and uses up no depth.
            if forced & (forced - 1):
                return 1 - WIN - free
            mine = me | forced
            grown = self._grown(wins, mine, forced.bit_length() - 1)
            return -self._value(op, mine, threats, grown, depth, -high, -low)
        if depth <= 0:
            return self._estimate(me, op, wins, threats)
        # The next stone does not win, so at best the one after it does.
        if WIN + free - 2 <= low:
            return WIN + free - 2
        key = (me, op, depth if not self._solved else 0)
        least, most = self._known.get(key, (-WIN * 2, WIN * 2))
        if least >= high or least == most:
            return least
        if most <= low:
            return most
        alpha, high = max(low, least), min(high, most)
        best, bound = -WIN * 2, alpha
        for stone in self._order:
            if playable & stone:
                mine = me | stone
                grown = self._grown(wins, mine, stone.bit_length() - 1)
                value = -self._value(op, mine, threats, grown, depth - 1, -high, -bound)
                if value > best:
                    best, bound = value, max(bound, value)
                    if value >= high:
                        break
        self._known[key] = (least if best <= alpha else best, most if best >= high else best)
        return best

    def _completing(self, stones: int) -> int:
        if self._length:
            return line_completing_cells(self._rows, self._cols, self._length, stones)
        return connecting_cells(self._rows, self._cols, stones)

    def _grown(self, completing: int, stones: int, cell: int) -> int:
        """Cells that complete something after ``cell`` was added to ``stones``."""
        if not self._length:
            return connecting_cells(self._rows, self._cols, stones)
        for line in self._lines[cell]:
            missing = line & ~stones
            if not missing & (missing - 1):
                completing |= missing
        return completing

    def _estimate(self, me: int, op: int, wins: int, threats: int) -> int:
        free = ~(me | op)
        # Open winning cells, and many lines through own stones, promise wins beyond the depth.
        value = 20 * ((wins & free).bit_count() - (threats & free).bit_count())
        for weight, plane in self._planes:
            value += weight * ((me & plane).bit_count() - (op & plane).bit_count())
        return value


#: Results of solved boards are kept from move to move.
_search = cache(_Search)
