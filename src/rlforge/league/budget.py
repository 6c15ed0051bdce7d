"""Budget of API players: what their games take in a run, and when none may begin any more."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rlforge.config.pool import ApiConfig
from rlforge.record.files import read_json, write_json
from rlforge.record.results import ApiUsage
from rlforge.system.values import from_json
from rlforge.types import GameSpec


class ApiBudget:
    """Counts games, requests and money of API players, and closes at ``pool.api``'s limits."""

    def __init__(self, config: ApiConfig, file: Path | None = None) -> None:
        # The counts are no part of the state that a run is resumed from: money stays spent.
        self._config, self._file = config, file
        saved = {} if file is None else read_json(file)
        players = from_json(list[ApiUsage], saved.get("players", ()))
        self._players = {one.uid: one for one in players}
        #: Games with API players that have begun, and evaluation games that were left out.
        self.games: int = saved.get("games", 0)
        self.declined: int = saved.get("declined", 0)

    @property
    def players(self) -> tuple[ApiUsage, ...]:
        return tuple(self._players.values())

    @property
    def closed(self) -> str | None:
        """Why no game with API players may begin; None: it may."""
        config, cost = self._config, sum(one.cost for one in self.players)
        spent = f"${cost:.2f} in {self.games} games"
        if config.max_games is not None and self.games >= config.max_games:
            return f"pool.api.max_games={config.max_games} is used: {spent}"
        if config.max_cost is None:
            return None
        if cost >= config.max_cost:
            return f"pool.api.max_cost={config.max_cost:g} is used: {spent}"
        unknown = next((one.uid for one in self.players if one.unpriced), None)
        if unknown is None:
            return None
        return (
            f"pool.api.max_cost={config.max_cost:g} cannot be kept: the price of an answer of "
            f"{unknown} is not known; set pool.api.prices"
        )

    def admit(self, spec: GameSpec) -> bool:
        """Begin an evaluation game and return True, or count it as declined."""
        if api_players(spec) and self.closed is not None:
            self.declined += 1
            return False
        self.begin(spec)
        return True

    def begin(self, spec: GameSpec) -> None:
        players = api_players(spec)
        self.games += bool(players)
        self.spend([ApiUsage(uid=uid, games=1) for uid in players])

    def spend(self, usage: Iterable[ApiUsage]) -> None:
        for one in usage:
            self._players[one.uid] = self._players.get(one.uid, ApiUsage(uid=one.uid)).plus(one)

    def save(self) -> None:
        assert self._file is not None
        counts = {"games": self.games, "declined": self.declined, "closed": self.closed}
        write_json(self._file, {"players": self.players, **counts})


def api_players(spec: GameSpec) -> tuple[str, ...]:
    """The API players of a game, each once."""
    uids = (seat.policy.uid for seat in spec.seats if seat.policy.kind == "api")
    return tuple(dict.fromkeys(uids))
