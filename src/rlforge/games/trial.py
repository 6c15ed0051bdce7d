"""Plays the first turns of a game, to find before a run starts what fails or takes long."""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import re
import time
from collections.abc import Callable, Iterator
from functools import partial

from rlforge.errors import GameError
from rlforge.games.base import Game, View
from rlforge.types import value

#: Games that are tried: with sensible answers those of even seeds, with senseless ones the others.
SEEDS = 8
#: Seconds of computing after which, and games at least before, no further one is tried.
ENOUGH_S, FEWEST = 0.5, 4
#: Most turns of a game with sensible answers, and with senseless ones.
TURNS, SENSELESS_TURNS = 60, 8
#: Seconds of computing for a start that is too slow to play, and for one that is worth a note.
TOO_SLOW_S, SLOW_S = 2.0, 0.25

_SENSELESS = ("I would rather not say.", "", "[0]", "-17 1e9", "\u2603 \u3010\u661f\u3011 [\u00e9]")


@value
class Trial:
    """A problem that stands in the way, and notes on peculiarities."""

    problem: str | None = None
    notes: tuple[str, ...] = ()


def trial(make: Callable[[int], Game], max_turns: int | None) -> Trial:
    """Play games of a few seeds; about half a second at most."""
    spent, slowest, ends = 0.0, 0.0, []
    for seed in range(SEEDS):
        sensible, game, began = seed % 2 == 0, None, time.thread_time()
        try:
            # Some environments print, which would mix with the command's own output.
            with contextlib.redirect_stdout(io.StringIO()):
                game = make(seed)
                slowest = max(slowest, time.thread_time() - began)
                if slowest > TOO_SLOW_S:
                    return Trial(problem=f"starting a game takes {slowest:.1f} s (seed {seed})")
                views = _trial_game(game, seed, sensible=sensible)
        except GameError as error:
            if game is None:
                return Trial(problem=f"a game of seed {seed} does not start: {error}")
            answers = "random actions" if sensible else "senseless answers"
            return Trial(problem=f"a trial game (seed {seed}, {answers}) failed: {error}")
        if sensible:
            legal = all(view.legal_actions for view in views)
            ends.append(legal and game.done and game.result().end_reason)
        spent += time.thread_time() - began
        if spent > ENOUGH_S and seed + 1 >= FEWEST:
            break
    notes = []
    if slowest > SLOW_S:
        notes.append(f"starting a game takes up to {slowest:.1f} s of computing")
    if set(ends) == {"turn_limit"}:
        notes.append(
            f"each of {len(ends)} games of random legal moves was cut at max_turns={max_turns}"
        )
    return Trial(notes=tuple(notes))


def trial_turns(
    make: Callable[[int], Game], games: int = 20, enough_s: float = 1.0
) -> list[tuple[int, ...]]:
    """The players of each turn, in order, of random games; stops after ``enough_s`` s."""
    turns, began = list[tuple[int, ...]](), time.thread_time()
    for seed in range(games):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(GameError):
            # Some games never end with random actions, so turns are limited.
            views = _play(make(seed), 200, partial(sensible_action, rng=random.Random(seed)))
            turns.append(tuple(view.player_id for view in views))
        if time.thread_time() - began > enough_s:
            break
    return turns


def _trial_game(game: Game, seed: int, *, sensible: bool) -> list[View]:
    if sensible:
        return [*_play(game, TURNS, partial(sensible_action, rng=random.Random(seed)))]
    answers = itertools.islice(itertools.cycle(_SENSELESS), seed, None)
    return [*_play(game, SENSELESS_TURNS, lambda _: next(answers))]


def _play(game: Game, most: int, answer: Callable[[View], str]) -> Iterator[View]:
    """The view of each turn, which is then answered."""
    for _ in range(most):
        if game.done:
            return
        view = game.view()
        yield view
        game.step(answer(view))


def sensible_action(view: View, rng: random.Random) -> str:
    """A random legal action; else something in brackets from the text."""
    actions = view.legal_actions or re.findall(r"\[[^\[\]\n]{1,40}\]", view.observation)
    return rng.choice(actions) if actions else "[0]"
