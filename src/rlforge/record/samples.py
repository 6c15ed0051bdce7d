"""A few games that stand for a run, in its report and in the tables of its sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlforge.record.files import RunPaths
from rlforge.record.game_files import GameIndex, index_games, read_games
from rlforge.types import Seat

#: Most characters of an observation or answer: the last ones.
MOST_TEXT = 4000


def choose(games: Sequence[GameIndex]) -> dict[str, GameIndex]:
    """Games by title: of training the first, middle and last, of evaluations a loss and a win."""
    fine = [game for game in games if game.error is None and game.num_turns > 0]
    training = [game for game in fine if game.spec.purpose == "train"]
    chosen: dict[str, GameIndex] = {}
    if training:
        chosen["First training game"] = training[0]
        chosen["A training game half-way"] = training[len(training) // 2]
        chosen["Last training game"] = training[-1]
    evaluated = [game for game in fine if game.spec.focus is not None]
    # Games of the newest version alone: those of earlier ones are no result of the run.
    newest = max((_focus(game).policy.version for game in evaluated), default=0)
    shown = [game for game in evaluated if _focus(game).policy.version == newest]
    for result in ("loss", "win"):
        for game in shown:
            focus = _focus(game)
            if game.spec.env.outcome(game.rewards, focus.player_id) == result:
                chosen[f"Evaluation: a {result} of {focus.policy.uid}"] = game
                break
    # In short runs several titles stand for the same game: the first is kept.
    first = {game.spec.game_id: title for title, game in reversed(chosen.items())}
    return {title: game for title, game in chosen.items() if first[game.spec.game_id] == title}


def sample_turns(run: RunPaths) -> list[dict[str, Any]]:
    """Rows of the turns of the games of ``choose``; DamagedError for a damaged file."""
    titles = {game.spec.game_id: title for title, game in choose(index_games(run.root)).items()}
    records = {record.spec.game_id: record for record in read_games(run.root, list(titles))}
    return [
        {
            "game": title,
            "game_id": game_id,
            "env": records[game_id].spec.env_id,
            "end": records[game_id].ending,
            "turn": place,
            "player": turn.player_id,
            "policy": records[game_id].spec.seats[turn.player_id].policy.uid,
            "observation": end_of(turn.observation),
            "answer": end_of(turn.completion.text),
            "action": turn.action,
            "well_formed": turn.well_formed,
            "legal": turn.legal,
            "reward": records[game_id].rewards.get(turn.player_id),
        }
        for game_id, title in titles.items()
        for place, turn in enumerate(records[game_id].turns, start=1)
    ]


def _focus(game: GameIndex) -> Seat:
    return next(seat for seat in game.spec.seats if seat.player_id == game.spec.focus)


def end_of(text: str) -> str:
    """The end of a long text."""
    # The end is kept: it has the position and the action, the beginning repeats the rules.
    if len(text) <= MOST_TEXT:
        return text
    return f"[{len(text) - MOST_TEXT} characters left out] … {text[-MOST_TEXT:]}"
