"""Each version is evaluated once, under its own number, and with ``continuous`` all the time."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.factories import game_record

from rlforge.config.compose import compose
from rlforge.record.files import create_run
from rlforge.run.evaluations import Evaluations
from rlforge.run.observers import Observer
from rlforge.types import Checkpoint, EvalResult, GameRecord, GameSpec

SLOTS = 4


def version(number: int) -> Checkpoint:
    path = Path("checkpoints", f"step-{number}")
    path.mkdir(parents=True, exist_ok=True)
    return Checkpoint(uid=path.name, version=number, path=str(path))


def uids(spec: GameSpec) -> set[str]:
    return {seat.policy.uid for seat in spec.seats}


class Tables:
    """Two collectors whose games end when the test says so; the evaluated policy wins them."""

    in_order = False

    def __init__(self) -> None:
        self.under_way: list[tuple[str, GameSpec, asyncio.Future[GameRecord]]] = []
        self.most = 0
        #: Uid of an opponent whose games are not admitted.
        self.declines = ""
        self.played: list[str] = []

    async def evaluated(self, records: Sequence[GameRecord]) -> None:
        self.played += [record.spec.game_id for record in records]

    async def evaluate(self, collector: str, specs: Sequence[GameSpec]) -> list[GameRecord]:
        loop = asyncio.get_running_loop()
        admitted = [spec for spec in specs if self.declines not in uids(spec)]
        games = [(collector, spec, loop.create_future()) for spec in admitted]
        self.under_way += games
        self.most = max(self.most, len(self.under_way))
        return [await ended for _, _, ended in games]

    def versions(self) -> list[int]:
        """Of the games under way, sorted."""
        return sorted(spec.seats[spec.focus or 0].policy.version for _, spec, _ in self.under_way)

    async def end(self, number: int) -> None:
        """Let the oldest games end."""
        ending, self.under_way = self.under_way[:number], self.under_way[number:]
        for _, spec, ended in ending:
            rewards = {seat.player_id: float(seat.player_id == spec.focus) for seat in spec.seats}
            ended.set_result(game_record(spec, (), rewards))
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def at_once() -> None:
    """The engines have the version."""


class Run(Observer):
    """The evaluations of a run and their record; both seats have its newest version."""

    def __init__(self, *overrides: str) -> None:
        self.tables, self.recorded, self.measured = Tables(), list[EvalResult](), list[int]()
        few = ["eval.opponents=[random_legal]", "eval.games=2", "eval.final_games=4"]
        few += [f"collector.num_eval_workers={SLOTS // 2}"]
        config = compose(["+experiment=tictactoe_mirror", *few, *overrides]).config
        collectors = ("collector-0", "collector-1")
        self.said = list[str]()
        self.made = Evaluations(
            config, collectors, self.tables, self, self, at_once, self.said.append
        )

    async def evaluating(self, checkpoint: Checkpoint) -> tuple[()]:
        self.measured.append(checkpoint.version)
        return ()

    def evaluated(self, result: EvalResult) -> None:
        self.recorded.append(result)

    def seated(self) -> list[Checkpoint]:
        return [version(self.newest)] * 2

    def evaluate(self, number: int, *, edge: bool = False) -> None:
        self.newest = number
        self.made.evaluate(edge=edge)

    def follow(self, number: int) -> None:
        self.newest = number
        self.made.follow()

    @asynccontextmanager
    async def live(self, run_dir: Path = Path("run")) -> AsyncIterator[Evaluations]:
        async with asyncio.TaskGroup() as group:
            self.made.begin(group, run_dir)
            yield self.made
            self.made.cancel()

    def games(self) -> list[tuple[int, int, int]]:
        """Versions in the order of their records, with games against base and random_legal."""
        pairs = list(zip(self.recorded[::2], self.recorded[1::2], strict=True))
        for one, two in pairs:
            assert (one.opponent, two.opponent, two.step) == ("base", "random_legal", one.step)
        return [(one.step, one.games, two.games) for one, two in pairs]


async def test_a_version_is_evaluated_once_however_often_it_is_asked_for() -> None:
    run = Run()
    async with run.live() as evaluations:
        run.evaluate(0, edge=True)
        run.evaluate(2)
        run.evaluate(2)
        await settle()
        assert run.tables.versions() == [0] * 8
        assert evaluations.needed == {"step-0", "step-2"}
        assert run.measured == [0, 2]  # before their games are over
        await run.tables.end(8)
        assert run.tables.versions() == [2] * 4
        assert evaluations.needed == {"step-2"}
        await run.tables.end(4)
        await evaluations.finish()
    assert run.games() == [(0, 4, 4), (2, 2, 2)]
    # Each collector plays every other game, and they are counted in the order of the plan.
    assert run.tables.played == sorted(run.tables.played)
    assert len(run.tables.played) == 12
    assert run.made.objective() == 1.0
    assert not run.made.needed


async def test_all_slots_always_play_the_newest_version() -> None:
    run = Run("eval.continuous=true")
    async with run.live() as evaluations:
        run.evaluate(0, edge=True)
        await settle()
        run.follow(1)
        await run.tables.end(8)  # the start comes first
        assert run.tables.versions() == [1] * SLOTS
        assert {name for name, _, _ in run.tables.under_way} == {"collector-0", "collector-1"}
        for _ in range(3):
            await run.tables.end(2)
            assert run.tables.versions() == [1] * SLOTS
        run.follow(2)
        assert evaluations.needed == {"step-1", "step-2"}
        await run.tables.end(2)
        assert run.tables.versions() == [1, 1, 2, 2]
        assert [step for step, _, _ in run.games()] == [0]
        await run.tables.end(2)  # the last two of version 1
        assert run.tables.versions() == [2] * SLOTS
        assert evaluations.needed == {"step-2"}
        evaluations.close()  # the last version has an evaluation of its own
        run.follow(3)
        await run.tables.end(SLOTS)
        assert run.tables.under_way == []
        await evaluations.finish()
        run.evaluate(3, edge=True)
        await settle()
        await run.tables.end(8)
        await evaluations.finish()
    assert run.games() == [(0, 4, 4), (1, 6, 4), (2, 2, 2), (3, 4, 4)]
    assert [one.policy_uid for one in run.recorded] == [f"step-{one.step}" for one in run.recorded]


async def test_the_cap_ends_a_versions_games_and_records_it_at_once() -> None:
    run = Run("eval.continuous=true", "eval.max_games_per_checkpoint=6")
    async with run.live():
        run.follow(1)
        await settle()
        await run.tables.end(SLOTS)
        assert run.tables.versions() == [1] * 2
        await run.tables.end(2)
        assert run.games() == [(1, 4, 2)]
        assert run.tables.under_way == []
        run.follow(2)
        await settle()
        assert run.tables.versions() == [2] * SLOTS
    assert run.tables.most == SLOTS


@pytest.mark.parametrize("continuous", [False, True])
async def test_what_is_on_record_is_not_played_again(continuous: bool) -> None:
    paths = create_run(Path("run"))
    first = Run()
    async with first.live() as evaluations:
        first.evaluate(4)
        await settle()
        await first.tables.end(4)
    lines = [{name: getattr(one, name) for name in one.__slots__} for one in first.recorded]
    paths.evals.write_text("".join(json.dumps({**line, "time_s": 1.0}) + "\n" for line in lines))
    resumed = Run(f"eval.continuous={continuous}")
    async with resumed.live() as evaluations:
        assert evaluations.objective() == 1.0
        resumed.evaluate(4)
        resumed.follow(4)
        await settle()
        assert resumed.tables.under_way == []
        resumed.evaluate(6)
        await settle()
        assert resumed.tables.versions() == [6] * 4


async def test_versions_among_which_the_best_is_stay_needed_also_in_a_resumed_run() -> None:
    paths = create_run(Path("run"))
    first = Run("learner.result=best")
    async with first.live() as evaluations:
        first.evaluate(4)
        await settle()
        await first.tables.end(4)
        assert evaluations.needed == {"step-4"}
    lines = [{name: getattr(one, name) for name in one.__slots__} for one in first.recorded]
    paths.evals.write_text("".join(json.dumps({**line, "time_s": 1.0}) + "\n" for line in lines))
    for result, kept in (("best", {"step-4"}), ("latest", set())):
        resumed = Run(f"learner.result={result}")
        async with resumed.live() as evaluations:
            assert evaluations.needed == kept


async def test_what_a_stopped_run_owes_is_made_by_the_resumed_one_oldest_first() -> None:
    paths = create_run(Path("run"))
    first = Run()
    async with first.live() as evaluations:
        first.evaluate(0, edge=True)
        for number in (2, 4, 6):
            first.evaluate(number)
        owed = evaluations.state_dict()
        await settle()
        await first.tables.end(8)
    lines = [{name: getattr(one, name) for name in one.__slots__} for one in first.recorded]
    paths.evals.write_text("".join(json.dumps({**line, "time_s": 1.0}) + "\n" for line in lines))
    shutil.rmtree("checkpoints/step-4")
    second = Run()
    second.made.load_state_dict(json.loads(json.dumps(owed)))
    async with second.live() as evaluations:
        await settle()
        assert second.said == ["step-4 is not evaluated: step-4 is no longer on disk"]
        assert evaluations.needed == {"step-2", "step-6"}  # version 0 is on record
        second.evaluate(6)  # the version from which it goes on
        await second.tables.end(4)
        await second.tables.end(4)
        await evaluations.finish()
        assert evaluations.state_dict() == {}
    assert second.games() == [(2, 2, 2), (6, 2, 2)]
    assert second.measured == []
    third = Run()
    third.made.load_state_dict(owed)
    paths.evals.unlink()
    async with third.live():
        await settle()
        assert third.tables.versions() == [0] * 8  # as many as at the start


@pytest.mark.parametrize("continuous", [False, True])
async def test_the_last_version_gets_its_final_evaluation_if_it_had_fewer_games_before(
    continuous: bool,
) -> None:
    more = ("eval.max_games_per_checkpoint=100", "eval.final_games=8")
    run = Run(f"eval.continuous={continuous}", *more)
    async with run.live() as evaluations:
        run.evaluate(0, edge=True)
        await settle()
        await run.tables.end(16)
        (run.follow if continuous else run.evaluate)(1)
        await settle()
        await run.tables.end(4)
        # The updates up to the end make no version.
        ending = asyncio.ensure_future(evaluations.end())
        for _ in range(4):
            await settle()
            await run.tables.end(len(run.tables.under_way))
        await ending
        await evaluations.end()
    few = 4 if continuous else 2
    assert run.games() == [(0, 8, 8), (1, few, few), (1, 8, 8)]
    assert run.measured == [0, 1]
    assert len(set(run.tables.played)) == len(run.tables.played)
    assert evaluations.state_dict() == {}


async def test_a_last_version_that_had_as_many_games_is_not_evaluated_again() -> None:
    run = Run()
    async with run.live() as evaluations:
        run.evaluate(0, edge=True)
        await settle()
        await run.tables.end(8)
        await evaluations.end()
    assert run.games() == [(0, 4, 4)]


async def test_games_under_way_are_given_up_and_not_recorded_when_the_run_is_stopped() -> None:
    run = Run("eval.continuous=true")
    async with run.live():
        run.follow(1)
        await settle()
        await run.tables.end(3)
    assert run.recorded == []


async def test_an_opponent_whose_games_are_not_admitted_has_no_result() -> None:
    run = Run()
    run.tables.declines = "random_legal"
    async with run.live() as evaluations:
        run.evaluate(0, edge=True)
        await settle()
        await run.tables.end(4)
        await evaluations.finish()
    assert [(one.opponent, one.games) for one in run.recorded] == [("base", 4)]
    assert not run.made.needed


async def test_continuous_evaluation_goes_on_without_an_opponent_that_is_not_admitted() -> None:
    run = Run("eval.continuous=true", "eval.max_games_per_checkpoint=8")
    run.tables.declines = "random_legal"
    async with run.live():
        run.follow(1)
        await settle()
        assert run.tables.versions() == [1] * SLOTS
        await run.tables.end(SLOTS)
        assert [(one.opponent, one.games) for one in run.recorded] == [("base", 4)]
        run.follow(2)
        await settle()
        assert run.tables.versions() == [2] * SLOTS
