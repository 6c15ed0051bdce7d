"""Plays one game from its spec to its record."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from rlforge.errors import ExtensionError, GameError, PromptTooLongError, RlforgeError
from rlforge.games.actions import extract
from rlforge.games.base import Game, View, reseed
from rlforge.games.orientation import Shown, shown
from rlforge.games.registry import make_game
from rlforge.rollout.schedule import same_game
from rlforge.system.timeouts import TimeLimit
from rlforge.types import Completion, EndReason, GameRecord, GameSpec, Seat, Turn, continues

#: Asks the policy at a seat for an answer to a view; the third argument seeds its sampling.
Answer = Callable[[Seat, View, int], Awaitable[Completion]]


class AtSeat(Protocol):
    """Answers at one seat of one game."""

    async def answer(self, view: View, seed: int) -> Completion:
        """The answer to ``view``; seed: of its draw."""

    def remember(self, view: View, answer: Completion) -> None:
        """Note an answer that the seat gave before."""


class Seats:
    """Who answers in one game, by player id."""

    def __init__(self, at: Mapping[int, AtSeat]) -> None:
        self._at = at

    async def __call__(self, seat: Seat, view: View, seed: int) -> Completion:
        return await self._at[seat.player_id].answer(view, seed)

    def remember(self, seat: Seat, view: View, completion: Completion) -> None:
        """Note an answer that the seat gave before."""
        self._at[seat.player_id].remember(view, completion)


#: The ``legal_tokens`` of a turn: of its seat, view and answer, and whether that was accepted.
Legal = Callable[[Seat, View, Completion, bool], tuple[tuple[int, ...], ...]]


class _ContextLimitError(Exception):
    """The context of a player's policy is full."""

    def __init__(self, player_id: int, message: str) -> None:
        super().__init__(message)
        self.player_id = player_id


async def play_game(
    spec: GameSpec,
    answer: Answer,
    time_limit: TimeLimit = asyncio.timeout,
    legal_tokens: Legal | None = None,
) -> GameRecord:
    """Play one game to its end.

    Errors of the game, the engine or an API end up in ``GameRecord.error``, with the turns until
    then and without rewards. Other exceptions propagate, and so does ``ExtensionError``, of a
    user's code. A game is cut, as a draw, by the context or after ``env.timeout_s``.

    Args:
        spec: The game. Its ``past`` is played with the answers that were given then.
        answer: One with a method ``remember(seat, view, completion)`` gets those answers.
        time_limit: Clock of ``env.timeout_s``.
        legal_tokens: Finds the legal tokens in turns of trained seats.
    """
    if [seat.player_id for seat in spec.seats] != list(range(spec.env.num_players)):
        raise ValueError(f"{spec.game_id}: seats must be players 0 to {spec.env.num_players - 1}")
    start = time.perf_counter()
    turns: list[Turn] = []

    def record(end_reason: EndReason, **outcome: Any) -> GameRecord:
        return GameRecord(
            spec=spec,
            turns=tuple(turns),
            end_reason=end_reason,
            duration_s=time.perf_counter() - start,
            **outcome,
        )

    def cut(end_reason: EndReason, error: str, cut_by: int | None = None) -> GameRecord:
        # Without any answer it is an error: a wrong set-up must not end all games as draws.
        if not any(turn.completion.token_ids for turn in turns):
            return record(end_reason, rewards={}, cut_by=cut_by, error=error)
        # Turns of a cut game count, the cut answer included: else training would lack long games,
        # and long answers to long prompts.
        draw = dict.fromkeys(range(spec.env.num_players), 0.0)
        return record(end_reason, rewards=draw, cut_by=cut_by)

    try:
        async with time_limit(spec.env.timeout_s) as limit:
            game = make_game(spec.env, spec.seed)
            if spec.past is not None:
                await _play_past(spec, spec.past, game, turns, answer)
            while not game.done:
                turn = await _play_turn(spec, game, turns, answer, legal_tokens)
                turns.append(turn)
                if turn.completion.finish_reason == "context" and not turn.legal:
                    name = spec.seats[turn.player_id].policy.uid
                    message = f"the context of {name} ended before its answer had a legal action"
                    raise _ContextLimitError(turn.player_id, message)
            result = game.result()
    except TimeoutError as error:
        if limit.expired():
            message = f"{spec.env.id} was not over after {spec.env.timeout_s} s (env.timeout_s)"
            return cut("timeout", message)
        return record("error", rewards={}, error=f"TimeoutError: {error}")
    except ExtensionError:
        raise
    except _ContextLimitError as limit_reached:
        return cut("context_limit", str(limit_reached), limit_reached.player_id)
    except RlforgeError as error:
        return record("error", rewards={}, error=f"{type(error).__name__}: {error}")
    return record(result.end_reason, rewards=result.rewards, invalid_by=result.invalid_by)


def replayed(record: GameRecord) -> Iterator[tuple[Game, Turn]]:
    """Each turn of a game with the game as it was before it."""
    game, spec = make_game(record.spec.env, record.spec.seed), record.spec
    for number, turn in enumerate(record.turns):
        if spec.past is not None and number == len(spec.past):
            reseed(game, turn_seed(spec, number))
        yield game, turn
        game.step(turn.action)


async def _play_past(
    spec: GameSpec, past: tuple[Turn, ...], game: Game, turns: list[Turn], answer: Answer
) -> None:
    """Play ``past`` again, which is added to ``turns``; GameError where it comes out otherwise."""
    for then in past:
        given = partial(_given, answer, then.completion)
        turn = await _play_turn(spec, game, turns, given, None)
        for what in ("player_id", "observation", "action", "legal"):
            if getattr(turn, what) != getattr(then, what):
                raise GameError(
                    f"{spec.env_id}: turn {len(turns) + 1} does not repeat: its {what} is "
                    f"{getattr(turn, what)!r}, in the record {getattr(then, what)!r}"
                )
        turns.append(turn)
    turns[:] = [
        dataclasses.replace(turn, legal_tokens=()) if turn.legal_tokens else turn for turn in past
    ]
    reseed(game, turn_seed(spec, len(past)))


async def _given(
    answer: Answer, completion: Completion, seat: Seat, view: View, seed: int
) -> Completion:
    if (remember := getattr(answer, "remember", None)) is not None:
        remember(seat, view, completion)
    return completion


def turn_seed(spec: GameSpec, turn: int) -> int:
    """Sampling seed of the request in turn ``turn``."""
    # Games of one group share the game's seed, so that they start in the same state; their ids let
    # what is sampled in them differ.
    member = same_game(spec) if spec.group_id is not None else ""
    return seed_of(f"{spec.seed}/{turn}/{member}")


def seed_of(text: str) -> int:
    """A seed that follows from ``text``, from 0 to 2⁶³ − 1."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


async def _play_turn(
    spec: GameSpec, game: Game, turns: list[Turn], answer: Answer, legal_tokens: Legal | None
) -> Turn:
    view = game.view()
    if view.retry and (feedback := turns[-1].info["format_feedback"]):
        view = dataclasses.replace(
            view,
            observation=f"{view.observation}\n\n{feedback}",
            news=None if view.news is None else f"{view.news}\n\n{feedback}",
        )
    seat = spec.seats[view.player_id]
    turned = shown(spec.env, view) if seat.policy.kind == "checkpoint" else Shown(view=view)
    try:
        completion = await answer(seat, turned.view, turn_seed(spec, len(turns)))
    except PromptTooLongError as error:
        raise _ContextLimitError(seat.player_id, f"{type(error).__name__}: {error}") from error
    # A scripted player answers in the game's notation: the seat's format does not apply.
    reader = "raw" if completion.finish_reason == "scripted" else seat.form.extraction
    extraction = extract(reader, completion.text, turned.view.legal_actions)
    action = turned.played(extraction.action)
    game.step(action)
    info: dict[str, Any] = {"retry": view.retry, "format_feedback": extraction.feedback}
    if view.legal_actions is not None:
        info["legal_actions"] = len(view.legal_actions)
    if spec.env.context == "conversation":
        before = next((one for one in reversed(turns) if one.player_id == view.player_id), None)
        if before is not None and before.completion.token_ids:
            asked, known = completion.prompt_token_ids, before.completion
            info["history_cut"] = not continues(asked, known.prompt_token_ids, known.token_ids)
    branches: tuple[tuple[int, ...], ...] = ()
    if legal_tokens and seat.trained:
        branches = legal_tokens(seat, turned.view, completion, game.accepted)
    return Turn(
        player_id=view.player_id,
        observation=view.observation,
        completion=completion,
        action=action,
        well_formed=extraction.well_formed,
        legal=game.accepted,
        legal_tokens=branches,
        info=info,
    )
