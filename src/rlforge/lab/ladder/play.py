"""Play a ladder: every member meets every other in mirrored pairs until the evidence is enough."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import combinations
from pathlib import Path

from rlforge.errors import RlforgeError, RunError
from rlforge.lab.ladder.card import ROUND_PAIRS, game_id, make_card, open_pairings
from rlforge.lab.ladder.entrants import (
    Entrant,
    LadderPlan,
    engine_key,
    files_of,
    is_here,
    member_of,
)
from rlforge.lab.ladder.page import write_ladder_page
from rlforge.lab.ladder.record import PAGE, LadderCard, first_difference, read_card, write_card
from rlforge.local.policies import seat_policies
from rlforge.record.game_files import GameIndex, GameWriter, index_games
from rlforge.rollout.collector import Collector
from rlforge.rollout.episode import Answer, Seats
from rlforge.rollout.policies import SeatPolicies
from rlforge.rollout.schedule import derive_seed, line_up
from rlforge.system.hardware import versions
from rlforge.types import EnvSpec, GameRecord, GameSpec

log = logging.getLogger(__name__)


async def play_ladder(
    plan: LadderPlan, folder: Path, say: Callable[[str], None] = log.info
) -> LadderCard:
    """Play until every pairing has ended; write ``ladder.json``, ``ladder.html`` and ``games/``.

    folder: new or empty. Raises RunError where a pairing has no finished pair.
    """
    members = await asyncio.to_thread(lambda: [member_of(one) for one in plan.entrants])
    async with _answers(plan.entrants, say) as make_answer:
        writer = GameWriter(folder, "ladder")
        collector = Collector(plan.entrants[0].config.collector, None, make_answer)
        try:
            played: list[GameIndex] = []
            causes: list[str] = []

            def add(record: GameRecord) -> None:
                writer.add([record])
                played.append(_indexed(record))
                if record.error is not None:
                    causes.append(record.error)

            while specs := [*_next_round(plan, played)]:
                left = len({spec.game_id.split("-")[1] for spec in specs})
                say(f"{len(played)} games played, {left} pairings open")
                await collector.evaluate(specs, add)
        finally:
            # An interrupted ladder writes what it knows, too.
            writer.close()
            card = make_card(index_games(folder), members, plan.rules, versions())
            write_card(folder, card)
            write_ladder_page(folder / PAGE, card)
    if bad := [one for one in card.pairings if not one.pairs]:
        why = f"; the last failure: {causes[-1]}" if causes else ""
        raise RunError(f"{bad[0].first} against {bad[0].second}: no pair was finished{why}")
    return card


def verify_ladder(file: Path) -> tuple[LadderCard, list[str]]:
    """Check a card; returns it and what cannot be checked here. RlforgeError where it differs."""
    card = read_card(file)
    games = index_games(file.parent)
    if not games:
        raise RlforgeError(f"{file}: there are no games beside it in games/ to compute it from")
    again = make_card(games, card.members, card.rules, card.versions)
    if (found := first_difference(card, again)) is not None:
        raise RlforgeError(f"{file} is not what its games say: {found}")
    unknown = []
    for member in card.members:
        if member.source and not is_here(member.kind, member.source):
            unknown.append(f"{member.uid}: {member.source} is not on this machine")
            continue
        now = {one.name: one.sha256 for one in files_of(member.kind, member.source)}
        for one in member.files:
            if now.get(one.name) != one.sha256:
                state = "has changed since" if one.name in now else "is not there any more"
                raise RlforgeError(f"{file}: {one.name} of {member.uid} {state}")
    return card, unknown


# ---------------------------------------------------------------- games


def _next_round(plan: LadderPlan, played: Sequence[GameIndex]) -> Iterator[GameSpec]:
    """Yield the next games of every pairing that is open."""
    pairings, rules = [*combinations(plan.entrants, 2)], plan.rules
    for number, planned in open_pairings(played, [one.policy.uid for one in plan.entrants], rules):
        # Pairings have different seeds, because their luck has to be independent.
        uids = sorted(each.policy.uid for each in pairings[number])
        for pair in range(planned, min(planned + ROUND_PAIRS, rules.games // 2)):
            for swapped in (False, True):
                entrants = pairings[number][:: -1 if swapped else 1]
                players = [each.policy for each in entrants]
                yield GameSpec(
                    game_id=game_id(number, pair, swapped),
                    env=plan.entrants[0].env,
                    seed=derive_seed(rules.seed, "ladder", rules.env_id, *uids, pair),
                    purpose="eval",
                    # Each seat is asked as its own run asks, because it was trained so.
                    seats=tuple(
                        line_up(one.env, players, None)[seat] for seat, one in enumerate(entrants)
                    ),
                    focus=int(swapped),
                )


def _indexed(record: GameRecord) -> GameIndex:
    return GameIndex(
        spec=record.spec,
        num_turns=len(record.turns),
        rewards=record.rewards,
        end_reason=record.end_reason,
        invalid_by=record.invalid_by,
        error=record.error,
        written_at=0.0,
    )


@asynccontextmanager
async def _answers(
    entrants: Sequence[Entrant], say: Callable[[str], None]
) -> AsyncIterator[Callable[[GameSpec], Answer]]:
    """Yield a function that seats players at a game."""
    # Runs of equal settings share an engine, because each engine holds the model once more.
    groups: dict[str, list[Entrant]] = {}
    for one in entrants:
        # Players without a model need no engine and join the first group.
        first = engine_key(entrants[0].config)
        own = engine_key(one.config) if one.policy.kind == "checkpoint" else first
        groups.setdefault(own, []).append(one)
    async with AsyncExitStack() as stack:
        of_uid: dict[str, tuple[SeatPolicies, EnvSpec]] = {}
        for members in groups.values():
            config, env = members[0].config, members[0].env
            refs = [each.policy for each in members]
            policies = await stack.enter_async_context(seat_policies(config, refs, say))
            of_uid.update((ref.uid, (policies, env)) for ref in refs)

        def make_answer(spec: GameSpec) -> Answer:
            at = {}
            for seat in spec.seats:
                policies, env = of_uid[seat.policy.uid]
                at[seat.player_id] = policies.at_seat(seat, env)
            return Seats(at)

        yield make_answer
