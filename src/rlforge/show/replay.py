"""Finished games: lists, and one turn by turn, also as a picture."""

from __future__ import annotations

import dataclasses
import io
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.segment import Segment, SegmentLines
from rich.text import Text

from rlforge.errors import ConfigError, RlforgeError, check_type, command_line, nearest
from rlforge.games.board import grid_text
from rlforge.games.grids import Grid, placements
from rlforge.games.observations import news
from rlforge.record.game_files import GameIndex, index_games, read_games
from rlforge.rollout.episode import replayed
from rlforge.show.console import Console
from rlforge.show.panels import Listing
from rlforge.show.report.games import marks
from rlforge.system.files import write_out
from rlforge.system.folders import check_file
from rlforge.types import EnvSpec, GameRecord, GameSpec, Turn

MOST_LISTED = 20
#: Lines of what a player sees, and turns before a telling one, in an excerpt.
_NEW_LINES, _NEAR = 8, 3

# ---------------------------------------------------------------- which games


def _result(game: GameIndex) -> str:
    if game.error is not None:
        return "failed"
    return game.spec.env.outcome(game.rewards, game.spec.viewpoint)


def _versions(game: GameIndex) -> list[str]:
    own = {game.spec.viewpoint, *game.spec.trained}
    return [
        str(seat.policy.version)
        for seat in game.spec.seats
        if seat.player_id in own and seat.policy.kind == "checkpoint"
    ]


_VALUES: dict[str, Callable[[GameIndex], list[str]]] = {
    "purpose": lambda game: [game.spec.purpose],
    "step": _versions,
    "opponent": lambda game: [
        seat.policy.uid for seat in game.spec.seats if seat.player_id != game.spec.viewpoint
    ],
    "result": lambda game: [_result(game)],
    "env": lambda game: [game.spec.env_id],
}
"""Values that each filter compares, in the order of messages."""


def select(games: Sequence[GameIndex], wanted: Mapping[str, str]) -> list[GameIndex]:
    """The games that have all ``wanted``; ConfigError for none, with the nearest value.

    Of the evaluated or a trained policy: ``step``, ``result``; ``opponent``: at another seat.
    """
    found = [
        game
        for game in games
        if all(value in _VALUES[name](game) for name, value in wanted.items())
    ]
    if games and not found:
        reasons = []
        for name, value in wanted.items():
            counts = Counter(known for game in games for known in _VALUES[name](game))
            if value not in counts:
                common = [known for known, _ in counts.most_common(6)]
                more = ", …" if len(counts) > len(common) else ""
                there = f"; there are {', '.join(common)}{more}" if common else ""
                reasons.append(f"--{name} {value}{nearest(value, counts) or there}")
        # Each value may occur, and only their combination not.
        whole = " ".join(f"--{name} {value}" for name, value in wanted.items())
        which = " nor ".join(reasons) or f"{whole} together; leave one out"
        raise ConfigError(f"none of the {len(games):,} finished games has {which}")
    return found


def find_game(run_dir: Path, game_id: str, wanted: Mapping[str, str] | None = None) -> GameRecord:
    """The game of this id, or the ``latest`` that has all ``wanted``; ConfigError for none."""
    check_type(game_id, str, what="a game is named by its id, or 'latest'")
    if game_id == "latest":
        games = select(index_games(run_dir), wanted or {})
        if not games:
            raise ConfigError(f"{run_dir}: no game is finished yet")
        game_id = games[-1].spec.game_id
    for record in read_games(run_dir, [game_id]):
        return record
    ids = [game.spec.game_id for game in index_games(run_dir)]
    mend = nearest(game_id, ids) or f"; {command_line('replay', run_dir)} lists them"
    raise ConfigError(f"game {game_id!r}: not among the {len(ids)} finished games{mend}")


def game_list(
    run_dir: Path, most: int = MOST_LISTED, wanted: Mapping[str, str] | None = None
) -> RenderableType:
    """The newest ``most`` games that have all ``wanted``, newest last."""
    games = index_games(run_dir)
    if not games:
        return Text("no game is finished yet")
    found = select(games, wanted or {})
    shown = found[-most:]
    envs = {game.spec.env_id for game in shown}
    texts = [*(["environment"] if len(envs) > 1 else []), "seats"]
    table = Listing(
        *("game", *texts, "turns", "result", "rewards"),
        left=[*texts, "rewards"],
        whole=["game", "result"],  # the id is an argument of the next command
    )
    for game in shown:
        table.add_row(
            game.spec.game_id,
            *([game.spec.env_id] if len(envs) > 1 else []),
            _seats(game.spec),
            str(game.num_turns),
            _result(game),
            _rewards(game.rewards.values()),
        )
    purposes = Counter(game.spec.purpose for game in found)
    kinds = ", ".join(f"{number:,} {purpose}" for purpose, number in purposes.items())
    only = f"\nall of {envs.pop()}" if len(envs) == 1 else ""
    count = f"{len(found):,} finished games ({kinds}); the newest {len(shown)}:{only}"
    return Group(Text(count, style="dim"), table)


# ---------------------------------------------------------------- one game


def title(spec: GameSpec) -> str:
    return f"{spec.env_id}, game {spec.game_id}, seed {spec.seed}: {_seats(spec)}"


def turns(record: GameRecord) -> Iterator[RenderableType]:
    """A heading, a piece per turn, and the result."""
    spec = record.spec
    yield Text(title(spec), style="bold")
    drawn = boards(record)
    begun: set[int] = set()
    for place, (turn, new) in enumerate(zip(record.turns, news(record), strict=True)):
        # The board shows the position again; a retry says what was wrong with the last action.
        hidden = drawn and turn.player_id in begun and not turn.info.get("retry")
        begun.add(turn.player_id)
        board = drawn[place] if drawn else ""
        yield _turn(place + 1, turn, "" if hidden else new, board)
    yield Rule(style="dim")
    yield from _ending(record)


def excerpt(record: GameRecord, telling: Collection[int]) -> Iterator[RenderableType]:
    """A game on a screen: turns of ``telling`` in full, the others near them in a line each."""
    drawn, left_out = boards(record), 0
    for place, (turn, new) in enumerate(zip(record.turns, news(record), strict=True), 1):
        if place in telling:
            yield from _left_out(left_out)
            seen = "" if drawn else _end_of(new)
            yield _turn(place, turn, seen, drawn[place - 1] if drawn else "")
            left_out = 0
        elif any(place < one <= place + _NEAR for one in telling):
            yield from _left_out(left_out)
            wrong = "".join(f"{mark}, " for mark in marks(turn))
            brief = f"{place}. player {turn.player_id} {wrong}plays {turn.action or 'nothing'}"
            yield Group(Text(" ".join(brief.split()), no_wrap=True, overflow="ellipsis"))
            left_out = 0
        else:
            left_out += 1
    yield from _left_out(left_out)
    yield from _ending(record)


def _left_out(turns: int) -> Iterator[Text]:
    if turns:
        yield Text(f"… {turns} turn{'s' * (turns > 1)}", style="dim")


def _end_of(observed: str) -> str:
    # The end has the position; the beginning repeats the rules.
    lines = observed.splitlines()
    before = len(lines) - _NEW_LINES
    return "\n".join([f"… {before} lines before", *lines[before:]] if before > 0 else lines)


def _ending(record: GameRecord) -> Iterator[Text]:
    if record.error is None:
        seats, env = record.spec.seats, record.spec.env
        won = [one for one in seats if env.outcome(record.rewards, one.player_id) == "win"]
        undecided = "a draw" if len(seats) > 1 else "not won"
        winner = f"player {won[0].player_id} ({won[0].policy.uid}) wins" if won else undecided
        yield Text(winner, style="bold")
    result = record.error or _rewards(record.rewards.values())
    yield Text(f"{record.ending}: {result}", style="bold")


def scenes(record: GameRecord) -> list[RenderableType]:
    """A picture per turn, each below the heading; the last one has the result."""
    heading, *pieces = turns(record)
    before, end = pieces[: len(record.turns)], pieces[len(record.turns) :]
    *others, last = before or [Text("no turn was played")]
    return [Group(heading, piece) for piece in [*others, Group(last, *end)]]


def step_through(record: GameRecord, console: Console, key: Callable[[], str] = input) -> None:
    """Show ``scenes`` one at a time. key: returns a line: b back, q end, else the next."""
    shown = scenes(record)
    place = 0
    while place < len(shown):
        console.clear()
        console.print(shown[place])
        console.print(f"\nturn {place + 1} of {len(shown)}: Enter next, b back, q quit ", end="")
        typed = key().strip().lower()
        if typed == "q":
            return
        place = max(place - 1, 0) if typed == "b" else place + 1


def boards(record: GameRecord) -> list[str]:
    """The board after each turn, in the game's marks, the last stone in brackets.

    The game is played again. Empty for games without a grid, and where that fails.

    Example:
        >>> from rlforge import play_game
        >>> game = play_game("tictactoe", lambda view: view.legal_actions[-1], seed=1)
        >>> print(boards(game)[1])
         0 | 1 | 2
         3 | 4 | 5
         6 |[X]| O
    """
    drawn = []
    try:
        for game, turn in replayed(record):
            view = None if game.done else game.view()
            # A game may go otherwise than its record: a wrong board is worse than none.
            if view is None or view.grid is None or view.player_id != turn.player_id:
                return []
            drawn.append(_board(record.spec.env, view.grid, turn))
    except RlforgeError:
        return []
    return drawn


def _board(env: EnvSpec, grid: Grid, turn: Turn) -> str:
    """The position after ``turn``; grid: before it, from the side of its player."""
    placed = placements(grid).get(turn.action) if turn.legal else None
    stones = {
        turn.player_id: grid.me | (0 if placed is None else 1 << placed),
        1 - turn.player_id: grid.op,
    }
    # Marks as in the game's own texts: in some the second player has the crosses.
    crosses = 0 if env.source == "openspiel" or grid.game == "connectfour" else 1
    text = grid_text(dataclasses.replace(grid, me=stones[crosses], op=stones[1 - crosses]))
    rows = [row.split("|") for row in text.splitlines()]
    if grid.game == "connectfour":  # its moves name columns, not squares
        rows = [["." if cell.isdigit() else cell for cell in row] for row in rows]
    wide = max(len(cell) for row in rows for cell in row)
    cells = [f" {cell:>{wide}} " for row in rows for cell in row]
    if placed is not None:
        cells[placed] = f"{f'[{cells[placed].strip()}]':>{wide + 2}}"
    lines = ["|".join(cells[at : at + grid.cols]) for at in range(0, len(cells), grid.cols)]
    if grid.game == "connectfour":
        lines.insert(0, " ".join(f" {column:>{wide}} " for column in range(grid.cols)))
    return "\n".join(line.rstrip() for line in lines)


def _turn(place: int, turn: Turn, observed: str, board: str) -> RenderableType:
    answer = turn.completion
    title = f"{place}. player {turn.player_id} ({answer.policy_uid or 'unknown'})"
    action = Text(f"plays {turn.action or 'nothing'}", style="green" if turn.legal else "red")
    if answer.logprobs:
        action.append(f"  probability {math.exp(sum(answer.logprobs)):.3g}", style="dim")
    for mark in marks(turn):
        action.append(f"  {mark}", style="bold red")
    text = answer.text.strip()
    return Group(
        Rule(Text(title), align="left", style="dim"),
        *([Text(observed, style="dim")] if observed else []),
        *([Text(text)] if text and text != turn.action else []),
        action,
        *([Text(f"\n{board}\n")] if board else []),
    )


def _seats(spec: GameSpec) -> str:
    return " v ".join(seat.policy.uid for seat in spec.seats)


def _rewards(rewards: Iterable[float]) -> str:
    return " ".join(f"{reward:+zg}" for reward in rewards)


# ---------------------------------------------------------------- as a picture

#: Columns of text, and lines of a turn: of a longer one, the last ones.
_COLUMNS, _MOST_LINES = 80, 40
#: Seconds of a turn, and turns that the last one takes.
_TURN_S, _LAST = 1.5, 3
#: Size of a letter, as Rich draws it.
_LETTER, _LINE = 12.2, 24.4

_PART = "<style>{styles}</style><defs>{lines}</defs>{backgrounds}{matrix}"


def check_picture(file: Path) -> None:
    """Raise ConfigError where ``write_svg`` cannot write ``file``."""
    if file.suffix.lower() != ".svg":
        raise ConfigError(f"--export {file}: pictures are SVG; write NAME.svg")
    check_file("--export", file)


def write_svg(record: GameRecord, file: Path) -> None:
    """Write the game as an SVG that shows its turns in a loop, or its end where nothing moves."""
    parts = [_console().render_lines(scene, pad=False)[-_MOST_LINES:] for scene in scenes(record)]
    # Delays are negative: with positive ones the last turn, visible by itself, would show until
    # its animation begins.
    slots = len(parts) - 1 + _LAST
    whole = slots * _TURN_S
    frames = "".join(
        f'<g class="turn" style="animation-delay:{place * _TURN_S - whole:g}s">'
        f"{_drawn(part, place)}</g>"
        for place, part in enumerate(parts)
    )
    width, height = _COLUMNS * _LETTER + 20, max(map(len, parts)) * _LINE + 20
    style = (
        "text{font:20px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
        ".turn{visibility:hidden;animation:turn " + f"{whole:g}s step-end infinite}}"
        ".turn:last-child{visibility:visible;animation-name:last}"
        f"@keyframes turn{{0%{{visibility:visible}}{100 / slots:g}%{{visibility:hidden}}}}"
        f"@keyframes last{{0%{{visibility:visible}}{100 * _LAST / slots:g}%{{visibility:hidden}}}}"
        "@media(prefers-reduced-motion:reduce){.turn{animation:none}}"
    )
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#292929"/>'
        f'<g transform="translate(10 10)">{frames}</g></svg>\n'
    )
    write_out(file, picture)


def _console() -> Console:
    # In a notebook Rich would print there instead of recording.
    return Console(
        record=True, file=io.StringIO(), width=_COLUMNS, force_jupyter=False, highlight=False
    )


def _drawn(lines: list[list[Segment]], place: int) -> str:
    console = _console()
    console.print(SegmentLines(lines, new_lines=True), end="")
    # With one id, the styles of a turn would count for all.
    return console.export_svg(code_format=_PART, unique_id=f"t{place}")
