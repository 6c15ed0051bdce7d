"""A collector, engines and a learner by a simulated clock, around a real buffer."""

import heapq
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.buffer.games import make_game

from rlforge.buffer import BufferSettings, StepBuffer
from rlforge.buffer.base import Buffer

LENGTHS: dict[str, Callable[[random.Random], int]] = {
    "fixed": lambda rng: 30,
    "uniform": lambda rng: rng.randint(5, 60),
    "half_and_half": lambda rng: rng.choice((5, 60)),
}
"""Turns of a game, of both seats."""

ALL_LENGTHS = {**LENGTHS, "long": lambda rng: 400}


@dataclass
class Update:
    """What was drawn at ``time`` for one update."""

    time: float
    waited: float
    age: float
    oldest: int
    in_progress: int
    arrived: int
    lost: int


@dataclass
class Outcome:
    """updates: in order. turns: that the engines generated. per_game: E[l²] / E[l]."""

    updates: list[Update] = field(default_factory=list)
    turns: int = 0
    per_game: float = 0.0

    def lost(self, begin: int, end: int | None = None) -> float:
        """Share of the samples that arrived between two updates that were thrown away."""
        first, last = self.updates[begin], self.updates[-1 if end is None else end]
        return (last.lost - first.lost) / (last.arrived - first.arrived)

    def waiting(self, begin: int) -> float:
        """Share of the time after update ``begin`` in which the learner waits."""
        later = self.updates[begin + 1 :]
        return sum(u.waited for u in later) / (later[-1].time - self.updates[begin].time)

    def mean(self, name: str, begin: int) -> float:
        return statistics.mean(getattr(update, name) for update in self.updates[begin:])


def simulate(
    buffer: Buffer,
    *,
    workers: int,
    turns_per_s: float,
    turn_s: float,
    update_s: float,
    batch_size: int,
    lengths: str,
    updates: int,
    group_size: int = 1,
    save_every: int = 1,
    seed: int = 0,
) -> Outcome:
    """Play and learn until ``updates`` batches are drawn.

    turns_per_s: of the engines in all, shared equally by the games in progress. turn_s: of a turn
    when there is room. Turns of a game alternate between two seats.
    """
    rng, outcome = random.Random(seed), Outcome()
    now = served = working_until = asked = worked = 0.0
    busy, version, published, started, arrived, lost = False, 0, 0, 0, 0, 0
    # (served turns at which the turn ends, game), and each game's length, versions, seat, begin.
    turns: list[tuple[float, int]] = []
    games: dict[int, tuple[int, list[int], int, float]] = {}
    yields: list[int] = []
    while len(outcome.updates) < updates:
        for _ in range(buffer.reserve(workers - len(games), now)):
            games[started] = (ALL_LENGTHS[lengths](rng), [published], rng.randrange(2), now)
            heapq.heappush(turns, (served + rng.uniform(0.8, 1.2), started))
            started += 1
        if not busy and buffer.ready():
            buffer.waited(now - asked, worked)
            if (batch := buffer.draw(batch_size, version, now)) is not None:
                lost += buffer.losses.turns
                ages = [version - sample.policy_version for sample in batch.samples]
                outcome.updates.append(
                    Update(
                        time=now,
                        waited=now - asked,
                        age=statistics.mean(ages),
                        oldest=max(ages),
                        in_progress=len(games),
                        arrived=arrived,
                        lost=lost,
                    )
                )
                busy, working_until = True, now + update_s
        rate = min(1 / turn_s, turns_per_s / len(turns)) if turns else 0.0
        next_turn = now + (turns[0][0] - served) / rate if turns else float("inf")
        until = min(next_turn, working_until if busy else float("inf"), now + 2.0)
        if not turns and not busy and buffer.in_flight == 0 and buffer.ready():
            continue  # what was drawn was too old
        assert turns or busy, "nothing is under way, and nothing may start"
        served += (until - now) * rate
        now = until
        if busy and now == working_until:
            busy, version, asked, worked = False, version + 1, now, update_s
            if version % save_every == 0:
                published = version
                buffer.set_version(version)
        while turns and turns[0][0] <= served + 1e-9:
            _, game = heapq.heappop(turns)
            length, versions, seat, begun = games[game]
            outcome.turns += 1
            if len(versions) < length:
                versions.append(published)
                heapq.heappush(turns, (served + rng.uniform(0.8, 1.2), game))
                continue
            del games[game]
            trained = tuple(versions[seat::2])
            yields.append(len(trained))
            arrived += len(trained)
            group = f"group{game // group_size}" if group_size > 1 else None
            if trained:
                played = make_game(f"g{game}", trained, [0], group, group_size)
                buffer.add([played._replace(begun=begun)])
            buffer.release(1, now - begun)
    outcome.per_game = sum(n * n for n in yields) / sum(yields)
    return outcome


def first_games(lengths: str) -> tuple[tuple[int, int], ...]:
    """Samples and turns of twenty games, as a start takes them from games of random players."""
    rng = random.Random(7)
    turns = [ALL_LENGTHS[lengths](rng) // 2 for _ in range(20)]
    return tuple(zip(turns, turns, strict=True))


def buffer_for(
    lengths: str, workers: int | None, kind: type[Buffer] = StepBuffer, **settings: object
) -> Buffer:
    """A buffer with batches of 96 samples unless ``settings`` say otherwise."""
    defaults = {"max_size": 192, "max_staleness": 2, "batch_size": 96, "batch_delay": 1.0}
    first = {"games": first_games(lengths), "workers": workers, "seed": 0}
    return kind(BufferSettings(**{**defaults, **first, **settings}))
