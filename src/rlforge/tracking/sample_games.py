"""A few games of a run as rows of a table, for sinks that show tables."""

from __future__ import annotations

from typing import Any

from rlforge.tracking.files import RunPaths
from rlforge.tracking.formatting import ending
from rlforge.tracking.game_files import index_games, read_games


def sample_turns(run: RunPaths) -> list[dict[str, Any]]:
    """The turns of the games that report.html shows, one row each; empty without games.

    Raises:
        RlforgeError: a file of games is damaged.
    """
    # Imported late: a tracker without such sinks needs no page builder.
    from rlforge.tracking.report.games import choose, end_of

    titles = {game.spec.game_id: title for title, game in choose(index_games(run.root)).items()}
    records = {record.spec.game_id: record for record in read_games(run.root, list(titles))}
    return [
        {
            "game": title,
            "game_id": game_id,
            "env": records[game_id].spec.env_id,
            "end": ending(records[game_id]),
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
