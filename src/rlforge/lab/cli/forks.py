"""``rlforge fork`` and ``rlforge analyse``."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from rlforge.cli.arguments import JsonFile, RunDir, say, write_result
from rlforge.cli.games import must_have_games
from rlforge.errors import ConfigError, command_line
from rlforge.show.console import Console
from rlforge.show.panels import Listing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlforge.lab.forks import Fork
    from rlforge.record.analyses import Analysis, Estimate, Moment
    from rlforge.types import GameRecord

#: Characters of the line on which an analysis draws a value.
_SCALE = 15
#: Most actions that a fork lists.
_MOST_LISTED = 10

Game = Annotated[
    str, typer.Argument(metavar="GAME", help="A game's id, as rlforge replay lists it, or latest.")
]
Seats = Annotated[
    list[str] | None,
    typer.Option(
        "--seat",
        metavar="N=NAME",
        help="Repeatable: who plays on at seat N, in place of the game's policy: latest, step-N, "
        "a scripted player, an API model. NAME alone: at the seat to move.",
    ),
]


def fork(
    run_dir: RunDir,
    game: Game,
    turn: Annotated[
        int, typer.Option("--turn", metavar="T", help="Play on from before this turn, from 1.")
    ],
    action: Annotated[
        str, typer.Option(metavar="A", help="Taken at that turn. Default: the policy answers.")
    ] = "",
    seat: Seats = None,
    samples: Annotated[
        int, typer.Option("--samples", min=1, metavar="N", help="Continuations to play.")
    ] = 100,
    json_file: JsonFile = None,
) -> None:
    """Play a finished game on from one of its turns, many times: what else could have happened.

    What was hidden stays as it was dealt; answers, and chance events to come, are drawn anew.

    **Examples**

    ```bash
    rlforge fork RUN eval-80-step-80-000012 --turn 7 --samples 400
    rlforge fork RUN eval-80-step-80-000012 --turn 7 --action "[3]"
    rlforge fork latest latest --turn 1 --seat 1=win_block
    ```
    """
    from rlforge.lab import forks

    record = _found(run_dir, game)
    start = forks.Start(turn=turn, games=samples, action=action)
    seats = _seats(seat or [], record, turn)
    found = asyncio.run(forks.fork_game(run_dir, record, start, seats, say))
    by_player = {player: _as_data(found.reward(player)) for player in record.rewards}
    mover = record.turns[turn - 1].player_id
    taken = found.by_action(mover)
    write_result(
        json_file,
        {
            "game_id": record.spec.game_id,
            "turn": turn,
            "action": found.start.action,
            "games": len(found.records),
            "failed": len(found.records) - len(found.played),
            "rewards": by_player,
            "player": mover,
            "by_action": {name: _as_data(each) for name, each in taken.items()},
        },
    )
    console = Console(highlight=False)
    console.print(_heading(record))
    begun = f"with {found.start.action} at" if found.start.action else "from"
    failed = len(found.records) - len(found.played)
    more = f", {failed} others failed" if failed else ""
    console.print(Text(f"{len(found.played)} continuations {begun} turn {turn}{more}", style="dim"))
    console.print(_results(found, record))
    if not found.start.action:
        console.print()
        console.print(_actions(taken, mover, record.turns[turn - 1].action))


def analyse(
    run_dir: RunDir,
    game: Game,
    player: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Whose value. Default: of the evaluated policy, or the first that trains.",
        ),
    ] = None,
    seat: Seats = None,
    samples: Annotated[
        int, typer.Option("--samples", min=2, metavar="N", help="Continuations of each turn.")
    ] = 64,
    seconds: Annotated[
        float | None, typer.Option(min=1, metavar="S", help="Stop after about so long, with fewer.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Find the turns at which a finished game was won or lost, by playing on from each of them.

    The value of a position is the mean reward of its continuations. A turn is marked where its
    change of the value is no chance, at 95 % over all turns; where it was a mistake, the other
    legal actions are tried too. The result is kept in the run, for its report.

    **Examples**

    ```bash
    rlforge analyse RUN eval-80-step-80-000012
    rlforge analyse latest latest --samples 256
    rlforge analyse latest latest --seconds 30 --seat 0=latest --seat 1=minimax
    ```
    """
    from rlforge.lab import forks
    from rlforge.record.analyses import write_analysis

    record = _found(run_dir, game)
    seats = _seats(seat or [], record, None)
    done = asyncio.run(
        forks.analyse_game(
            run_dir, record, player=player, seats=seats, samples=samples, seconds=seconds, say=say
        )
    )
    file = write_analysis(run_dir, done)
    write_result(json_file, done)
    console = Console(highlight=False)
    console.print(_heading(record))
    games = f"{done.games:,} continuations" + (f", {done.failed} failed" if done.failed else "")
    who = f"player {done.player} ({done.seats[done.player]})"
    console.print(Text(f"value for {who}, {games}", style="dim"))
    console.print(_values(done))
    for line in _decisive(done):
        console.print(line)
    typer.echo(f"{file}; {command_line('report', run_dir)} draws it", err=True)


def _found(run_dir: RunDir, game: str) -> GameRecord:
    from rlforge.show.replay import find_game

    must_have_games(run_dir)
    return find_game(run_dir, game)


def _seats(given: Sequence[str], record: GameRecord, turn: int | None) -> dict[int, str]:
    """Policies by seat. turn: a name without a number plays at its seat; None: each needs one."""
    seats = {}
    for text in given:
        number, equals, name = text.partition("=")
        if equals and number.strip().isdecimal() and name.strip():
            seats[int(number)] = name.strip()
        elif not equals and turn is not None and 1 <= turn <= len(record.turns):
            seats[record.turns[turn - 1].player_id] = text.strip()
        else:
            raise ConfigError(f"--seat {text}: write the number of a seat and a name, as 1=latest")
    return seats


def _heading(record: GameRecord) -> Text:
    spec = record.spec
    who = " v ".join(seat.policy.uid for seat in spec.seats)
    return Text(f"{spec.env_id}, game {spec.game_id}: {who}", style="bold")


def _results(found: Fork, record: GameRecord) -> Table:
    names = ("player", "policy")
    table = Listing(*names, "won", "draw", "lost", "reward", "in the game", left=names)
    played, env = found.played, record.spec.env
    for seat in found.records[0].spec.seats:
        player = seat.player_id
        results = Counter(env.outcome(one.rewards, player) for one in played)
        shares = [f"{results[result] / len(played):.0%}" for result in ("win", "draw", "loss")]
        then = f"{record.rewards[player]:+g}" if record.error is None else "failed"
        table.add_row(
            str(player), seat.policy.uid, *shares, _with_interval(found.reward(player)), then
        )
    return table


def _actions(taken: dict[str, Estimate], player: int, then: str) -> Table:
    reward = f"reward of player {player}"
    table = Listing("action", "games", reward, "", left=["action"], whole=[""])
    for action, each in list(taken.items())[:_MOST_LISTED]:
        mark = "taken in the game" if action == then else ""
        table.add_row(action or "nothing", str(each.games), _with_interval(each), mark)
    if (more := len(taken) - _MOST_LISTED) > 0:
        table.add_row(f"{more} others", "", "", "")
    return table


def _values(done: Analysis) -> Table:
    first = done.moments[0].before
    titles = ("turn", "player", "plays", "value", "", "change")
    table = Listing(*titles, left=["player", "plays"], whole=[""])
    ends = [one.after for one in done.moments]
    low, high = min(each.low for each in (first, *ends)), max(each.high for each in (first, *ends))
    table.add_row("", "", "the start", _with_interval(first), _bar(first, low, high), "")
    for one in done.moments:
        style = _style(one)
        table.add_row(
            str(one.turn),
            f"{one.player} {one.policy}",
            one.action or "nothing",
            _with_interval(one.after),
            _bar(one.after, low, high),
            Text(f"{one.change:+.2f}", style=style or "dim"),
        )
    return table


def _decisive(done: Analysis) -> list[Text]:
    lines = []
    for one in done.moments:
        if not one.decisive:
            continue
        gains = "gains" if one.change > 0 else "loses"
        better = ""
        if one.best is not None and one.best_reward is not None:
            better = (
                f"; {one.best} leads to {_with_interval(one.best_reward)} instead of "
                f"{_with_interval(one.own_after)}"
            )
        lines.append(
            Text(
                f"turn {one.turn}: player {one.player} ({one.policy}) {gains} "
                f"{abs(one.change):.2f} with {one.action or 'no action'}{better}",
                style=_style(one),
            )
        )
    return lines or [Text("no turn is decisive: none changes the value by more than chance")]


def _style(one: Moment) -> str:
    return "" if not one.decisive else "green" if one.change > 0 else "red"


def _bar(each: Estimate, low: float, high: float) -> str:
    """Draw the interval and the mean on a scale from ``low`` to ``high``."""

    def at(number: float) -> int:
        return round((number - low) / ((high - low) or 1.0) * (_SCALE - 1))

    begin, end = at(each.low), at(each.high)
    line = ["─" if begin <= place <= end else " " for place in range(_SCALE)]
    line[at(each.mean)] = "●"
    return "".join(line)


def _with_interval(each: Estimate) -> str:
    # Means that are known for sure, such as a game's result, have no interval.
    return f"{each.mean:+.2f}" + (f" ± {each.half:.2f}" if each.half else "")


def _as_data(each: Estimate) -> dict[str, float]:
    return {"mean": each.mean, "low": each.low, "high": each.high, "games": each.games}
