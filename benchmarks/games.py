"""Games a second of one collector process on one core, scripted players, many games at a time.

    python benchmarks/games.py [--games N] [--repeats N]

The real collector plays real games: prompts of the views, legality, records, hand-over; only the
answers cost nothing. Every concurrency plays the same games; the repeats of all are interleaved.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Any

from common import record, seconds, shown, spread

from rlforge.config.games import CollectorConfig
from rlforge.games.base import View
from rlforge.games.players import make_player
from rlforge.rollout.collector import Collector
from rlforge.types import Completion, EnvSpec, Form, GameRecord, GameSpec, PolicyRef, Seat

ENVS = {
    "TicTacToe": EnvSpec(id="TicTacToe-v0-train"),
    "SimpleTak": EnvSpec(id="SimpleTak-v0-train"),
    "Kuhn (OpenSpiel)": EnvSpec(id="kuhn_poker", source="openspiel"),
}
CONCURRENT = (1, 256, 2000)


class FixedGames:
    """Ports that hand out a fixed number of games and count what comes back."""

    def __init__(self, env: EnvSpec, games: int) -> None:
        player = PolicyRef(uid="random_legal", kind="scripted", path_or_name="random_legal")
        seats = tuple(
            Seat(player_id=number, policy=player, trained=False, form=Form(extraction="bracket"))
            for number in range(2)
        )
        self._left = [
            GameSpec(game_id=f"g{seed}", env=env, seed=seed, purpose="train", seats=seats)
            for seed in range(games)
        ]
        self.turns = self.finished = 0

    async def next_games(self, wanted: int) -> list[GameSpec] | None:
        given, self._left = self._left[:wanted], self._left[wanted:]
        return given or None

    async def deliver(self, records: Sequence[GameRecord]) -> None:
        assert all(game.error is None for game in records)
        self.finished += len(records)
        self.turns += sum(len(game.turns) for game in records)


def answers(spec: GameSpec) -> Any:
    """Scripted players, one per seat, that yield to the other games before they answer."""
    players = [make_player("random_legal", spec.env, spec.seed + seat) for seat in range(2)]

    async def answer(seat: Seat, view: View, seed: int) -> Completion:
        await asyncio.sleep(0)
        return Completion(text=players[seat.player_id].act(view), finish_reason="scripted")

    return answer


def play(env: EnvSpec, games: int, concurrent: int) -> tuple[float, float]:
    """Games and turns a second."""
    ports = FixedGames(env, games)
    collector = Collector(CollectorConfig(num_train_workers=concurrent), ports, answers)
    took = seconds(lambda: asyncio.run(collector.train()))
    assert ports.finished == games
    return games / took, ports.turns / took


def main() -> None:
    parser = argparse.ArgumentParser(description="Games a second of one collector.")
    parser.add_argument("--games", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    figures: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for repeat in range(arguments.repeats + 1):
        for name, env in ENVS.items():
            for concurrent in CONCURRENT:
                speed = play(env, arguments.games, concurrent)
                if repeat:  # the first round warms up
                    figures.setdefault((name, concurrent), []).append(speed)
    print(f"{'game':18}{'at a time':>10}{'games/s':>28}{'turns/s':>28}")
    rows = []
    for (name, concurrent), speeds in figures.items():
        games, turns = (spread([s[i] for s in speeds], "per_s") for i in (0, 1))
        cells = f"{shown(games, 'per_s', digits=0):>28}{shown(turns, 'per_s', digits=0):>28}"
        print(f"{name:18}{concurrent:>10}{cells}")
        rows.append({"game": name, "concurrent": concurrent, "games": games, "turns": turns})
    record("games", {"games": arguments.games, "cores_used": 1, "collector": rows})


if __name__ == "__main__":
    main()
