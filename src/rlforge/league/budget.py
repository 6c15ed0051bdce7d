"""Budget of API players: what their games take in a run, and when none may begin any more."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlforge.config.pool import ApiConfig, ApiSettings
from rlforge.errors import counted
from rlforge.record.files import read_json, write_json
from rlforge.record.results import ApiUsage
from rlforge.system.values import from_json
from rlforge.types import GameSpec


class ApiSpending:
    """Counts requests and money of models behind APIs, and closes at their limit.

    keys: the configuration group of ``config``, for messages.
    """

    def __init__(
        self, config: ApiSettings, file: Path | None = None, *, keys: str = "pool.api"
    ) -> None:
        # The counts are no part of the state that a run is resumed from: money stays spent.
        self._saved = {} if file is None else read_json(file)
        self._limits, self._file, self._keys = config, file, keys
        players = from_json(list[ApiUsage], self._saved.get("players", ()))
        self._players = {one.uid: one for one in players}

    @property
    def players(self) -> tuple[ApiUsage, ...]:
        return tuple(self._players.values())

    @property
    def cost(self) -> float:
        """Dollars so far."""
        return sum(one.cost for one in self.players)

    @property
    def closed(self) -> str | None:
        """Why no model may be asked any more; None: it may."""
        most = self._limits.max_cost
        if most is None:
            return None
        if self.cost >= most:
            return f"{self._keys}.max_cost={most:g} is used: {self.spent}"
        unknown = next((one.uid for one in self.players if one.unpriced), None)
        if unknown is None:
            return None
        return (
            f"{self._keys}.max_cost={most:g} cannot be kept: the price of an answer of "
            f"{unknown} is not known; set {self._keys}.prices"
        )

    @property
    def spent(self) -> str:
        """Dollars and requests so far."""
        requests = counted(sum(one.requests for one in self.players), "request")
        return f"${self.cost:.2f} in {requests}"

    @property
    def counts(self) -> dict[str, Any]:
        """Further values that are saved with the usage of each model."""
        return {"closed": self.closed}

    def spend(self, usage: Iterable[ApiUsage]) -> None:
        for one in usage:
            self._players[one.uid] = self._players.get(one.uid, ApiUsage(uid=one.uid)).plus(one)

    def save(self) -> None:
        assert self._file is not None
        write_json(self._file, {"players": self.players, **self.counts})


class ApiBudget(ApiSpending):
    """Counts the games of API players, too; none begins beyond ``pool.api``'s limits."""

    def __init__(self, config: ApiConfig, file: Path | None = None) -> None:
        super().__init__(config, file)
        self._max_games = config.max_games
        #: Games with API players that have begun, and evaluation games that were left out.
        self.games: int = self._saved.get("games", 0)
        self.declined: int = self._saved.get("declined", 0)

    @property
    def closed(self) -> str | None:
        """Why no game with API players may begin; None: it may."""
        if self._max_games is not None and self.games >= self._max_games:
            return f"pool.api.max_games={self._max_games} is used: {self.spent}"
        return super().closed

    @property
    def spent(self) -> str:
        return f"${self.cost:.2f} in {self.games} games"

    @property
    def counts(self) -> dict[str, Any]:
        return {"games": self.games, "declined": self.declined, **super().counts}

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


def api_players(spec: GameSpec) -> tuple[str, ...]:
    """The API players of a game, each once."""
    uids = (seat.policy.uid for seat in spec.seats if seat.policy.kind == "api")
    return tuple(dict.fromkeys(uids))
