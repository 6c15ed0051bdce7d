"""Forks: other continuations of a finished game from its turns."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rlforge.config.roots import read_run
from rlforge.config.schema import GamesConfig
from rlforge.errors import ConfigError, RunError, nearest
from rlforge.local.policies import find_opponent, find_policy, seat_policies
from rlforge.record.analyses import Analysis, Estimate, Moment, estimate
from rlforge.rollout.collector import Collector
from rlforge.rollout.episode import replayed
from rlforge.rollout.lineup import can_play
from rlforge.rollout.schedule import line_up, same_game
from rlforge.system.checkpoint import is_step_name
from rlforge.types import Completion, GameRecord, GameSpec, Seat, value

#: Continuations of each turn that an analysis plays before it looks at the clock.
ROUND = 16
#: Most legal actions of a turn that an analysis tries one by one.
MOST_TRIED = 64
#: Share of the seconds of an analysis that is for the values; the rest is for other actions.
_FOR_VALUES = 0.6
#: The policy of an action that the caller gives.
FORCED = "forced"

_Say = Callable[[str], None]
_Play = Callable[[Sequence["Start"]], Awaitable[list["Fork"]]]


@value
class Start:
    """The turn, from 1, before which ``games`` continuations begin, with ``action``, if any."""

    turn: int
    games: int
    action: str = ""


@value
class Fork:
    """Continuations of a game from ``start``, failed ones included."""

    start: Start
    records: tuple[GameRecord, ...]

    @property
    def played(self) -> list[GameRecord]:
        return _ended(self.records)

    def reward(self, player: int) -> Estimate:
        return estimate([game.rewards[player] for game in self.played], _bounds(self.played))

    def by_action(self, player: int) -> dict[str, Estimate]:
        """The mean reward of a player by the action that was taken at the turn, most first."""
        rewards, bounds = defaultdict(list), _bounds(self.played)
        for game in self.played:
            rewards[game.turns[self.start.turn - 1].action].append(game.rewards[player])
        return {
            action: estimate(each, bounds)
            for action, each in sorted(rewards.items(), key=lambda item: -len(item[1]))
        }


async def fork_game(
    run_dir: Path,
    record: GameRecord,
    start: Start,
    seats: Mapping[int, str] | None = None,
    say: _Say = lambda text: None,
) -> Fork:
    """Play a game of a run on from ``start``.

    seats: policies by player, as ``rlforge eval`` names them, in place of the game's. Raises
    ConfigError for what cannot be, GameError where the game does not repeat itself, RunError where
    all continuations failed.
    """
    start = dataclasses.replace(start, action=_checked(record, start))
    async with continuations(run_dir, record, seats or {}, say) as play:
        [fork] = await play([start])
    _must_have_ended(fork.records)
    return fork


async def analyse_game(
    run_dir: Path,
    record: GameRecord,
    *,
    player: int | None = None,
    seats: Mapping[int, str] | None = None,
    samples: int = 64,
    seconds: float | None = None,
    say: _Say = lambda text: None,
) -> Analysis:
    """Estimate the value of a game before and after each of its turns, by continuations.

    player: whose value; None: of the evaluated policy, or of the first trained seat. seats: see
    ``fork_game``. samples: continuations of each turn. seconds: roughly the longest time.
    """
    if record.error is not None or not record.turns:
        raise ConfigError(f"game {record.spec.game_id} has no result to analyse: it failed")
    player = record.spec.viewpoint if player is None else player
    if player not in record.rewards:
        raise ConfigError(f"player {player}: the game has players 0 to {len(record.rewards) - 1}")
    games = enumerate((game for game, _ in replayed(record)), 1)
    legal = {turn: game.view().legal_actions or () for turn, game in games}
    turns = range(1, len(record.turns) + 1)
    played: dict[int, list[GameRecord]] = {turn: [] for turn in turns}
    done = 0
    async with continuations(run_dir, record, seats or {}, say) as play:
        # The clock starts here, so that loading the engine does not count.
        clock = _Clock(seconds)
        # Rounds go over all turns, so that each has as many continuations when the time is over.
        while done < samples and (not done or clock.left(_FOR_VALUES) > 0):
            number = min(ROUND, samples - done)
            for fork in await play([Start(turn=turn, games=number) for turn in turns]):
                played[fork.start.turn] += fork.records
            done += number
            clock.played += number * len(turns)
            say(f"{done} of {samples} continuations of each of {len(turns)} turns")
        for records in played.values():
            _must_have_ended(records)
        moments = _moments(record, player, played)
        # At turns that lost the game other actions are tried. The best is played again, because the
        # luck of a few games may have chosen it.
        moments, more = await _better_actions(record, moments, legal, samples, clock, play)
    for fork in more:
        played[fork.start.turn] += fork.records
    every = list(itertools.chain.from_iterable(played.values()))
    return Analysis(
        game_id=record.spec.game_id,
        env_id=record.spec.env_id,
        player=player,
        seats=tuple(seat.policy.uid for seat in every[0].spec.seats),
        rewards=record.rewards,
        moments=tuple(moments),
        games=len(every),
        failed=sum(one.error is not None for one in every),
    )


class _Clock:
    def __init__(self, seconds: float | None) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._began = time.monotonic()
        self.played = 0

    def left(self, share: float = 1.0) -> float:
        return share * self._seconds - (time.monotonic() - self._began)

    def fitting(self, wanted: int, starts: int) -> int:
        """Continuations from each of ``starts``, at most ``wanted``, in half of the time left."""
        per_second = self.played / max(time.monotonic() - self._began, 1e-3)
        return int(max(0, min(wanted, self.left() * per_second / 2 / max(starts, 1))))


async def _better_actions(
    record: GameRecord,
    moments: Sequence[Moment],
    legal: Mapping[int, Sequence[str]],
    samples: int,
    clock: _Clock,
    play: _Play,
) -> tuple[list[Moment], list[Fork]]:
    """Fork at turns that lost the game, and add the actions that did better to their moments."""
    lost = [one for one in moments if one.decisive and one.change < 0]
    starts = [
        (one.turn, action)
        for one in lost
        for action in [other for other in legal[one.turn] if other != one.action][:MOST_TRIED]
    ]

    async def fork(starts: Sequence[tuple[int, str]], wanted: int) -> list[Fork]:
        games = clock.fitting(wanted, len(starts))
        clock.played += games * len(starts)
        return await play([Start(turn=turn, games=games, action=action) for turn, action in starts])

    tried = await fork(starts, max(samples // 4, 1))
    best: dict[int, tuple[float, str]] = {}
    for one in tried:
        turn = one.start.turn
        if one.played:
            mean = one.reward(record.turns[turn - 1].player_id).mean
            best[turn] = max(best.get(turn, (-math.inf, "")), (mean, one.start.action))
    finalists = await fork([(turn, action) for turn, (_, action) in best.items()], samples)
    found = {moment.turn: moment for moment in moments}
    for one in finalists:
        moment = found[one.start.turn]
        if one.played and (reward := one.reward(moment.player)).mean > moment.own_after.mean:
            better = dataclasses.replace(moment, best=one.start.action, best_reward=reward)
            found[moment.turn] = better
    return list(found.values()), [*tried, *finalists]


# ---------------------------------------------------------------- values


def _bounds(games: Sequence[GameRecord]) -> tuple[float, float]:
    rewards = [reward for game in games for reward in game.rewards.values()]
    return min(rewards), max(rewards)


def _moments(
    record: GameRecord, player: int, played: Mapping[int, Sequence[GameRecord]]
) -> list[Moment]:
    ended = {turn: _ended(games) for turn, games in played.items()}
    bounds = _bounds([record, *itertools.chain.from_iterable(ended.values())])
    every_turn = range(1, len(record.turns) + 2)

    def worth(turn: int, whose: int) -> Estimate:
        # After the last turn nothing needs an estimate: the result is known.
        if turn == every_turn[-1]:
            return Estimate(mean=record.rewards[whose], half=0.0, games=1)
        return estimate([game.rewards[whose] for game in ended[turn]], bounds)

    worths = {whose: [worth(turn, whose) for turn in every_turn] for whose in record.rewards}
    # The 95 % hold for all turns together (Bonferroni), else some would be decisive by chance.
    one, all_turns = (
        statistics.NormalDist().inv_cdf(1 - 0.025 / number) for number in (1, len(record.turns))
    )
    moments = []
    for place, turn in enumerate(record.turns):
        own, (before, after) = worths[turn.player_id], worths[player][place : place + 2]
        half = all_turns / one * math.hypot(own[place].half, own[place + 1].half)
        moments.append(
            Moment(
                turn=place + 1,
                player=turn.player_id,
                policy=turn.completion.policy_uid or record.spec.seats[turn.player_id].policy.uid,
                action=turn.action,
                before=before,
                after=after,
                own_before=own[place],
                own_after=own[place + 1],
                decisive=abs(own[place + 1].mean - own[place].mean) > half,
            )
        )
    return moments


# ---------------------------------------------------------------- games


@asynccontextmanager
async def continuations(
    run_dir: Path, record: GameRecord, named: Mapping[int, str], say: _Say
) -> AsyncIterator[_Play]:
    """Yield a function from starts to forks of ``record``. named: policies by seat.

    Raises ConfigError for policies that cannot play.
    """
    config = read_run(run_dir, GamesConfig)
    seats = tuple(
        _seated(run_dir, config, record.spec, seat, named.get(seat.player_id))
        for seat in record.spec.seats
    )
    if wrong := set(named) - {seat.player_id for seat in seats}:
        raise ConfigError(f"seat {min(wrong)}: the game has seats 0 to {len(seats) - 1}")
    origin, numbers = same_game(record.spec), itertools.count()

    def continued(start: Start) -> GameSpec:
        past = record.turns[: start.turn - 1]
        if action := start.action:
            said = Completion(text=action, finish_reason="scripted", policy_uid=FORCED)
            turn = dataclasses.replace(record.turns[start.turn - 1], completion=said, action=action)
            past = (*past, dataclasses.replace(turn, legal=True, well_formed=True))
        # Answers in a group are drawn by game id, so continuations with one id would be alike.
        return dataclasses.replace(
            record.spec,
            game_id=f"{origin}@{start.turn}-{next(numbers)}",
            group_id=f"{origin}@{start.turn}",
            seats=seats,
            past=past,
        )

    async with seat_policies(config, [seat.policy for seat in seats], say) as policies:
        # No training game needs the engine, so it plays as many at once as it can.
        slots = max(config.collector.num_eval_workers, config.engine.max_parallel_seq)
        at_once = dataclasses.replace(config.collector, num_eval_workers=slots)
        collector = Collector(at_once, None, policies.for_game)

        async def play(starts: Sequence[Start]) -> list[Fork]:
            specs = [continued(start) for start in starts for _ in range(start.games)]
            records = iter(await collector.evaluate(specs))
            return [
                Fork(start=start, records=tuple(itertools.islice(records, start.games)))
                for start in starts
            ]

        yield play


def _seated(
    run_dir: Path, config: GamesConfig, spec: GameSpec, seat: Seat, name: str | None
) -> Seat:
    """The seat as it plays on, untrained. name: None is the policy of the game."""
    policy = seat.policy
    if name is None and policy.kind == "checkpoint" and is_step_name(policy.uid):
        try:
            # The run may have been moved since, so its version is looked up again.
            policy, _ = find_policy(run_dir, policy.uid)
        except ConfigError as error:
            raise ConfigError(
                f"player {seat.player_id} was {policy.uid}, which is not saved any more ({error}); "
                f"--seat {seat.player_id}=latest lets another version play on"
            ) from None
    elif name is not None:
        policy = find_opponent(run_dir, name, config)
        if not can_play(policy, spec.env):
            raise ConfigError(f"{name} does not play {spec.env_id}; choose another for the seat")
    if policy == seat.policy:
        # The game's own policy plays on with its own form of prompts.
        return dataclasses.replace(seat, trained=False)
    players = [policy if one is seat else one.policy for one in spec.seats]
    return line_up(spec.env, players, trained_uid=None)[seat.player_id]


def _checked(record: GameRecord, start: Start) -> str:
    """The action of ``start`` in the game's notation; ConfigError for one that is not there."""
    last = len(record.turns)
    if not 1 <= start.turn <= last:
        raise ConfigError(f"turn {start.turn}: game {record.spec.game_id} has turns 1 to {last}")
    if not start.action:
        return ""
    game, _ = next(itertools.islice(replayed(record), start.turn - 1, None))
    legal = game.view().legal_actions
    action = start.action
    if legal is not None and action not in legal and f"[{action}]" in legal:
        action = f"[{action}]"
    game.step(action)
    if not game.accepted:
        there = "" if legal is None else nearest(action, legal) or f"; legal are {', '.join(legal)}"
        raise ConfigError(f"action {start.action!r} is not legal at turn {start.turn}{there}")
    return action


def _ended(records: Sequence[GameRecord]) -> list[GameRecord]:
    return [record for record in records if record.error is None]


def _must_have_ended(records: Sequence[GameRecord]) -> None:
    if not _ended(records):
        raise RunError(f"all {len(records)} continuations failed; the last: {records[-1].error}")
