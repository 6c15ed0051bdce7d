"""The collector with real games and scripted answers: no engine, no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rlforge.config.schema import CollectorConfig
from rlforge.errors import EngineError, RunError
from rlforge.games.base import View
from rlforge.games.players import make_player
from rlforge.rollout.collector import Collector, Delivery
from rlforge.rollout.episode import Answer
from rlforge.types import Completion, EnvSpec, GameRecord, GameSpec, PolicyRef, Seat

ENV = EnvSpec(id="TicTacToe-v0-train", max_turns=20)


def game(number: int, *, trained: Sequence[bool] = (True, True)) -> GameSpec:
    player = PolicyRef(uid="random_legal", kind="scripted", path_or_name="random_legal")
    seats = tuple(
        Seat(
            player_id=seat,
            policy=player,
            trained=trained[seat],
            prompt_template="board",
            action_extraction="raw",
        )
        for seat in range(2)
    )
    return GameSpec(game_id=f"g{number}", env=ENV, seed=number, purpose="train", seats=seats)


class ListPorts:
    """Hands out a fixed list of games, at most ``room`` a call, and keeps what comes back."""

    def __init__(self, games: Sequence[GameSpec]) -> None:
        self.waiting = list(games)
        self.deliveries: list[Delivery] = []

    async def next_games(self, wanted: int) -> list[GameSpec] | None:
        await asyncio.sleep(0)
        if not self.waiting:
            return None
        handed, self.waiting = self.waiting[:wanted], self.waiting[wanted:]
        return handed

    async def deliver(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)

    @property
    def records(self) -> list[GameRecord]:
        return [record for delivery in self.deliveries for record in delivery.records]


class Table:
    """Random legal play; ``forfeit`` and ``broken`` name games that go wrong at a seat."""

    def __init__(
        self, *, broken: Sequence[str] = (), forfeit: dict[str, int] | None = None
    ) -> None:
        self.broken, self.forfeit = set(broken), forfeit or {}
        self.under_way = self.most_under_way = 0

    def __call__(self, spec: GameSpec) -> Answer:
        player = make_player("random_legal", spec.env, spec.seed)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)

        async def answer(seat: Seat, view: View, seed: int) -> Completion:
            await asyncio.sleep(0)
            if spec.game_id in self.broken:
                raise EngineError("the engine is out")
            if self.forfeit.get(spec.game_id) == seat.player_id:
                return Completion(text="[99]", finish_reason="scripted")
            return Completion(text=player.act(view), finish_reason="scripted")

        return answer


async def test_every_game_is_played_once_and_delivered() -> None:
    ports = ListPorts([game(i) for i in range(50)])
    table = Table()
    await Collector(CollectorConfig(num_train_workers=8), ports, table).train()
    assert sorted(record.spec.game_id for record in ports.records) == sorted(
        f"g{i}" for i in range(50)
    )
    assert all(record.error is None for record in ports.records)


async def test_failed_games_are_recorded_and_replaced() -> None:
    ports = ListPorts([game(i) for i in range(10)])
    await Collector(CollectorConfig(num_train_workers=4), ports, Table(broken=["g3", "g7"])).train()
    failed = [record for record in ports.records if record.error is not None]
    assert {record.spec.game_id for record in failed} == {"g3", "g7"}
    assert len(ports.records) - len(failed) == 10
    for delivery in ports.deliveries:
        for record, learnable in zip(delivery.records, delivery.learnable, strict=True):
            assert learnable == (record.error is None)


async def test_too_many_failures_in_a_row_end_the_run_with_their_cause() -> None:
    class Broken(Table):
        def __call__(self, spec: GameSpec) -> Answer:
            self.broken.add(spec.game_id)
            return super().__call__(spec)

    ports = ListPorts([game(i) for i in range(4)])
    with pytest.raises(RunError, match=r"5 games failed in a row.*the engine is out"):
        await Collector(
            CollectorConfig(num_train_workers=2, max_failures=5), ports, Broken()
        ).train()
    assert len(ports.records) >= 5


@pytest.mark.parametrize(("filtering", "learned"), [(True, False), (False, True)])
async def test_games_an_opponent_forfeits_are_learned_from_unless_filtered(
    filtering: bool, learned: bool
) -> None:
    ports = ListPorts([game(0, trained=(True, False))])
    config = CollectorConfig(filter_opponent_invalid=filtering)
    await Collector(config, ports, Table(forfeit={"g0": 1})).train()
    assert ports.records[0].invalid_by == 1
    assert ports.deliveries[0].learnable == (learned,)


async def test_own_forfeits_are_always_learned_from() -> None:
    ports = ListPorts([game(0, trained=(True, False))])
    config = CollectorConfig(filter_opponent_invalid=True)
    await Collector(config, ports, Table(forfeit={"g0": 0})).train()
    assert ports.deliveries[0].learnable == (True,)


async def test_ports_that_fail_end_the_collection_at_once() -> None:
    class Gone(ListPorts):
        async def deliver(self, delivery: Delivery) -> None:
            raise RunError("the buffer is gone")

    class Endless(Gone):
        async def next_games(self, wanted: int) -> list[GameSpec] | None:
            await asyncio.sleep(0.01)
            return [game(len(self.waiting))]

    with pytest.raises(RunError, match="the buffer is gone"):
        await asyncio.wait_for(
            Collector(CollectorConfig(num_train_workers=4), Endless([]), Table()).train(), 20
        )


async def test_evaluation_replays_a_failed_game_once() -> None:
    tries: list[str] = []

    class Once(Table):
        def __call__(self, spec: GameSpec) -> Answer:
            tries.append(spec.game_id)
            self.broken = {"g1"} if tries.count("g1") == 1 else set()
            return super().__call__(spec)

    collector = Collector(CollectorConfig(num_eval_workers=1), ListPorts([]), Once())
    records = await collector.evaluate([game(0), game(1), game(2)])
    assert [record.spec.game_id for record in records] == ["g0", "g1", "g2"]
    assert all(record.error is None for record in records)
    assert tries == ["g0", "g1", "g1", "g2"]
