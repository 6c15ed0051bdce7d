"""Buffer and pool as actors, without Ray: samples, who waits for room, who plays whom."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import ray
from tests.factories import checkpoint, game_record, game_spec, scripted, seat, turn

from rlforge.buffer.batches import read_batch
from rlforge.config.compose import compose
from rlforge.config.games import CollectorConfig
from rlforge.config.schema import RunConfig
from rlforge.games.base import View
from rlforge.league.budget import api_players
from rlforge.record.results import ApiUsage
from rlforge.rollout.collector import Collector, MakeAnswer
from rlforge.rollout.episode import Answer
from rlforge.run.actors import state
from rlforge.run.actors.process import executed
from rlforge.run.actors.state import BufferActor, PoolActor
from rlforge.types import (
    Checkpoint,
    Completion,
    EnvSpec,
    Form,
    GameRecord,
    GameSpec,
    PolicyRef,
    Seat,
)

GROUP = 4
ENV = EnvSpec(id="TicTacToe-v0-train", max_turns=20, error_allowance=0, form=Form(extraction="raw"))


def game(number: int, *, trained: tuple[bool, bool]) -> GameSpec:
    """A game of the only group; the learner's policy plays at both seats."""
    form = Form(template="board", extraction="raw")
    seats = [seat(n, checkpoint(0), trained=trained[n], form=form) for n in range(2)]
    return game_spec(f"g{number}", ENV, seats, group_id="group", group_size=GROUP)


class BufferPorts:
    """Four games of a group, whose records go into the buffer."""

    def __init__(self, buffer: BufferActor, trained: tuple[bool, bool]) -> None:
        self._buffer, self.games = buffer, [game(n, trained=trained) for n in range(GROUP)]

    async def next_games(self, wanted: int) -> list[GameSpec] | None:
        games, self.games = self.games, []
        return games or None

    async def deliver(self, records: Sequence[GameRecord]) -> None:
        await self._buffer.deliver("collector", records)


def forfeiting(seats: dict[str, int]) -> MakeAnswer:
    """Play the first free cell; at a seat that ``seats`` has for a game, an illegal one."""

    def make(spec: GameSpec) -> Answer:
        async def answer(seat: Seat, view: View, seed: int) -> Completion:
            forfeits = seats.get(spec.game_id) == seat.player_id
            text = "[99]" if forfeits else view.legal_actions[0]
            return Completion(text=text, policy_uid="step-0")

        return answer

    return make


def make_buffer(config: RunConfig, run_dir: Path) -> BufferActor:
    # Log file and garbage collector belong to the process, which here is not the actor's own.
    with mock.patch.multiple(state, begin=mock.DEFAULT, freeze_gc=mock.DEFAULT):
        return BufferActor(config, str(run_dir))


async def collect(
    run_dir: Path, trained: tuple[bool, bool], forfeits: dict[str, int], *overrides: str
) -> BufferActor:
    """The buffer after the group was played with the filter on."""
    given = ["+experiment=kuhn_grpo", f"algorithm.group_size={GROUP}", "learner.batch_size=6"]
    given += ["collector.filter_opponent_invalid=true", "buffer.save_batches_as=[parquet,csv]"]
    buffer = make_buffer(compose([*given, *overrides]).config, run_dir)
    await Collector(CollectorConfig(), BufferPorts(buffer, trained), forfeiting(forfeits)).train()
    return buffer


async def test_a_group_of_self_play_keeps_the_seats_that_forfeit(
    tmp_path: Path, small_model: Path
) -> None:
    model = ["model=hf", f"model.name={small_model}"]
    buffer = await collect(tmp_path, (True, True), {"g0": 1, "g1": 0}, *model)
    batch, _ = await buffer.next_batch(0, 1)
    assert batch is not None
    assert {sample.episode for sample in batch.samples} == {
        *(("g0", 1), ("g1", 0), ("g2", 0), ("g2", 1), ("g3", 0), ("g3", 1))
    }
    await buffer.write_batch(1)
    for form in ("parquet", "csv"):
        assert read_batch(tmp_path / "batches" / f"batch-000001.{form}") == batch


async def test_games_that_opponents_forfeit_are_left_out_of_their_group(tmp_path: Path) -> None:
    buffer = await collect(tmp_path, (True, False), {"g0": 1, "g3": 1})
    (group,) = (await buffer.state_dict())["policies"][""]["buffer"]["groups"]
    assert {game[0][0]["origin"] for game in group["played"]} == {"g1", "g2"}
    assert group["games"] == 2


async def test_a_group_without_an_episode_leaves_nothing_behind(tmp_path: Path) -> None:
    buffer = await collect(tmp_path, (True, False), {f"g{n}": 1 for n in range(GROUP)})
    assert (await buffer.state_dict())["policies"][""]["buffer"]["groups"] == []


async def test_the_share_of_the_most_met_opponent_is_that_of_the_games_since_the_last_batch(
    tmp_path: Path,
) -> None:
    given = ["+experiment=tictactoe_mirror", "learner.batch_size=2", "buffer.save_batches=false"]
    buffer = make_buffer(compose(given).config, tmp_path)

    async def share_after(*opponents: PolicyRef) -> float:
        for number, opponent in enumerate(opponents):
            seats = [seat(0, checkpoint(0)), seat(1, opponent, trained=opponent.uid == "step-0")]
            spec = game_spec(f"g{number}", ENV, seats)
            await buffer.deliver("collector", [game_record(spec, [turn(0), turn(0)])])
        batch, _ = await buffer.next_batch(0, 1)
        assert batch is not None
        return (await buffer.figures())["opponent_share_max"]

    minimax, own = scripted("minimax"), checkpoint(0)
    assert await share_after(minimax, scripted(), minimax, own) == 0.5
    assert await share_after(minimax) == 1.0
    assert await share_after(own, checkpoint(3)) == 0.0


async def test_a_call_of_a_dead_collector_takes_no_room_from_its_successor(tmp_path: Path) -> None:
    buffer = make_buffer(compose(["+experiment=tictactoe_mirror"]).config, tmp_path)
    room = await buffer.reserve("collector-0", 10_000)
    waiting = asyncio.create_task(buffer.reserve("collector-0", 10_000))
    other = asyncio.create_task(buffer.reserve("collector-1", 1))
    await asyncio.sleep(0)
    await buffer.release_all("collector-0")
    assert await waiting == {}
    assert await other == {"": 1}
    # Nor does its process, where its node was only cut off.
    assert await buffer.reserve("collector-0", 10_000) == {}
    lost = await buffer.times_lost("collector-0")
    assert await buffer.reserve("collector-0", 10_000, lost) == {"": room[""] - 1}


async def test_a_game_counts_once_though_the_connection_breaks_after_its_delivery(tmp_path):
    broken = ray.exceptions.ActorUnavailableError("connection reset by peer", None)
    buffer = make_buffer(compose(["+experiment=tictactoe_mirror"]).config, tmp_path)
    pool = make_pool(tmp_path)
    [spec] = pool.next_games("collector-0", {"": 1})
    record = game_record(spec, [turn(0), turn(0)])
    usage = [ApiUsage(uid="openai:m", requests=3, cost=0.5)]

    def breaking(method):
        calls = 0

        async def remote(*arguments):
            nonlocal calls
            calls += 1
            if inspect.isawaitable(answer := method(*arguments)):
                await answer
            if calls == 1:
                raise broken

        return SimpleNamespace(remote=remote)

    pushed, delivered = breaking(pool.push_outcomes), breaking(buffer.deliver)
    for number in (1, 2):
        sent = ("collector-0", number)
        await asyncio.gather(
            executed(pushed, [record], sent, usage),
            executed(delivered, "collector-0", [record], sent),
        )
        assert (await buffer.figures())["buffer_size"] == number * len(spec.trained)
        assert pool.api_usage()[0][0].requests == 3 * number
    games = {entry.uid: entry.games for entry in pool.snapshot().entries}
    assert games["step-0"] == 2


async def test_all_calls_end_when_the_collection_is_over(tmp_path: Path) -> None:
    buffer = make_buffer(compose(["+experiment=tictactoe_mirror"]).config, tmp_path)
    await buffer.reserve("collector-0", 10_000)
    waiting = asyncio.create_task(buffer.reserve("collector-0", 1))
    await asyncio.sleep(0)
    await buffer.stop()
    assert await waiting == {}
    assert await buffer.next_batch(0, 1) == (None, None)


def make_pool(run_dir: Path, *overrides: str) -> PoolActor:
    opponents = ["pool.mode=random", "pool.fixed_opponents=['openai:m', random_legal]"]
    config = compose(["+experiment=tictactoe_mirror", *opponents, *overrides]).config
    with mock.patch.multiple(state, begin=mock.DEFAULT, freeze_gc=mock.DEFAULT):
        pool = PoolActor(config, str(run_dir), 0)
    pool.publish(Checkpoint(uid="step-0", version=0, path=None))
    return pool


def with_api(specs: list[GameSpec]) -> int:
    return sum(bool(api_players(spec)) for spec in specs)


def test_games_with_api_players_end_with_their_budget_and_the_others_go_on(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, "pool.api.max_games=5")
    first = pool.next_games("collector-0", {"": 50})
    assert (len(first), with_api(first)) == (50, 5)
    assert with_api(pool.next_games("collector-0", {"": 50})) == 0
    assert pool.admit(first[0], ()) is not bool(api_players(first[0]))


def test_a_resumed_run_has_the_budget_that_is_left_whatever_its_state_was(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, "pool.api.max_cost=1")
    early = pool.state_dict()
    pool.spend([ApiUsage(uid="openai:m", requests=3, cost=1.5)])
    resumed = make_pool(tmp_path, "pool.api.max_cost=1")
    resumed.load_state_dict(early)
    assert with_api(resumed.next_games("collector-0", {"": 50})) == 0
    players, figures, closed = resumed.api_usage()
    assert (players[0].requests, figures["cost"]) == (3, 1.5)
    assert closed is not None


async def test_of_one_seat_that_is_drawn_a_game_is_learned_and_both_move_the_baselines(
    tmp_path: Path,
) -> None:
    given = ["env=tictactoe", "rewards=unstable_baselines"]
    both, one = (
        make_buffer(compose([*given, f"collector.learned_seats={seats}"]).config, tmp_path)
        for seats in ("all", "one")
    )
    specs = [
        dataclasses.replace(game(n, trained=(True, True)), group_id=None, group_size=1, seed=n)
        for n in range(64)
    ]
    for buffer in (both, one):
        ports = BufferPorts(buffer, (True, True))
        ports.games = list(specs)
        await Collector(CollectorConfig(), ports, forfeiting({})).train()
    everything, drawn = [(await buffer.state_dict())["policies"][""] for buffer in (both, one)]
    assert drawn["rewards"] == everything["rewards"]
    seats = defaultdict[str, set[int]](set)
    for row in drawn["buffer"]["turns"]:
        seats[row["origin"]].add(row["player_id"])
    assert len(seats) == len(specs)
    assert all(len(each) == 1 for each in seats.values())
    assert 16 < sum(0 in each for each in seats.values()) < 48


async def test_a_wait_for_room_that_is_cancelled_as_it_is_notified_ends(tmp_path):
    """Else a run that fails would hang."""
    buffer = make_buffer(compose(["+experiment=tictactoe_mirror"]).config, tmp_path)
    await buffer.reserve("collector", 10_000)  # all that it admits
    for moment in range(8):
        waiting = asyncio.ensure_future(buffer.reserve("collector", 1))
        await asyncio.sleep(0.01)
        await buffer.set_version(0)
        for _ in range(moment):
            await asyncio.sleep(0)
        waiting.cancel()
        done, _ = await asyncio.wait([waiting], timeout=1.0)
        assert done, f"{moment} steps after the notice"
        assert waiting.cancelled()
