"""Named scalars, gathered for the sinks, and the scalars of training games."""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import Mapping

from rlforge.record.progress import CollectionRow
from rlforge.types import EvalResult, GameRecord

NAMESPACES = (
    *("collection-", "evaluation-", "exact-", "inference/", "learner/", "policies/", "pool/"),
    *("sentinel/", "signals/", "window/", "api/", "custom/", "system/"),
)


class Metrics:
    """Gathers named scalars that are measured more often than they are recorded.

    ``drain`` gives what came since its last call: the mean of values that were ``put``, the last
    that was ``set``. Of ``collection-ENV/…`` it gives the mean of the last ``window`` values.

    Example:
        >>> metrics = Metrics(window=2)
        >>> for rate, queued in ((30.0, 7), (10.0, 4)):
        ...     metrics.put("inference/engine-0/tok_s", rate)
        ...     metrics.set("inference/engine-0/queued", queued)
        >>> metrics.drain(), metrics.drain()
        ({'inference/engine-0/tok_s': 20.0, 'inference/engine-0/queued': 4.0}, {})
    """

    def __init__(self, window: int) -> None:
        self._recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=window))
        self._fresh: dict[str, list[float]] = defaultdict(list)

    def put(self, key: str, number: float) -> None:
        """Add a value of a mean; ValueError for a key in none of ``NAMESPACES``."""
        _check(key)
        self._fresh[key].append(float(number))
        if key.startswith("collection-"):  # one per game, turn or seat: noisy
            self._recent[key].append(float(number))

    def set(self, key: str, number: float) -> None:
        """Note the state of a gauge or counter; raises as ``put``."""
        _check(key)
        self._fresh[key] = [float(number)]

    def means(self) -> dict[str, float]:
        """Means of ``collection-ENV/…``."""
        return {key: sum(values) / len(values) for key, values in self._recent.items()}

    def drain(self) -> dict[str, float]:
        drained = {}
        for key, values in self._fresh.items():
            shown = self._recent.get(key, values)
            drained[key] = sum(shown) / len(shown)
        self._fresh.clear()
        return drained


class RecentGames:
    """The newest ``window`` evaluation games against an opponent, of any version."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._results: deque[EvalResult] = deque()

    def add(self, result: EvalResult) -> None:
        self._results.append(result)
        held = sum(one.games for one in self._results)
        while held - self._results[0].games >= self._window:
            held -= self._results.popleft().games

    def means(self) -> dict[str, float]:
        """``recent_win_rate``, ``recent_reward`` and ``recent_games``; 0 without games."""
        games, won, reward = 0, 0.0, 0.0
        for result in reversed(self._results):
            # Single games are not known: the oldest result counts by its means, as it fits.
            counted = min(result.games, self._window - games)
            games += counted
            won += counted * result.win_rate
            reward += counted * result.mean_reward
        return {
            "recent_win_rate": won / max(games, 1),
            "recent_reward": reward / max(games, 1),
            "recent_games": float(games),
        }


def _check(key: str) -> None:
    prefix, slash, name = key.partition("/")
    # Sinks choose the x axis by namespace: a key in none would have the wrong one.
    if not slash or not name or not f"{prefix}/".startswith(NAMESPACES):
        known = ", ".join(f"{namespace}…" for namespace in NAMESPACES)
        raise ValueError(f"metric {key!r} is in none of the namespaces {known}")


def put_game(metrics: Metrics, record: GameRecord) -> None:
    """Add a game as ``collection-ENV/…``: values of it, of its trained seats and turns."""
    prefix = f"collection-{record.spec.env_id}"
    metrics.put(f"{prefix}/failed_rate", float(record.error is not None))
    if record.error is not None:  # rewards and turns of it would be those of the failure
        return
    env = record.spec.env
    metrics.put(f"{prefix}/game_length", len(record.turns))
    metrics.put(f"{prefix}/duration_s", record.duration_s)
    for reason in ("turn_limit", "context_limit", "timeout"):
        metrics.put(f"{prefix}/{reason}_rate", float(record.end_reason == reason))
    first_won = env.outcome(record.rewards, 0) == "win"
    metrics.put(f"{prefix}/first_player_win_rate", float(first_won))
    for player in record.spec.trained:
        result = env.outcome(record.rewards, player)
        metrics.put(f"{prefix}/reward", record.rewards[player])
        for name in ("win", "draw", "loss"):
            metrics.put(f"{prefix}/{name}_rate", float(result == name))
        metrics.put(f"{prefix}/invalid_game_rate", float(record.invalid_by == player))
    for turn in record.turns:
        if turn.player_id in record.spec.trained:
            answer = turn.completion
            metrics.put(f"{prefix}/format_success", float(turn.well_formed))
            metrics.put(f"{prefix}/invalid_rate", float(not turn.legal))
            metrics.put(f"{prefix}/completion_length", len(answer.token_ids))
            cut = answer.finish_reason in ("length", "context")
            metrics.put(f"{prefix}/truncated_rate", float(cut))
            if "history_cut" in turn.info:  # it does not continue the tokens of the last turn
                metrics.put(f"{prefix}/history_cut_rate", float(turn.info["history_cut"]))


def collection_rows(metrics: Metrics, games: Mapping[str, int]) -> tuple[CollectionRow, ...]:
    """The display's rows, by env id. games: finished games per env id."""
    means = metrics.means()
    heads = {key.partition("/")[0] for key in means}
    measured = [
        field.name
        for field in dataclasses.fields(CollectionRow)
        if field.name not in ("env_id", "games")
    ]
    return tuple(
        CollectionRow(
            env_id=head.removeprefix("collection-"),
            games=games.get(head.removeprefix("collection-"), 0),
            **{name: means.get(f"{head}/{name}") for name in measured},
        )
        for head in sorted(heads)
    )
