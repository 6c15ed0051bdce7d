"""What training games say in numbers: the metrics ``collection-ENV/…``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rlforge.tracking.metrics import Metrics
from rlforge.tracking.progress import CollectionRow
from rlforge.tracking.stats import outcome
from rlforge.types import GameRecord


def put_game(metrics: Metrics, record: GameRecord) -> None:
    """Take one finished game into ``metrics``.

    Per game: ``failed_rate``, ``game_length`` (turns), ``duration_s``, ``first_player_win_rate``.
    Per trained seat: ``reward`` (raw), ``win_rate``, ``draw_rate``, ``loss_rate`` and
    ``invalid_game_rate`` (lost by its own invalid move). Per turn of a trained seat:
    ``format_success``, ``invalid_rate``, ``completion_length`` (tokens) and ``truncated_rate``
    (answers cut at the token limit). A failed game counts only as failed.
    """
    prefix = f"collection-{record.spec.env_id}"
    metrics.put(f"{prefix}/failed_rate", float(record.error is not None))
    if record.error is not None:
        return
    first_won = outcome(record.rewards, 0) == "win"
    metrics.put(f"{prefix}/game_length", len(record.turns))
    metrics.put(f"{prefix}/duration_s", record.duration_s)
    metrics.put(f"{prefix}/first_player_win_rate", float(first_won))
    trained = [seat.player_id for seat in record.spec.seats if seat.trained]
    for player in trained:
        result = outcome(record.rewards, player)
        metrics.put(f"{prefix}/reward", record.rewards[player])
        for name in ("win", "draw", "loss"):
            metrics.put(f"{prefix}/{name}_rate", float(result == name))
        metrics.put(f"{prefix}/invalid_game_rate", float(record.invalid_by == player))
    for turn in record.turns:
        if turn.player_id in trained:
            answer = turn.completion
            metrics.put(f"{prefix}/format_success", float(turn.well_formed))
            metrics.put(f"{prefix}/invalid_rate", float(not turn.legal))
            metrics.put(f"{prefix}/completion_length", len(answer.token_ids))
            metrics.put(f"{prefix}/truncated_rate", float(answer.finish_reason == "length"))


def collection_rows(metrics: Metrics, games: Mapping[str, int]) -> tuple[CollectionRow, ...]:
    """The display's rows, by env id. games: finished games per env id."""
    heads = {key.partition("/")[0] for key in metrics.means("collection-")}
    measured = [
        field.name
        for field in dataclasses.fields(CollectionRow)
        if field.name not in ("env_id", "games")
    ]
    return tuple(
        CollectionRow(
            env_id=head.removeprefix("collection-"),
            games=games.get(head.removeprefix("collection-"), 0),
            **{name: metrics.mean(f"{head}/{name}") for name in measured},
        )
        for head in sorted(heads)
    )
