"""Finished games of a run, in the terminal: a list of them, or one turn by turn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rlforge.errors import ConfigError, nearest
from rlforge.tracking.game_files import GameIndex, index_games, read_games
from rlforge.types import GameRecord, GameSpec, Turn

MOST_LISTED = 20


def game_list(run_dir: Path, most: int = MOST_LISTED) -> RenderableType:
    """The newest ``most`` games of a run, newest last."""
    games = index_games(run_dir)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("game", no_wrap=True)  # is typed again, to see it
    for title in ("environment", "seats"):
        table.add_column(title, overflow="fold")
    table.add_column("turns", justify="right", no_wrap=True)
    table.add_column("rewards", overflow="fold")
    for game in games[-most:]:
        table.add_row(
            game.spec.game_id, game.spec.env_id, _seats(game.spec), str(game.num_turns), _end(game)
        )
    count = Text(f"{len(games)} finished games; the newest {min(most, len(games))}:", style="dim")
    return Group(count, table) if games else Text("no game is finished yet")


def find_game(run_dir: Path, game_id: str) -> GameRecord:
    """The game ``game_id`` of a run; ConfigError with the nearest ids when there is none."""
    for record in read_games(run_dir, [game_id]):
        return record
    ids = [game.spec.game_id for game in index_games(run_dir)]
    mend = nearest(game_id, ids) or f"; rlforge replay {run_dir} lists them"
    raise ConfigError(f"game {game_id!r}: not among the {len(ids)} finished games{mend}")


def turns(record: GameRecord) -> Iterator[RenderableType]:
    """The game from its head to its end, one piece per turn."""
    spec = record.spec
    yield Text(
        f"{spec.env_id}, game {spec.game_id}, seed {spec.seed}: {_seats(spec)}", style="bold"
    )
    read: dict[int, str] = {}
    for place, turn in enumerate(record.turns, start=1):
        # Most games repeat to a player what it was told before.
        new = turn.observation.removeprefix(read.get(turn.player_id, ""))
        read[turn.player_id] = turn.observation
        yield _turn(place, turn, new.strip())
    yield Rule(style="dim")
    end = record.end_reason.replace("_", " ")
    if record.invalid_by is not None:
        end += f" by player {record.invalid_by}"
    yield Text(f"{end}: {record.error or _rewards(record.rewards.values())}", style="bold")


def _turn(place: int, turn: Turn, told: str) -> RenderableType:
    answer = turn.completion
    who = f"{place}. player {turn.player_id} ({answer.policy_uid or 'unknown'})"
    action = Text(f"plays {turn.action or 'nothing'}", style="green" if turn.legal else "red")
    if answer.logprobs:
        action.append(f"  probability {math.exp(sum(answer.logprobs)):.3g}", style="dim")
    for mark, applies in (("wrong format", not turn.well_formed), ("illegal", not turn.legal)):
        if applies:
            action.append(f"  {mark}", style="bold red")
    said = answer.text.strip()
    spoken = [Text(said)] if said and said != turn.action else []
    return Group(Rule(who, align="left", style="dim"), Text(told, style="dim"), *spoken, action)


def _seats(spec: GameSpec) -> str:
    return " v ".join(seat.policy.uid for seat in spec.seats)


def _end(game: GameIndex) -> str:
    return "failed" if game.error is not None else _rewards(game.rewards.values())


def _rewards(rewards: Iterable[float]) -> str:
    return " ".join(f"{reward:+g}" for reward in rewards)
